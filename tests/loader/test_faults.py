"""A load meets each fault at each of its calls; the next loads must complete the tables.

One process, real tasks, real files; brokers, registry and metastore are in memory. The process is killed only before
and after calls that change something: a kill at a read leaves the same state as a kill at the last change. The gate
lets a third of the reads fail, `make test-full` each.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.simulation.fault_cases import Case, finish, quick_case, under
from support.simulation.faults import CHANGES, Fault, Faults, sampled
from support.simulation.small_world import Lost

HOURLY_STRIDE = 3


def fail_at(case: Case, number: int, fault: Fault, act: Callable[..., Any]) -> None:
    """
    Raises:
        Lost: the loads after the fault do not complete the tables.
    """
    world, faults = case.fresh(), Faults(number, fault)
    try:
        under(faults, world, act)
        finish(world)
    except Exception as error:
        raise Lost(f"call {number}, {faults.calls[number]}: {fault}") from error


def calls_to_fail(case: Case, act: Callable[..., Any], fault: Fault) -> list[int]:
    """The numbers of the calls at which the fault makes a difference."""
    undisturbed = Faults()
    under(undisturbed, case.fresh(), act)
    numbers = [at for at, call in enumerate(undisturbed.calls) if fault is Fault.FAILS or call in CHANGES]
    assert len(numbers) > 20, undisturbed.calls
    return sampled(undisturbed.calls, numbers)


def test_after_any_fault_at_some_calls_of_a_load_the_next_loads_complete_it(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The small case for every hour. The test below covers all calls."""
    case, faults = quick_case(memory_path, monkeypatch), [*Fault]
    for index, number in enumerate(calls_to_fail(case, Case.load, Fault.DIES_BEFORE)[::HOURLY_STRIDE]):
        fail_at(case, number, faults[index % len(faults)], Case.load)


@pytest.mark.simulation
@pytest.mark.parametrize("act", [Case.load, Case.compact, Case.backfill])
@pytest.mark.parametrize("fault", Fault)
def test_after_any_fault_at_any_call_the_next_loads_complete_the_tables(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault, act: Callable[..., Any]
) -> None:
    case = quick_case(memory_path, monkeypatch, is_loaded=act is Case.backfill)
    for number in calls_to_fail(case, act, fault):
        fail_at(case, number, fault, act)
