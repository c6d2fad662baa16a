"""Work that was voided is never decided, however late its offer comes, and is remembered no longer than that takes."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.loader.commit import conflict, state
from headrace.loader.commit.conflict import ConflictRule, find_conflict
from headrace.loader.commit.decision import Decision
from headrace.loader.commit.state import EMPTY, LoaderState, fold
from support.loader.loader_samples import clean, load

PLAN_SLOTS = 4

WORKS = st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("plan"), WORKS),
        st.tuples(st.just("void"), WORKS),
        st.tuples(st.just("offer"), WORKS),
        st.tuples(st.just("others"), st.integers(1, 2 * PLAN_SLOTS)),
    ),
    max_size=25,
)


@pytest.fixture(autouse=True, scope="module")
def _few_slots() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "PLAN_SLOTS_MAX", PLAN_SLOTS)
        patch.setattr(conflict, "PLAN_SLOTS_MAX", PLAN_SLOTS)
        yield


def decided(known: LoaderState, offer: Decision) -> LoaderState:
    return fold(known, offer.at(known.slot + 1))


def others(known: LoaderState, count: int) -> LoaderState:
    for _ in range(count):
        offer = load(f"other-{known.slot}", {})
        known = decided(known, dataclasses.replace(offer, published=known.works))
    return known


@given(STEPS)
def test_voided_work_is_never_decided_whenever_it_is_offered(steps: list[tuple[str, int]]) -> None:
    known, planned, voided_at = EMPTY, dict[int, int](), dict[int, int]()
    for step, number in steps:
        if step == "others":
            known = others(known, number)
        elif step == "plan":
            planned.setdefault(number, known.slot)
        elif step == "void" and number in planned:
            known = decided(known, clean(f"cleaner-{known.slot}", f"w{number}"))
            voided_at[number] = known.slot
        elif step == "offer" and number in planned:
            offer = dataclasses.replace(load(f"w{number}", {}), planned_after=planned[number])
            found = find_conflict(known, offer)
            is_old = known.slot - planned[number] > PLAN_SLOTS
            assert (found is not None) == (number in voided_at or is_old)
        remembered = known.voided | known.voided_before
        assert remembered <= {f"w{number}" for number, slot in voided_at.items() if slot > known.slot - 2 * PLAN_SLOTS}


@pytest.mark.parametrize("begun", range(2 * PLAN_SLOTS + 1))
def test_whatever_lies_between_plan_voiding_and_offer(begun: int) -> None:
    for until_voided, until_offered in itertools.product(range(PLAN_SLOTS + 1), range(2 * PLAN_SLOTS + 2)):
        known = others(others(EMPTY, begun), until_voided)
        known = others(decided(known, clean("cleaner", "w")), until_offered)
        assert find_conflict(known, dataclasses.replace(load("w", {}), planned_after=begun)) is not None
        if until_offered >= 2 * PLAN_SLOTS:
            assert not known.is_voided("w"), "remembered no longer"


def test_a_plan_that_is_too_old_is_refused_by_name() -> None:
    offer = dataclasses.replace(load("w", {}), planned_after=0)
    assert find_conflict(others(EMPTY, PLAN_SLOTS), offer) is None
    found = find_conflict(others(EMPTY, PLAN_SLOTS + 1), offer)
    assert found is not None
    assert found.rule is ConflictRule.PLAN_TOO_OLD
    assert re.search(rf"\bw\b.*\b0\b.*\b{PLAN_SLOTS + 1}\b", found.detail)


def test_what_an_earlier_release_offered_is_of_no_age() -> None:
    assert find_conflict(others(EMPTY, 3 * PLAN_SLOTS), load("w", {})) is None
