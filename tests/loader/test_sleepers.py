"""A process pauses at a call of a load, a compaction or a backfill, another does all its work, and the first resumes.

One process, real tasks, real files; brokers, registry and metastore are in memory. The gate pauses before every change
and a third of the reads, `make test-full` before each call.
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
from support.simulation.faults import CHANGES, Faults, sampled
from support.simulation.small_world import AT_ONCE_MS, Lost, SmallWorld

DAY_MS = 86_400_000
HOURLY_STRIDE = 5


@pytest.fixture
def case(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return quick_case(memory_path, monkeypatch)


@pytest.fixture
def loaded(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return quick_case(memory_path, monkeypatch, is_loaded=True)


def loads_meanwhile(case: Case, world: SmallWorld) -> None:
    case.load(world)


def voids_meanwhile(case: Case, world: SmallWorld) -> None:
    """Voids all staged runs without a commit, and does nothing else: other work of a load would hide the loss."""
    ports = world.ports()
    clean(ports.log, ports.staging, run_id="cleaning", build="test", now_ms=world.clock_ms, age_ms=AT_ONCE_MS)


def compacts_meanwhile(case: Case, world: SmallWorld) -> None:
    case.compact(world)


def pause_at(
    case: Case, number: int, interruption: Callable[[Case, SmallWorld], None], act: Callable[..., Any]
) -> None:
    """Pauses one process before a call, lets another do all its work, and resumes the first.

    Raises:
        Exception: the loads after that do not complete the tables.
    """
    world = case.fresh()
    world.settings = dataclasses.replace(world.settings, staging_age_ms=-AT_ONCE_MS)
    under(Faults(number, meanwhile=partial(interruption, case, world)), world, act)
    world.settings = dataclasses.replace(world.settings, staging_age_ms=AT_ONCE_MS)
    finish(world)
    if compacts_meanwhile is interruption or act is not Case.load:
        # A load deletes replaced files after a day. No table may refer to them then.
        world.clock_ms += 2 * DAY_MS
        world.cluster.topics["clicks"].logs[0] += [2]
        finish(world)


def pause_at_all(
    case: Case, interruption: Callable[[Case, SmallWorld], None], act: Callable[..., Any], *, stride: int = 1
) -> None:
    undisturbed = Faults()
    under(undisturbed, case.fresh(), act)
    for number in sampled(undisturbed.calls, [*pause_points(undisturbed.calls)])[::stride]:
        try:
            pause_at(case, number, interruption, act)
        except Exception as error:
            raise Lost(f"call {number}, {undisturbed.calls[number]}") from error


def test_a_load_paused_at_some_calls_resumes_after_another_load(case: Case) -> None:
    """The small case for every hour. The tests below cover all calls."""
    pause_at_all(case, loads_meanwhile, Case.load, stride=HOURLY_STRIDE)


@pytest.mark.simulation
@pytest.mark.parametrize("act", [Case.load, Case.compact])
@pytest.mark.parametrize("interruption", [loads_meanwhile, voids_meanwhile, compacts_meanwhile])
def test_a_load_or_compaction_paused_at_any_call_resumes_after_another_process(
    case: Case, interruption: Callable[[Case, SmallWorld], None], act: Callable[..., Any]
) -> None:
    pause_at_all(case, interruption, act)


@pytest.mark.simulation
@pytest.mark.parametrize("interruption", [loads_meanwhile, voids_meanwhile, compacts_meanwhile])
def test_a_backfill_paused_at_any_call_resumes_after_another_process(
    loaded: Case, interruption: Callable[[Case, SmallWorld], None]
) -> None:
    pause_at_all(loaded, interruption, Case.backfill)


def pause_points(calls: Sequence[str]) -> Iterator[int]:
    """The numbers of all calls except those within a sequence of equal reads."""
    around = zip(["", *calls], calls, [*calls[1:], ""], strict=False)
    for number, (before, call, after) in enumerate(around):
        if call in CHANGES or not before == call == after:
            yield number
