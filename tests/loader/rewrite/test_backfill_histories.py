"""A backfill changes no row after any history of a topic: real tasks, loads, merges, truncated logs, re-created topics,
and messages that the brokers lost."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.loader.rewrite.backfill_report import BackfillPeriod
from headrace.loader.rewrite.choose import DAY_MS
from headrace.loader.rewrite.run import CompactSettings, accept_missing, compact
from headrace.loader.work_unit import FileKind
from support.loader.backfill_world import ALL, BAD, HOURS, WITH_NOTE, BackfillWorld
from support.loader.task_world import HOLE
from support.memory_directory import memory_directory
from support.simulation.extent import IS_FULL
from support.simulation.remembered import keep_journal_in_memory, remember_results

MERGED = CompactSettings(lambda topic: 0, 2**20, 2**20, lambda topic: "null")


class History:
    """A topic with two partitions. Two logs differ in the messages that have a note."""

    def __init__(self, root: Path) -> None:
        self.world = world = BackfillWorld(root)
        world.policy = dataclasses.replace(world.policy, on_data_loss="skip")
        world.registry.register("orders-value", 2, WITH_NOTE)
        world.clock_ms += DAY_MS
        self._topic = world.topic("orders", [1, 1], [2])
        self._incarnations = 1
        world.load()

    def append(self, at: int) -> None:
        self._topic.logs[at % 2] += [1, 2, BAD, 1][: 1 + at % 4]

    def load(self, at: int) -> None:
        self.append(at)
        self.world.load()

    def merge(self, at: int) -> None:
        compact(self.world.rewrites(), ["orders"], MERGED, is_dry=False)

    def cut_back(self, at: int) -> None:
        log, first = self._topic.logs[at % 2], self._topic.first
        self._topic.cut_back(at % 2, first + at % (len(log) + 1), *[2, 1, 2, 1, 1][: at % 6])

    def recreate(self, at: int) -> None:
        self._incarnations += 1
        self._topic = self.world.topic("orders", [2] * (at % 4), [1, 2], topic_id=f"id-{self._incarnations}")

    def compact_log(self, at: int) -> None:
        log = self._topic.logs[at % 2]
        if log:
            log[at % len(log)] = HOLE

    def delete_segments(self, at: int) -> None:
        number = min(at % 3, *map(len, self._topic.logs))
        self._topic.logs = [log[number:] for log in self._topic.logs]
        self._topic.first += number

    def accept_missing(self, at: int) -> None:
        files = self.world.files()
        if files:
            files[at % len(files)].unlink()
            accept_missing(self.world.rewrites(), "orders", [FileKind.DATA], "", is_dry=False)

    def backfill(self, at: int) -> None:
        self.world.backfill(PERIODS[at % len(PERIODS)], piece_bytes_max=1 if at % 2 else 2**30)


PERIODS = (ALL, ALL, BackfillPeriod(HOURS[0], HOURS[0]), BackfillPeriod(HOURS[1], HOURS[2]))
COMMON = (History.append, History.load, History.load, History.merge, History.cut_back, History.recreate)
LOSSES = (History.compact_log, History.delete_segments), (History.accept_missing,)
"""Tested separately: within a span, a deletion of rows by the operator could balance the same number of messages lost
by the brokers."""


def content(world: BackfillWorld) -> Mapping[tuple[object, ...], int]:
    """The content of every row, and the offset of every quarantined message."""
    found: Counter[tuple[object, ...]] = Counter(world.quarantined("orders"))
    for path in world._files("headrace", "orders"):
        with path.open("rb") as file:
            for row in fastavro.reader(file):
                at = row["kafka"]  # type: ignore[index,call-overload]
                found[at["partition"], at["offset"], row["id"], row.get("note") or ""] += 1  # type: ignore[index,call-overload,union-attr]
    return found


def histories(losses: tuple[Callable[[History, int], None], ...]) -> st.SearchStrategy[list[tuple[object, int]]]:
    steps = st.sampled_from((*COMMON, *losses, History.backfill))
    return st.lists(st.tuples(steps, st.integers(0, 30)), min_size=1, max_size=7)


Steps = list[tuple[Callable[[History, int], None], int]]
STEPS = st.sampled_from(LOSSES).flatmap(histories)
HOURLY_EXAMPLES = 4
EXAMPLES = 300 if IS_FULL else 30


@settings(max_examples=HOURLY_EXAMPLES, suppress_health_check=list(HealthCheck))
@given(STEPS, st.integers(0, 30))
def test_a_backfill_changes_no_row_after_some_histories(steps: Steps, at: int) -> None:
    """The small case for every hour."""
    backfill_after(steps, at)


@pytest.mark.simulation
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(STEPS, st.integers(0, 30))
def test_a_backfill_changes_no_row_after_any_history(steps: Steps, at: int) -> None:
    backfill_after(steps, at)


def backfill_after(steps: Steps, at: int) -> None:
    with memory_directory("backfill") as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        remember_results(patch)
        keep_journal_in_memory(patch)
        history = History(directory)
        for step, number in steps:
            step(history, number)
        before = content(history.world)
        history.backfill(at)
        after = content(history.world)
        # Rows written with an earlier schema have the present fields, with their defaults.
        assert after == before
        assert history.world.findings() == ()
        assert history.world.run_ids() == frozenset()
