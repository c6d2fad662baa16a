"""The storage becomes unavailable while commits are applied: the run waits once, reports one reason, and the next run
continues."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.loader.apply import pending
from headrace.loader.apply.engine import cursor_path, read_cursor
from headrace.loader.errors import StorageUnavailable
from headrace.loader.report import RunReport
from headrace.loader.rewrite.run import CompactSettings, catch_up, compact
from headrace.loader.run import run_load
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.loader.storage.local.files import LocalFiles
from headrace.loader.storage.local.staging import LocalStaging
from support.loader.loader_fakes import ORDER_V1, World
from support.simulation.extent import IS_FULL
from support.simulation.remembered import keep_journal_in_memory, remember_results

TOPICS = tuple(f"topic{number:02}" for number in range(12))
CALLS: dict[type, tuple[str, ...]] = {
    LocalCommitStorage: (
        "read",
        "exists",
        "children",
        "prepare",
        "put_if_absent",
        "persist",
        "replace",
        "remove",
        "delete_temporary_files",
    ),
    LocalStaging: ("run_ids", "is_older", "write_file", "persist", "move", "drop"),
    LocalFiles: ("length", "lengths", "open", "children", "publish", "link_or_copy", "put_all", "remove"),
}
COMPACTING = CompactSettings(
    closed_ms_of=lambda topic: 0, bytes_target=10**6, block_bytes=1_000, codec_of=lambda topic: "null"
)
EVERY = 1 if IS_FULL else 3  # calls; this covers each kind of call for at least one topic
REASON = "ConnectException: Connection refused"


@dataclass
class Outage:
    """Makes the storage unavailable from one call on: the call number `at`, counted from 0, among the calls of `name`,
    or among all calls if `name` is "". `waits` are the failed calls."""

    name: str = ""
    at: int = 10**9
    calls: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def injected(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for owner, names in CALLS.items():
                for name in names:
                    patch.setattr(owner, name, self._failing(f"{owner.__name__}.{name}", getattr(owner, name)))
            yield

    def _failing(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def call(*arguments: Any, **named: Any) -> Any:
            if self.waits or (self.name in ("", name) and self._number() == self.at):
                self.waits.append(name)
                raise StorageUnavailable(errno.EIO, REASON, f"hdfs://nn/w/{len(self.waits)}")
            self.calls.append(name)
            return plain(*arguments, **named)

        return call

    def _number(self) -> int:
        return self.calls.count(self.name) if self.name else len(self.calls)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    for number, topic in enumerate(TOPICS):
        world.registry.register(f"{topic}-value", number + 1, ORDER_V1)
        world.topic(topic, [number + 1] * 3)
    return world


def load(world: World, outage: Outage | None = None) -> RunReport:
    ports = world.ports()
    with (outage or Outage()).injected():
        return run_load(ports, world.settings)


def check_complete(world: World) -> None:
    """Checks that one more load completes the tables and that another has nothing to do."""
    assert load(world).problems == {}
    for topic in TOPICS:
        assert world.rows(topic) == world.produced(topic)
        assert len(world.audit(topic)) == 1
    assert world.cluster.committed.keys() == {tp for tp in world.cluster.committed if tp.topic in TOPICS}
    assert len(world.cluster.committed) == len(TOPICS)
    assert world.log().storage.children("staging") == ()
    executed = len(world.hive.executed)
    assert load(world).commit_number == 0
    assert len(world.hive.executed) == executed


@pytest.mark.parametrize(
    ("call", "at", "done"),
    [
        ("LocalFiles.put_all", 0, 0),  # of all topics, before any file is published
        ("LocalFiles.publish", 4, 4),
        ("LocalCommitStorage.replace", 3, 0),  # of the index, which goes first
    ],
)
def test_an_outage_is_waited_for_once_and_holds_back_the_rest_with_one_reason(
    world: World, call: str, at: int, done: int
) -> None:
    outage = Outage(call, at)
    report = load(world, outage)
    assert report.commit_number == 1
    assert outage.waits == [call]
    assert report.has_findings
    assert set(report.problems) == set(TOPICS)
    ((reason,),) = set(report.problems.values())
    assert f"{REASON}: hdfs://nn/w/1" in reason
    assert sum(world.rows(topic) != [] for topic in TOPICS) == done
    assert world.hive.parts == {}, "no partition is added without a working storage"
    assert read_cursor(world.log().storage, "files").commit_number == 0
    check_complete(world)


def test_an_outage_does_not_hold_back_applied_topics(world: World) -> None:
    load(world)
    for topic in TOPICS[6:]:
        world.cluster.topics[topic].logs[0] += [TOPICS.index(topic) + 1]
    report = load(world, Outage("LocalFiles.publish", 2))
    assert set(report.problems) == set(TOPICS[6:])
    load(world)
    for topic in TOPICS:
        assert world.rows(topic) == world.produced(topic)


def test_an_outage_holds_back_later_portions_without_reading_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic is held back even if it has no commit in the portion with the outage."""
    world.hive.failure = MetastoreUnavailable("thrift://x", "connection refused")
    for topic in TOPICS[:3]:
        world.settings = dataclasses.replace(world.settings, topics_only=(topic,))
        load(world)
    world.settings = dataclasses.replace(world.settings, topics_only=())
    world.hive.failure = None
    monkeypatch.setattr(pending, "PORTION_BYTES_MAX", 1)
    engine = world.ports().engine
    outage = Outage("LocalFiles.publish", 1)
    with outage.injected():
        applied = engine.apply_pending()
    assert outage.waits == ["LocalFiles.publish"]
    assert applied.outage is not None
    assert {topic: one.applier for topic, one in applied.failures.items()} == {
        TOPICS[0]: "partitions",
        TOPICS[1]: "files",
        TOPICS[2]: "files",
    }
    check_complete(world)


def test_a_dropped_table_is_created_only_after_its_partitions_are_marked_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the table were created first, a run that ends before the partitions would leave it without its older
    partitions forever."""
    load(world)
    key = ("headrace", TOPICS[0])
    parts = world.hive.parts.pop(key)
    del world.hive.tables[key]
    replace = LocalCommitStorage.replace

    def full(commits: LocalCommitStorage, name: str, content: bytes, **named: bool) -> None:
        if name == cursor_path("partitions"):
            raise OSError(errno.ENOSPC, "No space left on device", name)
        replace(commits, name, content, **named)

    world.cluster.topics[TOPICS[0]].logs[0] += [1]
    with monkeypatch.context() as patch:
        patch.setattr(LocalCommitStorage, "replace", full)
        report = load(world)
    assert "No space left on device" in str(report.problems[TOPICS[0]])
    assert key not in world.hive.tables
    load(world)
    assert world.hive.parts[key] == parts
    assert world.rows(TOPICS[0]) == world.produced(TOPICS[0])


def test_an_outage_does_not_hold_back_a_table_that_was_only_checked(world: World) -> None:
    load(world)
    world.cluster.topics[TOPICS[3]].logs[0] += [4]
    report = load(world, Outage("LocalFiles.open", 0))  # of the first topic that has nothing to apply
    assert set(report.problems) == {TOPICS[0], TOPICS[3]}
    check = load(world)
    assert check.problems == {}
    assert world.rows(TOPICS[3]) == world.produced(TOPICS[3])


def test_a_run_with_an_outage_during_catch_up_stops(world: World) -> None:
    world.hive.failure = MetastoreUnavailable("thrift://x", "connection refused")
    load(world)
    world.hive.failure = None
    outage = Outage("LocalFiles.publish", 5)
    with pytest.raises(StorageUnavailable) as raised:
        load(world, outage)
    assert (raised.value.strerror, outage.waits) == (REASON, ["LocalFiles.publish"])
    check_complete(world)


def test_a_rewrite_with_an_outage_during_catch_up_stops(world: World) -> None:
    world.hive.failure = MetastoreUnavailable("thrift://x", "connection refused")
    load(world)
    world.hive.failure = None
    rewrites = world.rewrites()
    outage = Outage("LocalFiles.publish", 5)
    with outage.injected(), pytest.raises(StorageUnavailable):
        compact(rewrites, TOPICS, COMPACTING, is_dry=False)
    assert outage.waits == ["LocalFiles.publish"]
    assert catch_up(rewrites, is_dry=True)[1] == ()
    check_complete(world)


def test_after_an_outage_at_any_call_the_next_load_completes_the_tables(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are at most two waits: after a put without a response, the log is read once more for its outcome."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    remember_results(monkeypatch)
    keep_journal_in_memory(monkeypatch)
    whole = Outage()
    ended = set()
    load(small(memory_path / "whole"), whole)
    for at in range(0, len(whole.calls), EVERY):
        world = small(memory_path / f"{at}")
        outage = Outage(at=at)
        try:
            report = load(world, outage)
            ended.add("reported")
            is_unchecked = any("not compared" in note for note in report.notes)
            assert report.has_findings or is_unchecked or outage.waits == ["LocalCommitStorage.replace"], outage.waits
        except StorageUnavailable as error:
            ended.add("raised")
            assert error.strerror == REASON
        assert len(outage.waits) <= 2, (at, outage.waits)
        load(world)
        assert load(world).problems == {}
        for topic in TOPICS[:2]:
            assert world.rows(topic) == world.produced(topic), at
            assert len(world.audit(topic)) == 1
    assert ended == {"reported", "raised"}


def small(root: Path) -> World:
    world = World(root)
    for number, topic in enumerate(TOPICS[:2]):
        world.registry.register(f"{topic}-value", number + 1, ORDER_V1)
        world.topic(topic, [number + 1])
    return world
