"""Every interleaving of a load with compactions and a retention that rewrite its time partition.

The processes are the loader's own code, one call of the storage or the metastore at a time: they read the log, merge,
commit, and apply with the real appliers and cursors. Each may stop forever after any call. A query must never find an
offset twice, and must find each offset until its removal is committed. The exception: a paused process may resume and
switch the partition back to its earlier location. From every state one more load must restore the committed content of
the partition; after that exception only the load a day later, which deletes the replaced files. Each rule that this
depends on is removed in turn to show that the model detects its absence.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from headrace.loader.apply.engine import ApplierEngine
from headrace.loader.apply.files import FilesApplier, _required_of_time_partition
from headrace.loader.apply.layout import partition_values, time_partition_directory
from headrace.loader.apply.partitions import PartitionsApplier
from headrace.loader.apply.replacement import TableReplacement
from headrace.loader.apply.schema import TableSettings
from headrace.loader.commit.commit import Commit, TopicCommit
from headrace.loader.commit.conflict import _topic_conflicts
from headrace.loader.commit.document import read_document
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.partition_index import live_at
from headrace.loader.rewrite.merge import MergeResult, MergeUnit
from headrace.loader.rewrite.retire import READERS_MS, Retirement
from headrace.loader.rewrite.run import CompactSettings, RewritePorts, compact, expire
from headrace.loader.work_unit import FileKind, StagedFile
from support.loader.loader_samples import TIME_PARTITION, committed_file, committed_range, load, topic_commit
from support.simulation.interleavings import Call, Interleavings, MakeCall, Process, Step
from support.simulation.log_model import LogModel, ModelStaging, Prefix, ReadingLog
from support.simulation.remembered import remember_results
from support.simulation.removed_rule import without_rule
from support.simulation.warehouse_model import ModelFiles, ModelHive, Rows, Warehouse, rows_of, staged_name

TOPIC = "orders"
NOW_MS = 1_767_225_600_000 + 30 * 86_400_000
SCHEMA = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
COMPACTION = CompactSettings(lambda topic: 0, 2**20, 2**20, lambda topic: "snappy")


class ProcessDependencies:
    """The dependencies of a process on the simulated world."""

    def __init__(self, name: str, make_call: MakeCall, prefix: Prefix = ()) -> None:
        self.log = ReadingLog(make_call, prefix)
        self.staging, self.files, self.index = ModelStaging(make_call), ModelFiles(make_call), FileIndex(self.log)
        tables = TableSettings(self.files, "headrace", 30_000, lambda topic, state: SCHEMA, SCHEMA)
        hive = ModelHive(make_call, partition_values(TIME_PARTITION))
        replacement = TableReplacement(lambda: hive, tables, self.index, self.log.head, lambda step: None)
        self.partitions = PartitionsApplier(lambda: hive, tables, self.index, replacement)
        appliers = (FilesApplier(self.files, self.index), self.partitions)
        self.engine = ApplierEngine(self.log, self.staging, appliers)
        self.rewrites = RewritePorts(
            self.log,
            self.staging,
            self.files,
            self.index,
            self.engine,
            lambda units: [_merged(make_call, unit) for unit in units],
            lambda: NOW_MS,
            lambda: name,
            "test",
        )


def _merged(make_call: MakeCall, unit: MergeUnit) -> MergeResult:
    staged = make_call("merge", unit.run_id, tuple(source.name for source in unit.sources))
    if staged is None:
        return MergeResult(unit.task, (), error="a source is missing")
    ranges = tuple(one for source in unit.sources for one in source.ranges)
    return MergeResult(
        unit.task,
        (StagedFile(unit.kind, unit.topic, unit.time_partition, staged, 1, "00" * 32, len(rows_of(staged)), ranges),),
        frozenset(range(len(unit.sources))),
    )


def reads_log(make_call: MakeCall, _: None) -> Prefix:
    log = ReadingLog(make_call)
    log.read_state()
    return log.prefix


def loads(name: str, make_call: MakeCall, prefix: Prefix) -> None:
    """Loads the next offset."""
    ports = ProcessDependencies(name, make_call, prefix)
    before = ports.log.state.next_offset(TOPIC, 0)
    at = before or 0
    staged = staged_name((at,))
    make_call("stage", name, (staged,))
    file = dataclasses.replace(committed_file("f.avro", 0, at, at + 1), staged=staged, length=1)
    read = committed_range(0, before, at, at + 1)
    ports.log.try_commit(load(name, {TOPIC: topic_commit(read, files=[file], new=before is None)}))
    ports.engine.apply_pending()


def compacts(name: str, make_call: MakeCall, _: None) -> None:
    compact(ProcessDependencies(name, make_call).rewrites, [TOPIC], COMPACTION, is_dry=False)


def expires(name: str, make_call: MakeCall, _: None) -> None:
    expire(ProcessDependencies(name, make_call).rewrites, {TOPIC: 1}, is_dry=False)


def applies(make_call: MakeCall, _: None) -> None:
    ports = ProcessDependencies("f", make_call)
    ports.engine.apply_pending()


def retires(make_call: MakeCall, _: None) -> None:
    """A day later, deletes the replaced files."""
    ports = ProcessDependencies("r", make_call)
    ports.engine.apply_pending()
    Retirement(ports.log, ports.index, ports.files, ports.partitions).retire(NOW_MS + READERS_MS)


def load_of(name: str) -> Process:
    return Process(name, (reads_log, functools.partial(loads, name)))


APPLY, RETIRE = Process("follow", (applies,)), Process("retire", (retires,))
THIRD = load_of("w3")
COMPACT = Process("k", (functools.partial(compacts, "k"),))
AGAIN = Process("k2", (functools.partial(compacts, "k2"),))
EXPIRE = Process("t", (functools.partial(expires, "t"),))
PREPARED = Warehouse(LogModel(may_archive=False, hints=("cursor/",)))


@functools.cache
def two_files() -> Warehouse:
    """The initial state of every scenario: two loads have published a file each."""
    engine = Interleavings()
    return engine.run_alone(engine.run_alone(PREPARED, load_of("w1")), load_of("w2"))


@functools.cache
def compacted() -> Warehouse:
    return Interleavings().run_alone(two_files(), COMPACT)


@functools.cache
def commit_of(content: bytes) -> TopicCommit:
    return read_document(content, Commit).value.topics[TOPIC]


@functools.cache
def live_offsets(committed: Prefix) -> Rows:
    """The offsets of all live files, in order."""
    files: dict[str, Rows] = {}
    for one in map(commit_of, committed):
        for rewrite in one.rewrites:
            for name in rewrite.replaced:
                files.pop(name, None)
        files |= {file.name: rows_of(file.staged) for file in one.files}
    return tuple(sorted(offset for rows in files.values() for offset in rows))


def committed_location(committed: Prefix) -> str:
    """The location of the partition after the newest commit."""
    generation = max((one.generation for one in (commit_of(content) for content in committed)), default=0)
    return time_partition_directory(TOPIC, FileKind.DATA, TIME_PARTITION, generation) if live_offsets(committed) else ""


class WorldChecker:
    """Checks every step, and once per world whether it can be completed."""

    def __init__(self, engine: Interleavings) -> None:
        self._engine = engine
        self._seen: set[object] = set()

    def check(self, step: Step) -> None:
        for moment in step.moments:
            if moment.error is not None:
                raise AssertionError(f"{moment.process.name} ended with {moment.error!r}")
        if (step.before, step.after) not in self._seen:
            self._seen.add((step.before, step.after))
            self._check_visible(step.before, step.after, step.moment.call)
        if step.after not in self._seen:
            self._seen.add(step.after)
            self._check_completion(step.after)

    def _check_visible(self, before: Warehouse, after: Warehouse, call: Call | None) -> None:
        found, committed = after.visible(), after.paper.committed()
        assert set(found.values()) <= {1}, f"found twice: {found}"
        missing = (before.visible().keys() - found.keys()) & set(live_offsets(committed))
        is_late = call is not None and call.name == "point" and after.location != committed_location(committed)
        assert is_late or not missing, f"no longer found after {call}: {missing}"

    def _check_completion(self, world: Warehouse) -> None:
        """All other processes have died. Checks the result of one undisturbed process now, and of one a day later."""
        committed = world.paper.committed()
        wanted = live_offsets(committed)
        try:
            now = self._engine.run_alone(world, APPLY)
            later = self._engine.run_alone(now, RETIRE)
        except Exception as error:
            raise AssertionError(f"no process can continue: {error}") from error
        # If a resumed process has switched the partition back, the load a day later detects it.
        is_late = now.location != committed_location(committed)
        found = tuple(sorted(now.visible().elements()))
        assert is_late or found == wanted, f"expected {wanted}, found {found}"
        assert tuple(sorted(later.visible().elements())) == wanted, (
            f"a day later expected {wanted}, found {later.visible()}"
        )
        left = {name for name, _ in later.files if name.rpartition("/")[0] != later.location}
        assert not left, f"replaced files are left: {left}"


LOAD_AND_COMPACT, TWO_COMPACT = "a load and a compaction", "two compactions"
PAUSED_A_DAY = "a compaction paused for a day"
SCENARIOS: Mapping[str, tuple[Callable[[], Warehouse], tuple[Process, ...], int]] = {
    LOAD_AND_COMPACT: (two_files, (THIRD, COMPACT), 30_000),
    TWO_COMPACT: (two_files, (COMPACT, AGAIN), 20_000),
    "a compaction and a retention": (two_files, (COMPACT, EXPIRE), 20_000),
    "a load and a retention": (two_files, (THIRD, EXPIRE), 30_000),
    "a load a day later": (compacted, (THIRD, RETIRE), 5_000),
    PAUSED_A_DAY: (two_files, (COMPACT, RETIRE), 4_000),
    "a retention a day later": (compacted, (EXPIRE, RETIRE), 5_000),
}
"""The initial state, the processes, and the least number of steps."""


@pytest.fixture(autouse=True)
def no_cursor_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables the log lines of thousands of processes that find the cursor of another one."""
    remember_results(monkeypatch)
    monkeypatch.setattr(logging.getLogger("headrace.loader.apply.engine"), "disabled", True)


def explore(name: str) -> int:
    first, processes, _ = SCENARIOS[name]
    engine, count = Interleavings(), 0
    checker = WorldChecker(engine)
    for step in engine.steps(first(), processes):
        checker.check(step)
        count += 1
    return count


@pytest.mark.parametrize(
    "name",
    [
        PAUSED_A_DAY,  # the small case for every hour
        *(pytest.param(name, marks=pytest.mark.simulation) for name in SCENARIOS if name != PAUSED_A_DAY),
    ],
)
def test_queries_find_each_offset_once_in_every_interleaving(name: str) -> None:
    assert explore(name) > SCENARIOS[name][2]


RULES: Mapping[str, tuple[str, Callable[..., Any], str, str]] = {
    "the slower of two rewrites is refused": (
        TWO_COMPACT,
        _topic_conflicts,
        "if proposed.rewrites and generation != proposed.generation_before:",
        "if False:",
    ),
    "live files are copied to the new generation": (
        LOAD_AND_COMPACT,
        FilesApplier._required,
        "names = None if time_partition in rewritten else frozenset(added[time_partition])",
        "names = frozenset(added.get(time_partition, {}))",
    ),
    "live files are copied before the partition moves": (
        LOAD_AND_COMPACT,
        FilesApplier._link,
        "self.files.link_or_copy(topic, source, file.path)",
        "pass",
    ),
    "later files are added to the newest generation": (
        LOAD_AND_COMPACT,
        _required_of_time_partition,
        "newest = generation_at(indexed, step.commit_number)",
        "newest = 0",
    ),
    "replaced files are no longer live": (
        LOAD_AND_COMPACT,
        live_at,
        "(not file.until or file.until > commit_number)",
        "True",
    ),
    "the partition is repaired before files are deleted": (
        LOAD_AND_COMPACT,
        Retirement._retire_topic,
        "self._repair_partitions(topic, committed, state)",
        "pass",
    ),
    "files are deleted only after all appliers": (
        PAUSED_A_DAY,
        Retirement._retire_commit,
        "if not all(self._is_applied(topic, commit_number) for topic in topics):",
        "if False:",
    ),
}
VIOLATIONS = "found twice|no longer found|expected|a day later|no process can continue|are left|ended with"


@pytest.mark.simulation
@pytest.mark.parametrize("rule", RULES)
def test_without_any_of_the_rules_an_interleaving_breaks(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    name, function, line, instead = RULES[rule]
    first = SCENARIOS[name][0]
    first()
    without_rule(monkeypatch, function, line, instead)
    with pytest.raises(AssertionError, match=VIOLATIONS):
        explore(name)
