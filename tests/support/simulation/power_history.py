"""Runs and records the life of a small warehouse, and checks each disk that a power loss may leave at any moment of
it."""

from __future__ import annotations

import copy
import dataclasses
import random
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.audit.row import AuditOutcome
from headrace.audit.storage.store import AuditStore
from headrace.hive_ddl.table import TableState
from headrace.loader.apply.layout import time_partition_directory
from headrace.loader.commit import commit_log
from headrace.loader.commit.commit import Commit
from headrace.loader.commit.commit_log import FORMAT_PATH, CommitLog, CommitResult
from headrace.loader.commit.state import LoaderState
from headrace.loader.rewrite.backfill import BackfillPorts, BackfillSettings, backfill
from headrace.loader.rewrite.backfill_report import BackfillPeriod
from headrace.loader.rewrite.merge import MergeResult, MergeUnit
from headrace.loader.rewrite.run import CompactSettings, compact
from headrace.loader.run import run_load
from headrace.loader.storage.local import local_storage
from headrace.loader.work_unit import UnitResult, WorkUnit
from support.loader.file_checksums import checksum_of
from support.simulation.power_loss import Image, Killed, Recorder, Survivors, images
from support.simulation.small_world import BAD, ORDER_V1, ORDER_V2, Lost, SmallWorld, make_small

DAY_MS = 86_400_000
GENERATION = re.compile(r"/_g\d+/")


@dataclass(frozen=True)
class Outside:
    """The state outside of the lost disk at a moment: metastore, audit database, and what drivers have reported.

    Attributes:
        tables, parts: tables and partitions of the metastore.
        audit: the audit database.
        committed: (commit number, run id) of the commits that drivers have reported as made.
    """

    tables: Mapping[tuple[str, str], TableState]
    parts: Mapping[Any, Any]
    audit: bytes
    committed: tuple[tuple[int, str], ...]


class History:
    """Runs a small warehouse and records the operations on its disk.

    Args:
        root: directory that is created; the warehouse is some levels below it.
        without: the fsync to omit, see `Recorder`; "" for none.
        kill_before: number of the operation before which the process is killed; None for none.
    """

    def __init__(self, root: Path, *, without: str = "", kill_before: int | None = None) -> None:
        self.root = root
        root.mkdir()
        self.world = SmallWorld(root / "new" / "data", root.parent / "audit.db")
        self.world.audit_path.unlink(missing_ok=True)
        self.committed: list[tuple[int, str]] = []
        self.ends: list[int] = []  # the last operation of each step
        self.recorder = Recorder(root, without, kill_before, self._note)
        self._outside = Outside({}, {}, b"", ())
        self._audit = b""
        self._version: tuple[int, bytes, int] = (0, b"", 0)

    def live(self, steps: Sequence[Callable[[History], None]]) -> History:
        """Runs the steps in order. If the process is killed in a step, the next step runs in a new process."""
        with pytest.MonkeyPatch.context() as patch, self.recorder.recording():
            make_small(patch)
            patch.setattr(CommitLog, "try_commit", self._remembering(CommitLog.try_commit))
            patch.setattr(AuditStore, "close", self._keeping(AuditStore.close))
            for step in steps:
                try:
                    step(self)
                except Killed:
                    self.recorder.revive()
                self.ends.append(len(self.recorder.operations) - 1)
        return self

    def _remembering(self, try_commit: Callable[[CommitLog, Commit], CommitResult]) -> Any:
        def remember(log: CommitLog, proposal: Commit) -> CommitResult:
            commit_result = try_commit(log, proposal)
            if commit_result.commit is not None:
                self.committed.append((commit_result.commit.commit_number, commit_result.commit.run_id))
            return commit_result

        return remember

    def _keeping(self, close: Callable[[AuditStore], None]) -> Any:
        def keep(store: AuditStore) -> None:
            close(store)
            assert store.path is not None
            self._audit = store.path.read_bytes()

        return keep

    def _note(self) -> Outside:
        hive = self.world.hive
        version = (len(hive.executed), self._audit, len(self.committed))
        if version != self._version:
            self._version = version
            self._outside = Outside(dict(hive.tables), copy.deepcopy(hive.parts), self._audit, tuple(self.committed))
        return self._outside

    def load(self) -> None:
        report = run_load(self.world.ports(), self.world.settings)
        assert not report.has_findings, report.problems

    def disks(
        self, *, seed: int = 0, moments: Collection[int] | None = None, mixed: Collection[int] = ()
    ) -> Iterator[tuple[str, Image, Outside]]:
        """Yields each possible disk once, with its name and the state outside of it at that time.

        Args:
            moments: the operations after which power is lost; None means all.
            mixed: the moments at which also a random mix of durable and lost changes is tried.
        """
        chance = random.Random(seed)
        survivors, seen = Survivors(), set()
        for number, operation in enumerate(self.recorder.operations):
            survivors.after(operation)
            if moments is not None and number not in moments:
                continue
            outside = self.recorder.notes[number]
            for name, image in images(survivors, self.recorder.top, chance, int(number in mixed)):
                key = (image.key, id(outside))
                if key not in seen:
                    seen.add(key)
                    yield f"operation {number} ({name}, seed {seed}): {operation}", image, outside


def of_an_older_release(history: History) -> None:
    """Creates an empty commit log in the format of an older release."""
    storage = local_storage(history.world.warehouse).commits
    storage.prepare()
    storage.put_if_absent(commit_log.FORMAT_PATH, b'{"format":1,"read_min":1,"write_min":1}')


def new_topics(history: History) -> None:
    """Loads two topics and a bad message, in a commit for each topic."""
    world = history.world
    world.registry.register("orders-value", 1, ORDER_V1)
    world.registry.register("clicks-value", 2, ORDER_V1)
    world.topic("orders", [1, BAD, 1], [1])
    world.topic("clicks", [2, 2])
    history.load()


def more_messages(history: History) -> None:
    history.world.cluster.topics["orders"].logs[0] += [1, 1]
    history.load()


def killed_when_its_tasks_were_done(history: History) -> None:
    """Runs a load that is killed after its tasks, so that staging has files that no run will commit."""
    ports = history.world.ports()
    history.world.cluster.topics["clicks"].logs[0] += [2]

    def run_units(units: Sequence[WorkUnit]) -> list[UnitResult]:
        history.world.pool(units)
        raise Killed

    run_load(dataclasses.replace(ports, run_units=run_units), history.world.settings)


def schema_changes(history: History) -> None:
    history.world.registry.register("orders-value", 3, ORDER_V2)
    history.world.cluster.topics["orders"].logs[1] += [3]
    history.load()


def compacted(history: History) -> None:
    """Compacts a topic, while another load adds a file. The compaction merges the files of a time partition into one,
    in the directory of a new generation, and the added file is moved there."""
    settings = CompactSettings(lambda topic: 0, 2**20, 2**20, lambda topic: "snappy")
    ports = history.world.rewrites()

    def run_merges(units: Sequence[MergeUnit]) -> Sequence[MergeResult]:
        more_messages(history)
        return ports.run_merges(units)

    report = compact(dataclasses.replace(ports, run_merges=run_merges), ["orders"], settings, is_dry=False)
    assert report.commit_number and not report.problems, report


def backfilled(history: History) -> None:
    """Runs a backfill that replaces all files of a topic, in several commits."""
    ports, rewrites, settings = history.world.ports(), history.world.rewrites(), history.world.settings
    report = backfill(
        BackfillPorts(rewrites, ports.cluster, ports.schemas, ports.run_units, lambda line: None),
        "orders",
        BackfillPeriod("dt=1970-01-01", "dt=9999-12-31"),
        BackfillSettings(settings.plan, settings.task, piece_bytes_max=2_000),
        is_dry=False,
    )
    assert len(report.commits) > 1 and not report.problems, report


def a_day_later(history: History) -> None:
    """Runs a load a day after files were replaced, which deletes them."""
    history.world.clock_ms += 2 * DAY_MS
    history.world.cluster.topics["orders"].logs[0] += [3]
    history.load()


def nothing_new(history: History) -> None:
    history.load()


WHOLE_LIFE = (
    new_topics,
    more_messages,
    killed_when_its_tasks_were_done,
    schema_changes,
    compacted,
    a_day_later,
    nothing_new,
)


class Aftermath:
    """Restores disks in the directory of the history, and continues the warehouse from each."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._works = 1000

    def check(self, name: str, image: Image, outside: Outside) -> None:
        """Restores a disk, checks that everything committed and published is on it, runs a load, and checks that no
        message is missing or duplicated.

        Args:
            name: name of the disk, for messages.
            outside: the state outside of the disk at that time.

        Raises:
            Lost: a check failed.
        """
        try:
            shutil.rmtree(self._history.root)
            self._history.root.mkdir()
            image.write(self._history.root)
            world = self._world(outside)
            self._check_log(world, outside)
            self._check_visible(world)
            self._check_schemas(world, outside)
            report = run_load(world.ports(), world.settings)
            if report.has_findings or report.waiting:
                raise Lost(f"{report.problems} {report.waiting}")
            self._check_whole(world)
        except Exception as error:
            raise Lost(f"after {name}: {type(error).__name__}: {error}") from error

    def _world(self, outside: Outside) -> SmallWorld:
        before = self._history.world
        world = SmallWorld(self._history.world.warehouse.parent, before.audit_path)
        world.cluster.topics = before.cluster.topics
        world.registry.subjects, world.registry.texts = before.registry.subjects, before.registry.texts
        world.hive.tables, world.hive.parts = dict(outside.tables), copy.deepcopy(dict(outside.parts))
        world.clock_ms = before.clock_ms
        world.audit_path.unlink(missing_ok=True)
        if outside.audit:
            world.audit_path.write_bytes(outside.audit)
        self._works += 1000
        world._works = self._works  # unused ids
        return world

    def _check_log(self, world: SmallWorld, outside: Outside) -> None:
        log = world.log()
        for topic in log.read_state().topics.values() if outside.committed else ():
            for schema_id in topic.load_schema.writer_ids:
                if not (log.storage.read(f"schemas/{schema_id}.avsc") or b"").startswith(b"{"):
                    raise Lost(f"schema {schema_id} is not cached")
        if outside.committed and log.storage.read(FORMAT_PATH) is None:
            raise Lost("the format of the log is missing")
        head = log.head()
        for commit_number, run_id in outside.committed:
            if commit_number > head or log.commit(commit_number).run_id != run_id:
                raise Lost(f"commit {commit_number} is not that of {run_id} any more")

    def _check_visible(self, world: SmallWorld) -> None:
        committed = committed_files(world.log())
        for path in world.warehouse.rglob("*.avro"):
            name = path.relative_to(world.warehouse).as_posix()
            if name.startswith(("_headrace/", "_catalog/")):
                continue
            first = GENERATION.sub("/", name)
            if committed.get(first) != checksum_of(path.read_bytes()):
                raise Lost(f"{name} is visible and {'not whole' if first in committed else 'not committed'}")

    def _check_schemas(self, world: SmallWorld, outside: Outside) -> None:
        for table in outside.tables.values():
            named = table.properties.get("avro.schema.url", "").removeprefix("file://")
            for path in (Path(named), Path(named).with_name("current.avsc")) if named else ():
                if not path.is_file() or not path.read_bytes().startswith(b"{"):
                    raise Lost(f"the schema of table {table.name} is not there: {path}")

    def _check_whole(self, world: SmallWorld) -> None:
        for topic in world.cluster.topics:
            found = sorted([*world.rows(topic), *world.quarantined(topic)])
            if found != world.produced(topic):
                raise Lost(f"of {topic} there is {found} and should be {world.produced(topic)}")
        rows = sum(len(world.rows(topic)) for topic in world.cluster.topics)
        counted = sum(
            row.count
            for topic in world.cluster.topics
            for row in world.audit(topic)
            if row.outcome is AuditOutcome.WRITTEN
        )
        if rows != counted:
            raise Lost(f"the audit has {counted} of {rows} rows")
        left = sorted(world.log().storage.children("staging"))
        if left:
            raise Lost(f"staging is left: {left}")


def committed_files(log: CommitLog) -> dict[str, str]:
    """Returns the checksum of every committed file, by the path that it had in the first generation."""
    state: LoaderState = log.read_state()
    found = {}
    for commit_number in range(1, state.commit_number + 1):
        for topic, committed in log.commit(commit_number).topics.items():
            for file in committed.files:
                parent = time_partition_directory(state.topics[topic].directory, file.kind, file.time_partition, 0)
                found[f"{parent}/{file.name}"] = file.checksum
    return found
