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

from headrace.loader.decide.cleaning import clean
from support.simulation.fault_cases import Case, finish, quick_case, under
from support.simulation.faults import CHANGES, Faults
from support.simulation.small_world import AT_ONCE_MS, Lost, SmallWorld

DAY_MS = 86_400_000


@pytest.fixture
def case(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return quick_case(memory_path, monkeypatch)


@pytest.fixture
def loaded(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return quick_case(memory_path, monkeypatch, is_loaded=True)


def loads_beside(case: Case, world: SmallWorld) -> None:
    case.load(world)


def voids_beside(case: Case, world: SmallWorld) -> None:
    """Whatever is staged and not decided, and nothing else: what a load would do beside hides the loss."""
    ports = world.ports()
    clean(ports.log, ports.staging, work_id="cleaning", build="test", now_ms=world.clock_ms, age_ms=AT_ONCE_MS)


def compacts_beside(case: Case, world: SmallWorld) -> None:
    case.compact(world)


@pytest.mark.parametrize("act", [Case.load, Case.compact])
@pytest.mark.parametrize("beside", [loads_beside, voids_beside, compacts_beside])
def test_a_process_that_sleeps_at_any_call_wakes_up_to_what_another_one_did(
    case: Case, beside: Callable[[Case, SmallWorld], None], act: Callable[..., Any]
) -> None:
    undisturbed = Faults()
    under(undisturbed, case.fresh(), act)
    for number in worth_a_sleep(undisturbed.calls):
        world = case.fresh()
        world.settings = dataclasses.replace(world.settings, staging_age_ms=-AT_ONCE_MS)
        try:
            under(Faults(number, meanwhile=partial(beside, case, world)), world, act)
            world.settings = dataclasses.replace(world.settings, staging_age_ms=AT_ONCE_MS)
            finish(world)
            if compacts_beside is beside or act is Case.compact:
                # What was replaced is kept for a day, and then nobody may need it.
                world.clock_ms += 2 * DAY_MS
                world.cluster.topics["clicks"].logs[0] += [2]
                finish(world)
        except Exception as error:
            raise Lost(f"call {number}, {undisturbed.calls[number]}") from error


@pytest.mark.parametrize("beside", [loads_beside, voids_beside, compacts_beside])
def test_a_backfill_that_sleeps_at_any_call_wakes_up_to_what_another_process_did(
    loaded: Case, beside: Callable[[Case, SmallWorld], None]
) -> None:
    undisturbed = Faults()
    under(undisturbed, loaded.fresh(), Case.backfill)
    for number in worth_a_sleep(undisturbed.calls):
        world = loaded.fresh()
        world.settings = dataclasses.replace(world.settings, staging_age_ms=-AT_ONCE_MS)
        try:
            under(Faults(number, meanwhile=partial(beside, loaded, world)), world, Case.backfill)
            world.settings = dataclasses.replace(world.settings, staging_age_ms=AT_ONCE_MS)
            finish(world)
            # What was replaced is kept for a day, and then nobody may need it.
            world.clock_ms += 2 * DAY_MS
            world.cluster.topics["clicks"].logs[0] += [2]
            finish(world)
        except Exception as error:
            raise Lost(f"call {number}, {undisturbed.calls[number]}") from error


def worth_a_sleep(calls: Sequence[str]) -> Iterator[int]:
    """All but those in the middle of a row of the same question."""
    around = zip(["", *calls], calls, [*calls[1:], ""], strict=False)
    for number, (before, call, after) in enumerate(around):
        if call in CHANGES or not before == call == after:
            yield number
