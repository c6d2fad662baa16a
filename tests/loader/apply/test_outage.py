"""Storage that goes away while committed work is followed: one wait, one reason, and the next run goes on."""

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
from headrace.loader.rewrite.run import CompactSettings, caught_up, compact
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
        "keep",
        "replace",
        "remove",
        "sweep",
    ),
    LocalStaging: ("works", "is_older", "note", "keep", "move", "drop"),
    LocalFiles: ("length", "open", "children", "publish", "bring", "put", "remove"),
}
COMPACTING = CompactSettings(closed_ms=0, bytes_target=10**6, block_bytes=1_000, codec_of=lambda topic: "null")
EVERY = 1 if IS_FULL else 3  # calls, which is each kind of them at some topic
REASON = "ConnectException: Connection refused"


@dataclass
class Outage:
    """The storage goes away at the call of this name that is the `at`th, from 0, and stays away; `waits` are the calls
    that found it gone. `at` counts all calls where the name is ""."""

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


def check_whole(world: World) -> None:
    """What one more load leaves, and that another finds nothing to do."""
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
        ("LocalFiles.put", 6, 0),  # two for each topic, before any file is published
        ("LocalFiles.publish", 4, 4),
        ("LocalCommitStorage.replace", 3, 0),  # of the index, which goes first
    ],
)
def test_one_wait_is_enough_and_all_that_is_left_is_held_back_with_one_reason(
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
    assert world.hive.parts == {}, "nothing is asked for that one could see through"
    assert read_cursor(world.log().storage, "files").upto == 0
    check_whole(world)


def test_topics_that_were_followed_are_not_held_back(world: World) -> None:
    load(world)
    for topic in TOPICS[6:]:
        world.cluster.topics[topic].logs[0] += [TOPICS.index(topic) + 1]
    report = load(world, Outage("LocalFiles.publish", 2))
    assert set(report.problems) == set(TOPICS[6:])
    load(world)
    for topic in TOPICS:
        assert world.rows(topic) == world.produced(topic)


def test_what_waits_in_later_portions_is_held_back_without_being_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a topic of which the portion that met it says nothing."""
    world.hive.failure = MetastoreUnavailable("thrift://x", "connection refused")
    for topic in TOPICS[:3]:
        world.settings = dataclasses.replace(world.settings, topics_only=(topic,))
        load(world)
    world.settings = dataclasses.replace(world.settings, topics_only=())
    world.hive.failure = None
    monkeypatch.setattr(pending, "BYTES_TOGETHER", 1)
    engine = world.ports().engine
    outage = Outage("LocalFiles.publish", 1)
    with outage.injected():
        applied = engine.follow()
    assert outage.waits == ["LocalFiles.publish"]
    assert applied.outage is not None
    assert {topic: one.applier for topic, one in applied.failures.items()} == {
        TOPICS[0]: "partitions",
        TOPICS[1]: "files",
        TOPICS[2]: "files",
    }
    check_whole(world)


def test_a_table_that_is_made_anew_waits_until_its_partitions_are_known_to_be_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run that ends here would leave a table without its older partitions for good."""
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


def test_a_table_that_was_only_to_be_looked_at_is_not_held_back(world: World) -> None:
    load(world)
    world.cluster.topics[TOPICS[3]].logs[0] += [4]
    report = load(world, Outage("LocalFiles.put", 2))  # of the first topic that has nothing to apply
    assert set(report.problems) == {TOPICS[0], TOPICS[3]}
    check = load(world)
    assert check.problems == {}
    assert world.rows(TOPICS[3]) == world.produced(TOPICS[3])


def test_a_run_that_finds_it_gone_while_it_catches_up_does_not_go_on(world: World) -> None:
    world.hive.failure = MetastoreUnavailable("thrift://x", "connection refused")
    load(world)
    world.hive.failure = None
    outage = Outage("LocalFiles.publish", 5)
    with pytest.raises(StorageUnavailable) as raised:
        load(world, outage)
    assert (raised.value.strerror, outage.waits) == (REASON, ["LocalFiles.publish"])
    check_whole(world)


def test_a_rewrite_that_finds_it_gone_while_it_catches_up_does_not_go_on(world: World) -> None:
    world.hive.failure = MetastoreUnavailable("thrift://x", "connection refused")
    load(world)
    world.hive.failure = None
    rewrites = world.rewrites()
    outage = Outage("LocalFiles.publish", 5)
    with outage.injected(), pytest.raises(StorageUnavailable):
        compact(rewrites, TOPICS, COMPACTING, is_dry=False)
    assert outage.waits == ["LocalFiles.publish"]
    assert caught_up(rewrites, is_dry=True)[1] == ()
    check_whole(world)


def test_wherever_it_goes_away_the_next_load_makes_everything_whole(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waits are two at most: what became of a commit whose put got no answer is looked at once more."""
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
            ended.add("told")
            assert report.has_findings or outage.waits == ["LocalCommitStorage.replace"], outage.waits
        except StorageUnavailable as error:
            ended.add("raised")
            assert error.strerror == REASON
        assert len(outage.waits) <= 2, (at, outage.waits)
        load(world)
        assert load(world).problems == {}
        for topic in TOPICS[:2]:
            assert world.rows(topic) == world.produced(topic), at
            assert len(world.audit(topic)) == 1
    assert ended == {"told", "raised"}


def small(root: Path) -> World:
    world = World(root)
    for number, topic in enumerate(TOPICS[:2]):
        world.registry.register(f"{topic}-value", number + 1, ORDER_V1)
        world.topic(topic, [number + 1])
    return world
