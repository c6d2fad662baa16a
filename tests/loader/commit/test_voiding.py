"""A voided run can never commit, however late, and the state stores its id only as long as necessary."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.loader.commit import conflict, state
from headrace.loader.commit.commit import Commit
from headrace.loader.commit.conflict import ConflictRule, find_conflict
from headrace.loader.commit.state import EMPTY, LoaderState, fold
from support.loader.loader_samples import clean, load

PLAN_COMMITS = 4

RUNS = st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("plan"), RUNS),
        st.tuples(st.just("void"), RUNS),
        st.tuples(st.just("try_commit"), RUNS),
        st.tuples(st.just("others"), st.integers(1, 2 * PLAN_COMMITS)),
    ),
    max_size=25,
)


@pytest.fixture(autouse=True, scope="module")
def _small_commit_limit() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "PLAN_COMMITS_MAX", PLAN_COMMITS)
        patch.setattr(conflict, "PLAN_COMMITS_MAX", PLAN_COMMITS)
        yield


def committed(known: LoaderState, proposal: Commit) -> LoaderState:
    return fold(known, proposal.with_number(known.commit_number + 1))


def others(known: LoaderState, count: int) -> LoaderState:
    for _ in range(count):
        proposal = load(f"other-{known.commit_number}", {})
        known = committed(known, dataclasses.replace(proposal, published=known.staged_runs))
    return known


@given(STEPS)
def test_a_voided_run_is_refused_at_any_later_commit(steps: list[tuple[str, int]]) -> None:
    known, planned, voided_at = EMPTY, dict[int, int](), dict[int, int]()
    for step, number in steps:
        if step == "others":
            known = others(known, number)
        elif step == "plan":
            planned.setdefault(number, known.commit_number)
        elif step == "void" and number in planned:
            known = committed(known, clean(f"cleaner-{known.commit_number}", f"w{number}"))
            voided_at[number] = known.commit_number
        elif step == "try_commit" and number in planned:
            proposal = dataclasses.replace(load(f"w{number}", {}), planned_after=planned[number])
            found = find_conflict(known, proposal)
            is_old = known.commit_number - planned[number] > PLAN_COMMITS
            assert (found is not None) == (number in voided_at or is_old)
        remembered = known.voided | known.voided_before
        assert remembered <= {
            f"w{number}"
            for number, commit_number in voided_at.items()
            if commit_number > known.commit_number - 2 * PLAN_COMMITS
        }


@pytest.mark.parametrize("planned_after", range(2 * PLAN_COMMITS + 1))
def test_a_voided_run_is_refused_for_any_distance_of_plan_voiding_and_commit(planned_after: int) -> None:
    for until_voided, until_commit in itertools.product(range(PLAN_COMMITS + 1), range(2 * PLAN_COMMITS + 2)):
        known = others(others(EMPTY, planned_after), until_voided)
        known = others(committed(known, clean("cleaner", "w")), until_commit)
        assert find_conflict(known, dataclasses.replace(load("w", {}), planned_after=planned_after)) is not None
        if until_commit >= 2 * PLAN_COMMITS:
            assert not known.is_voided("w"), "the state has dropped the id"


def test_a_plan_that_is_too_old_is_refused() -> None:
    proposal = dataclasses.replace(load("w", {}), planned_after=0)
    assert find_conflict(others(EMPTY, PLAN_COMMITS), proposal) is None
    found = find_conflict(others(EMPTY, PLAN_COMMITS + 1), proposal)
    assert found is not None
    assert found.rule is ConflictRule.PLAN_TOO_OLD
    assert re.search(rf"\bw\b.*\b0\b.*\b{PLAN_COMMITS + 1}\b", found.detail)


def test_a_commit_without_a_plan_number_has_no_age_limit() -> None:
    assert find_conflict(others(EMPTY, 3 * PLAN_COMMITS), load("w", {})) is None
