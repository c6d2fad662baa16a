"""A load meets every fault at every call that it makes of the world; what the next loads leave is whole all the same.

One process, real tasks, real files; brokers, registry and metastore are in memory. Dying is tried around the calls that
change something: a process that dies at one that only asks leaves what it left before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.simulation.fault_cases import Case, finish, quick_case, under
from support.simulation.faults import CHANGES, Fault, Faults
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


def fetch_changes(case: Case, act: Callable[..., Any], fault: Fault) -> list[int]:
    """The numbers of the calls at which the fault makes a difference."""
    undisturbed = Faults()
    under(undisturbed, case.fresh(), act)
    numbers = [at for at, call in enumerate(undisturbed.calls) if fault is Fault.FAILS or call in CHANGES]
    assert len(numbers) > 20, undisturbed.calls
    return numbers


def test_after_any_fault_at_some_calls_of_a_load_the_next_loads_complete_it(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The small case for every hour; the test below goes through all calls."""
    case, faults = quick_case(memory_path, monkeypatch), [*Fault]
    for turn, number in enumerate(fetch_changes(case, Case.load, Fault.DIES_BEFORE)[::HOURLY_STRIDE]):
        fail_at(case, number, faults[turn % len(faults)], Case.load)


@pytest.mark.simulation
@pytest.mark.parametrize("act", [Case.load, Case.compact, Case.backfill])
@pytest.mark.parametrize("fault", Fault)
def test_whatever_goes_wrong_at_any_call_the_next_loads_make_it_whole(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault, act: Callable[..., Any]
) -> None:
    case = quick_case(memory_path, monkeypatch, is_loaded=act is Case.backfill)
    for number in fetch_changes(case, act, fault):
        fail_at(case, number, fault, act)
