"""Every interleaving of a load, of compactions and of a retention that rewrite the time partition that it loads into.

The processes are the loader's own code, one call of the storage or the metastore at a time: they read the log, merge,
offer, and follow with real appliers and cursors. Each may stop for ever after any call. A query never finds an offset
twice, and what it could find it finds until that was taken away; but where a process puts the partition back to where
it belonged when it fell asleep. From every state one more load makes the partition hold what was committed, in that
case one a day later, which retires the replaced files. The rules that this rests on are taken away one by one to show
that the model would notice.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from headrace.loader.apply.engine import ApplierEngine
from headrace.loader.apply.files import FilesApplier, _wanted_of
from headrace.loader.apply.layout import partition_values, time_partition_directory
from headrace.loader.apply.partitions import PartitionsApplier
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
from support.simulation.interleavings import Ask, Call, Interleavings, Process, Step
from support.simulation.log_model import LogModel, ModelStaging, Prefix, ReadingLog
from support.simulation.remembered import remember_results
from support.simulation.removed_rule import without_rule
from support.simulation.warehouse_model import ModelFiles, ModelHive, Rows, Warehouse, rows_of, staged_name

TOPIC = "orders"
NOW_MS = 1_767_225_600_000 + 30 * 86_400_000
SCHEMA = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
COMPACTION = CompactSettings(0, 2**20, 2**20, lambda topic: "snappy")


class RunDependencies:
    """What a process reaches the world through."""

    def __init__(self, name: str, ask: Ask, prefix: Prefix = ()) -> None:
        self.log = ReadingLog(ask, prefix)
        self.staging, self.files, self.index = ModelStaging(ask), ModelFiles(ask), FileIndex(self.log)
        tables = TableSettings(self.files, "headrace", 30_000, lambda topic, state: SCHEMA, SCHEMA)
        hive = ModelHive(ask, partition_values(TIME_PARTITION))
        self.partitions = PartitionsApplier(lambda: hive, tables, self.index)
        appliers = (FilesApplier(self.files, self.index), self.partitions)
        self.engine = ApplierEngine(self.log, self.staging, appliers)
        self.rewrites = RewritePorts(
            self.log,
            self.staging,
            self.files,
            self.index,
            self.engine,
            lambda units: [_merged(ask, unit) for unit in units],
            lambda: NOW_MS,
            lambda: name,
            "test",
        )


def _merged(ask: Ask, unit: MergeUnit) -> MergeResult:
    staged = ask("merge", unit.run_id, tuple(source.name for source in unit.sources))
    if staged is None:
        return MergeResult(unit.task, (), "a source is gone")
    ranges = tuple(one for source in unit.sources for one in source.ranges)
    return MergeResult(
        unit.task,
        (StagedFile(unit.kind, unit.topic, unit.time_partition, staged, 1, "00" * 32, len(rows_of(staged)), ranges),),
    )


def plans(ask: Ask, _: None) -> Prefix:
    log = ReadingLog(ask)
    log.read_state()
    return log.prefix


def loads(name: str, ask: Ask, prefix: Prefix) -> None:
    """The next offset."""
    ports = RunDependencies(name, ask, prefix)
    before = ports.log.state.next_offset(TOPIC, 0)
    at = before or 0
    staged = staged_name((at,))
    ask("stage", name, (staged,))
    file = dataclasses.replace(committed_file("f.avro", 0, at, at + 1), staged=staged, length=1)
    read = committed_range(0, before, at, at + 1)
    ports.log.try_commit(load(name, {TOPIC: topic_commit(read, files=[file], new=before is None)}))
    ports.engine.follow()


def compacts(name: str, ask: Ask, _: None) -> None:
    compact(RunDependencies(name, ask).rewrites, [TOPIC], COMPACTION, is_dry=False)


def retains(name: str, ask: Ask, _: None) -> None:
    expire(RunDependencies(name, ask).rewrites, {TOPIC: 1}, is_dry=False)


def follows(ask: Ask, _: None) -> None:
    ports = RunDependencies("f", ask)
    ports.engine.follow()


def retires(ask: Ask, _: None) -> None:
    """A day later, what was replaced goes."""
    ports = RunDependencies("r", ask)
    ports.engine.follow()
    Retirement(ports.log, ports.index, ports.files, ports.partitions).retire(NOW_MS + READERS_MS)


def load_of(name: str) -> Process:
    return Process(name, (plans, functools.partial(loads, name)))


FOLLOW, RETIRE = Process("follow", (follows,)), Process("retire", (retires,))
THIRD = load_of("w3")
COMPACT = Process("k", (functools.partial(compacts, "k"),))
AGAIN = Process("k2", (functools.partial(compacts, "k2"),))
EXPIRE = Process("t", (functools.partial(retains, "t"),))
PREPARED = Warehouse(LogModel(packs=False, hints=("cursor/",)))


@functools.cache
def two_files() -> Warehouse:
    """What every scenario begins with: two loads have published a file each."""
    engine = Interleavings()
    return engine.alone(engine.alone(PREPARED, load_of("w1")), load_of("w2"))


@functools.cache
def compacted() -> Warehouse:
    return Interleavings().alone(two_files(), COMPACT)


@functools.cache
def commit_of(content: bytes) -> TopicCommit:
    return read_document(content, Commit).value.topics[TOPIC]


@functools.cache
def owed(committed: Prefix) -> Rows:
    """The offsets of the files that belong to the topic, in order."""
    files: dict[str, Rows] = {}
    for one in map(commit_of, committed):
        for rewrite in one.rewrites:
            for name in rewrite.replaced:
                files.pop(name, None)
        files |= {file.name: rows_of(file.staged) for file in one.files}
    return tuple(sorted(offset for rows in files.values() for offset in rows))


def due_location(committed: Prefix) -> str:
    """Where the newest commit has the partition point."""
    generation = max((one.generation for one in (commit_of(content) for content in committed)), default=0)
    return time_partition_directory(TOPIC, FileKind.DATA, TIME_PARTITION, generation) if owed(committed) else ""


class Judge:
    """Looks at every step, and once at what can become of each world."""

    def __init__(self, engine: Interleavings) -> None:
        self._engine = engine
        self._seen: set[object] = set()

    def look(self, step: Step) -> None:
        for moment in step.moments:
            if moment.error is not None:
                raise AssertionError(f"{moment.process.name} ended with {moment.error!r}")
        if (step.before, step.after) not in self._seen:
            self._seen.add((step.before, step.after))
            self._shows_no_less(step.before, step.after, step.moment.call)
        if step.after not in self._seen:
            self._seen.add(step.after)
            self._can_be_mended(step.after)

    def _shows_no_less(self, before: Warehouse, after: Warehouse, call: Call | None) -> None:
        found, committed = after.visible(), after.paper.committed()
        assert set(found.values()) <= {1}, f"found twice: {found}"
        gone = (before.visible().keys() - found.keys()) & set(owed(committed))
        is_late = call is not None and call.name == "point" and after.location != due_location(committed)
        assert is_late or not gone, f"not found any more after {call}: {gone}"

    def _can_be_mended(self, world: Warehouse) -> None:
        """Whoever was at work has died: what one undisturbed process does now, and one a day later."""
        committed = world.paper.committed()
        wanted = owed(committed)
        try:
            now = self._engine.alone(world, FOLLOW)
            later = self._engine.alone(now, RETIRE)
        except Exception as error:
            raise AssertionError(f"nobody can go on: {error}") from error
        # Where a process that slept until the partition was elsewhere has put it back, that is seen a day later.
        is_late = now.location != due_location(committed)
        found = tuple(sorted(now.visible().elements()))
        assert is_late or found == wanted, f"found are {found} and not {wanted}"
        assert tuple(sorted(later.visible().elements())) == wanted, f"a day later {later.visible()} and not {wanted}"
        left = {name for name, _ in later.files if name.rpartition("/")[0] != later.location}
        assert not left, f"replaced files are left: {left}"


LOAD_AND_COMPACT, TWO_COMPACT = "a load and a compaction", "two compactions"
SLEEPS_A_DAY = "a compaction that sleeps a day"
SCENARIOS: Mapping[str, tuple[Callable[[], Warehouse], tuple[Process, ...], int]] = {
    LOAD_AND_COMPACT: (two_files, (THIRD, COMPACT), 30_000),
    TWO_COMPACT: (two_files, (COMPACT, AGAIN), 20_000),
    "a compaction and a retention": (two_files, (COMPACT, EXPIRE), 20_000),
    "a load and a retention": (two_files, (THIRD, EXPIRE), 30_000),
    "a load, and a day has passed": (compacted, (THIRD, RETIRE), 5_000),
    SLEEPS_A_DAY: (two_files, (COMPACT, RETIRE), 4_000),
    "a retention, and a day has passed": (compacted, (EXPIRE, RETIRE), 5_000),
}
"""What there is at first, who is at work, and the least number of steps."""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of processes that find another one's cursor."""
    remember_results(monkeypatch)
    monkeypatch.setattr(logging.getLogger("headrace.loader.apply.engine"), "disabled", True)


def explore(name: str) -> int:
    first, processes, _ = SCENARIOS[name]
    engine, count = Interleavings(), 0
    judge = Judge(engine)
    for step in engine.steps(first(), processes):
        judge.look(step)
        count += 1
    return count


@pytest.mark.parametrize(
    "name",
    [
        SLEEPS_A_DAY,  # the small case for every hour
        *(pytest.param(name, marks=pytest.mark.simulation) for name in SCENARIOS if name != SLEEPS_A_DAY),
    ],
)
def test_in_every_interleaving_queries_find_each_offset_once(name: str) -> None:
    assert explore(name) > SCENARIOS[name][2]


RULES: Mapping[str, tuple[str, Callable[..., Any], str, str]] = {
    "of two rewrites the slower one is refused": (
        TWO_COMPACT,
        _topic_conflicts,
        "if wanted.rewrites and generation != wanted.generation_before:",
        "if False:",
    ),
    "what lives on is brought to the new generation": (
        LOAD_AND_COMPACT,
        FilesApplier._wanted,
        "names = None if time_partition in rewritten else frozenset(added[time_partition])",
        "names = frozenset(added.get(time_partition, {}))",
    ),
    "and is there before the partition is": (
        LOAD_AND_COMPACT,
        FilesApplier._bring,
        "self.files.bring(topic, source, one.name)",
        "pass",
    ),
    "what is added later goes to the newest generation": (
        LOAD_AND_COMPACT,
        _wanted_of,
        "newest = generation_at(indexed, step.commit_number)",
        "newest = 0",
    ),
    "what was replaced is live no more": (
        LOAD_AND_COMPACT,
        live_at,
        "(not file.until or file.until > commit_number)",
        "True",
    ),
    "before files are removed the partition is looked at": (
        LOAD_AND_COMPACT,
        Retirement._retire_topic,
        "self._mend_partitions(topic, committed, state)",
        "pass",
    ),
    "files are removed only when all appliers have passed": (
        SLEEPS_A_DAY,
        Retirement._retire_slot,
        "if not all(self._is_passed(topic, commit_number) for topic in topics):",
        "if False:",
    ),
}
BREAKS = "found twice|not found any more|found are|a day later|nobody can go on|are left|ended with"


@pytest.mark.simulation
@pytest.mark.parametrize("rule", RULES)
def test_without_any_of_the_rules_an_interleaving_breaks(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    name, function, line, instead = RULES[rule]
    first = SCENARIOS[name][0]
    first()
    without_rule(monkeypatch, function, line, instead)
    with pytest.raises(AssertionError, match=BREAKS):
        explore(name)
