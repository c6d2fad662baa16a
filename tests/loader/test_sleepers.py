"""A process sleeps at any call of a load, a compaction or a backfill, another does all its work, and the first goes on.

One process, real tasks, real files; brokers, registry and metastore are in memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.loader.commit.cleaning import clean
from support.simulation.fault_cases import Case, finish, quick_case, under
from support.simulation.faults import CHANGES, Faults
from support.simulation.small_world import AT_ONCE_MS, Lost, SmallWorld

DAY_MS = 86_400_000
HOURLY_STRIDE = 9


@pytest.fixture
def case(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return quick_case(memory_path, monkeypatch)


@pytest.fixture
def loaded(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return quick_case(memory_path, monkeypatch, is_loaded=True)


def loads_beside(case: Case, world: SmallWorld) -> None:
    case.load(world)


def voids_beside(case: Case, world: SmallWorld) -> None:
    """Whatever is staged and not committed, and nothing else: what a load would do beside hides the loss."""
    ports = world.ports()
    clean(ports.log, ports.staging, run_id="cleaning", build="test", now_ms=world.clock_ms, age_ms=AT_ONCE_MS)


def compacts_beside(case: Case, world: SmallWorld) -> None:
    case.compact(world)


def sleep_at(case: Case, number: int, beside: Callable[[Case, SmallWorld], None], act: Callable[..., Any]) -> None:
    """One process is paused before a call, another does all its work, and the first goes on.

    Raises:
        Exception: the loads after that do not complete the tables.
    """
    world = case.fresh()
    world.settings = dataclasses.replace(world.settings, staging_age_ms=-AT_ONCE_MS)
    under(Faults(number, meanwhile=partial(beside, case, world)), world, act)
    world.settings = dataclasses.replace(world.settings, staging_age_ms=AT_ONCE_MS)
    finish(world)
    if compacts_beside is beside or act is not Case.load:
        # Replaced files stay for a day. Then a load deletes them, and no table may need them.
        world.clock_ms += 2 * DAY_MS
        world.cluster.topics["clicks"].logs[0] += [2]
        finish(world)


def sleep_at_all(
    case: Case, beside: Callable[[Case, SmallWorld], None], act: Callable[..., Any], *, stride: int = 1
) -> None:
    undisturbed = Faults()
    under(undisturbed, case.fresh(), act)
    for number in [*worth_a_sleep(undisturbed.calls)][::stride]:
        try:
            sleep_at(case, number, beside, act)
        except Exception as error:
            raise Lost(f"call {number}, {undisturbed.calls[number]}") from error


def test_a_load_that_is_paused_at_some_calls_goes_on_after_another_load(case: Case) -> None:
    """The small case for every hour; the tests below go through all calls."""
    sleep_at_all(case, loads_beside, Case.load, stride=HOURLY_STRIDE)


@pytest.mark.simulation
@pytest.mark.parametrize("act", [Case.load, Case.compact])
@pytest.mark.parametrize("beside", [loads_beside, voids_beside, compacts_beside])
def test_a_process_that_sleeps_at_any_call_wakes_up_to_what_another_one_did(
    case: Case, beside: Callable[[Case, SmallWorld], None], act: Callable[..., Any]
) -> None:
    sleep_at_all(case, beside, act)


@pytest.mark.simulation
@pytest.mark.parametrize("beside", [loads_beside, voids_beside, compacts_beside])
def test_a_backfill_that_sleeps_at_any_call_wakes_up_to_what_another_process_did(
    loaded: Case, beside: Callable[[Case, SmallWorld], None]
) -> None:
    sleep_at_all(loaded, beside, Case.backfill)


def worth_a_sleep(calls: Sequence[str]) -> Iterator[int]:
    """All but those in the middle of a row of the same question."""
    around = zip(["", *calls], calls, [*calls[1:], ""], strict=False)
    for number, (before, call, after) in enumerate(around):
        if call in CHANGES or not before == call == after:
            yield number
