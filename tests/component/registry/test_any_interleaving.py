"""Two processes on one database, asked and changed in any order, answer as the model does, on each kind of database."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis.stateful import run_state_machine_as_test

from support.simulation.registry_interleavings import Interleavings, histories_of


def test_any_interleaving_of_changes_and_of_going_back(new_database: Callable[[], str]) -> None:
    run_state_machine_as_test(lambda: Interleavings(new_database), settings=histories_of(new_database()))
