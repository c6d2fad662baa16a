"""Random interleavings of requests and changes by two processes on one database, compared with the model."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis.stateful import run_state_machine_as_test

from support.simulation.registry_interleavings import Interleavings, histories_of


def test_interleaved_changes_and_restores_match_the_model(new_database: Callable[[], str]) -> None:
    run_state_machine_as_test(lambda: Interleavings(new_database), settings=histories_of(new_database()))
