"""A warehouse with new messages to load, which is set up anew for each injected fault."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from headrace.audit.errors import AuditError
from headrace.hive_ddl.errors import HiveDdlError
from headrace.kafka_wire.errors import KafkaError
from headrace.loader.errors import LoaderError
from headrace.loader.report import RunReport
from headrace.loader.rewrite.backfill import BackfillPorts, BackfillSettings, backfill
from headrace.loader.rewrite.backfill_report import BackfillPeriod, BackfillReport
from headrace.loader.rewrite.backlog import compact_backlog
from headrace.loader.rewrite.run import CompactSettings, RewriteReport
from headrace.loader.run import run_load
from headrace.registry.errors import RegistryError
from support.simulation.faults import Faults
from support.simulation.power_loss import Killed
from support.simulation.small_world import BAD, ORDER_V1, ORDER_V2, Lost, SmallWorld, check_whole, make_small

RUNS_MAX = 4
"""Number of loads within which nothing may be left to do: one that catches up and loads, one for new topics that this
one has found, and loads that confirm it."""

REPORTED_ERRORS = (KafkaError, LoaderError, HiveDdlError, AuditError, RegistryError, OSError)
"""Errors that `headrace load` reports in one line. Any other error of a simulated load is a bug."""

Row = tuple[int, int]
COMPACTION = CompactSettings(lambda topic: 0, 2**20, 2**20, lambda topic: "snappy")
ALWAYS = BackfillPeriod("dt=1970-01-01", "dt=9999-12-31")
Report = RunReport | RewriteReport | BackfillReport


class Case:
    """A warehouse in which two files of a topic are loaded. To be loaded are a new topic, a message with a new field,
    and a bad message. Staging has a file of a killed process.

    Args:
        is_loaded: whether these messages are loaded too, and one further message is to be loaded.
    """

    def __init__(self, directory: Path, *, is_loaded: bool = False) -> None:
        self._root, self._copy = directory / "data", directory / "kept"
        self._before = world = SmallWorld(self._root, self._root / "audit.db")
        world.registry.register("orders-value", 1, ORDER_V1)
        world.topic("orders", [1], [1])
        self.load(world)
        world.cluster.topics["orders"].logs[0] += [1]
        self.load(world)
        world.registry.register("orders-value", 3, ORDER_V2)
        world.cluster.topics["orders"].logs[0] += [3, BAD]
        world.registry.register("clicks-value", 2, ORDER_V1)
        world.topic("clicks", [2])
        world.log().storage.put_if_absent("staging/somebody/1.avro", b"")
        if is_loaded:
            self.load(world)
            world.cluster.topics["orders"].logs[1].append(3)
        self._root.rename(self._copy)

    def fresh(self) -> SmallWorld:
        shutil.rmtree(self._root, ignore_errors=True)
        shutil.copytree(self._copy, self._root)
        before, world = self._before, SmallWorld(self._root, self._root / "audit.db")
        world.cluster.topics = copy.deepcopy(before.cluster.topics)
        world.registry.subjects, world.registry.texts = before.registry.subjects, before.registry.texts
        world.hive.tables, world.hive.parts = dict(before.hive.tables), copy.deepcopy(before.hive.parts)
        world._works = before._works
        return world

    @staticmethod
    def load(world: SmallWorld) -> RunReport:
        return run_load(world.ports(), world.settings)

    @staticmethod
    def compact(world: SmallWorld) -> RewriteReport:
        return compact_backlog(world.rewrites(), COMPACTION, lambda topic: 0, waits=False)

    @staticmethod
    def backfill(world: SmallWorld) -> BackfillReport:
        """Runs a backfill of the loaded messages, in two pieces, each with a commit."""
        ports, rewrites = world.ports(), world.rewrites()
        read = BackfillPorts(rewrites, ports.cluster, ports.schemas, ports.run_units, lambda line: None)
        sizes = BackfillSettings(world.settings.plan, world.settings.task, piece_bytes_max=3_000)
        return backfill(read, "orders", ALWAYS, sizes, is_dry=False)


def quick_case(directory: Path, patch: pytest.MonkeyPatch, *, is_loaded: bool = False) -> Case:
    """Returns a case without fsyncs, whose archives and commits are small. Without fsyncs is enough, because a killed
    process leaves everything that it has written."""
    make_small(patch)
    patch.setattr(os, "fsync", lambda descriptor: None)
    return Case(directory, is_loaded=is_loaded)


def under(faults: Faults, world: SmallWorld, act: Callable[[SmallWorld], Report]) -> None:
    """Runs an operation as a process with an injected fault. The process may die or report an error; if it succeeds, it
    must have done everything.

    Args:
        act: the operation, such as a load; returns its report.

    Raises:
        Lost: it has reported success, but not done everything.
    """
    before = world.rows("orders")
    with faults.injected():
        try:
            report = act(world)
        except Killed:
            return
        except REPORTED_ERRORS as error:
            assert str(error), type(error)
            return
        with faults.held():
            if has_messages(report):
                return
            if isinstance(report, RunReport):
                check_whole(world, staging=False)
                return
            commits = (report.commit_number or ()) if isinstance(report, RewriteReport) else report.commits
            if bool(commits) != bool(report.time_partitions) or not are_retained(before, world.rows("orders")):
                raise Lost(f"rewritten in {commits}: {before} became {world.rows('orders')}")


def are_retained(before: Sequence[Row], after: Sequence[Row]) -> bool:
    """Returns whether all rows of `before` are in `after`, and `after` has no duplicates."""
    return set(before) <= set(after) and len(after) == len(set(after))


def has_messages(report: Report) -> bool:
    if not isinstance(report, RunReport):
        return bool(report.problems or report.notes)
    return bool(report.problems or report.notes or report.registry_outage or report.conflict or report.waiting)


def finish(world: SmallWorld, *, staging: bool = True) -> None:
    """Runs loads until nothing is left to do, and checks the result.

    Args:
        staging: whether staging must be empty at the end.

    Raises:
        Lost: rows are missing or duplicated, or a problem needs action.
    """
    for _ in range(RUNS_MAX):
        report = Case.load(world)
        if not report.commit_number:
            break
    if report.commit_number or has_messages(report):
        raise Lost(f"the loads do not come to an end: {report}")
    check_whole(world, staging=staging)
