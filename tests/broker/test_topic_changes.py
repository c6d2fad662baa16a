"""Topics are created, extended, altered and deleted while the broker serves other requests. No request waits for the
disk, and no change is visible or persisted in part, even if the broker stops in between."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.metadata import MetadataRequest

from headrace.broker import checkpoint_writer, loop_yielder, maintenance
from headrace.broker import node as node_module
from headrace.broker.config import BrokerConfig
from headrace.broker.coordinator.records import CommittedOffset
from headrace.broker.data_directory import CLEAN_MARKER, DELETED_DIRECTORY, LOCK_FILE
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers import create_topics, metadata
from headrace.broker.handlers.context import RequestContext
from headrace.broker.log import flusher
from headrace.broker.log.checkpoints import LOG_STARTS, RECOVERY_POINTS, read_checkpoint
from headrace.broker.loop_yielder import LoopYielder
from headrace.broker.node import BrokerNode
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.topics import Topic
from support.broker.broker_samples import NOW_MS, append, batch, contents
from support.simulation.broker_power_loss import Inline

TIMEOUT_S = 60


def with_node(directory: Path, work: Callable[[BrokerNode], Awaitable[None]], **config: Any) -> None:
    async def main() -> None:
        node = BrokerNode(BrokerConfig(directory, **config), now_ms=lambda: NOW_MS)
        try:
            await asyncio.wait_for(work(node), TIMEOUT_S)
        finally:
            await node.close()

    asyncio.run(main())


def new(name: str, partitions: int = 1) -> Topic:
    return Topic(name, uuid.uuid4(), partitions)


async def watch_while(work: Awaitable[Any], check: Callable[[], None]) -> int:
    """Calls `check` whenever other tasks run during `work`; returns the number of calls."""
    doing, count = asyncio.ensure_future(work), 0
    while not doing.done():
        check()
        count += 1
        await asyncio.sleep(0)
    await doing
    return count


def partition_counts(node: BrokerNode, name: str) -> tuple[int, int]:
    """Returns the topic's number of partitions, and how many of them have a log."""
    topic = node.topics.get(name)
    return topic.partitions if topic is not None else 0, sum(key[0] == name for key in node.logs)


def test_loop_yielder_yields_after_a_burst() -> None:
    async def work() -> list[int]:
        now, others, seen = [0.0], [0], []

        async def count() -> None:
            while True:
                others[0] += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        await asyncio.sleep(0)
        given = LoopYielder(lambda: now[0])
        for now[0] in (0.001, 0.0019, 0.002, 0.0039, 0.0041):
            await given.yield_if_due()
            seen.append(others[0])
        counting.cancel()
        return seen

    assert asyncio.run(work()) == [1, 1, 2, 2, 3]


def test_topic_changes_and_maintenance_fsync_only_in_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("old", 1, {"retention.bytes": "0"})
        log = node.log("old", 0)
        for _ in range(4):
            append(log, batch(b"v"))
            log.roll(NOW_MS)
        append(log, batch(b"kept"))
        waited: list[str] = []
        for name in ("fsync", "fdatasync"):
            real = getattr(os, name)

            def force(fd: int, name: str = name, real: Callable[[int], None] = real) -> None:
                thread = "loop" if threading.current_thread() is threading.main_thread() else "thread"
                waited.append(thread)
                real(fd)

            monkeypatch.setattr(os, name, force)
        assert await node.changes.create_topics([new("t", 3)]) == {}
        assert await node.changes.ensure_topics(["asked"]) == {}
        await node.changes.add_partitions("t", 5)
        await node.changes.alter_topic("t", lambda _: {"retention.ms": "5"})
        await asyncio.wrap_future(node.checkpoints.write_log_starts())
        await node.maintenance.run_housekeeping()
        assert contents(log) == [(4, b"kept")]
        await node.groups.commits.store("g", {("t", 0): CommittedOffset(1, 0, "", NOW_MS)})
        await node.changes.delete_topic(node.topic("t"))
        assert len(waited) > 20 and set(waited) == {"thread"}

    with_node(tmp_path, work)


def test_topic_changes_become_visible_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_yielder, "BURST_S", 0)

    async def work(node: BrokerNode) -> None:
        seen = set()

        def check() -> None:
            seen.add(partition_counts(node, "t"))
            if (topic := node.topics.get("t")) is not None:
                assert node.topics.by_id(topic.topic_id) is topic

        assert await watch_while(node.changes.create_topics([new("t", 30)]), check) > 30
        assert await watch_while(node.changes.add_partitions("t", 50), check) > 20
        assert await watch_while(node.changes.delete_topic(node.topic("t")), check) > 50
        assert seen == {(0, 0), (30, 30), (50, 50)}
        assert await watch_while(node.maintenance.run_housekeeping(), lambda: None) > 1

    with_node(tmp_path, work)


def state_after_start(directory: Path) -> dict[str, tuple[int, list[Any]]]:
    """Starts a broker on a copy of a directory; returns its topics with partition counts and the records of their first
    partition."""
    found = {}

    async def check(node: BrokerNode) -> None:
        for topic in node.topics:
            if not topic.is_internal:
                assert partition_counts(node, topic.name) == (topic.partitions, topic.partitions)
                found[topic.name] = (topic.partitions, contents(node.log(topic.name, 0)))
                append(node.log(topic.name, topic.partitions - 1), batch(b"more"))

    with_node(directory, check)
    return found


@pytest.mark.parametrize("change", ["create", "grow", "delete"])
def test_kill_during_a_topic_change_leaves_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(loop_yielder, "BURST_S", 0)
    monkeypatch.setattr(node_module, "ThreadPoolExecutor", Inline)
    copies: list[Path] = []

    async def work(node: BrokerNode) -> None:
        for name in ("kept", "t"):
            node.changes.create_topic(name, 2, {})
            append(node.log(name, 0), batch(b"v"))
            node.flusher.mark_dirty(node.log(name, 0))
        await node.flusher.flush_dirty()
        await node.maintenance.run_housekeeping()

        def copy() -> None:
            copies.append(tmp_path / f"copy-{len(copies)}")
            shutil.copytree(tmp_path / "data", copies[-1], ignore=shutil.ignore_patterns(LOCK_FILE, CLEAN_MARKER))

        changes: dict[str, Callable[[], Awaitable[Any]]] = {
            "create": lambda: node.changes.create_topics([new("n", 3)]),
            "grow": lambda: node.changes.add_partitions("t", 4),
            "delete": lambda: node.changes.delete_topic(node.topic("t")),
        }
        await watch_while(changes[change](), copy)
        copy()

    with_node(tmp_path / "data", work)
    record = [(0, b"v")]
    before = {"kept": (2, record), "t": (2, record)}
    after = {
        "create": before | {"n": (3, [])},
        "grow": before | {"t": (4, record)},
        "delete": {"kept": (2, record)},
    }[change]
    found = [state_after_start(copy) for copy in copies]
    assert found[0] == before and found[-1] == after
    assert all(one in (before, after) for one in found)


@pytest.mark.parametrize("fault", ["renamed", "removed", "gone"])
def test_recreated_topic_is_empty_if_old_directories_were_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Neither its records nor its committed offsets; "gone" is a directory that an operator deleted."""
    data, rename = tmp_path / "data", Path.rename
    woken: list[int] = []

    def renamed(path: Path, target: Path) -> Path:
        if path.name == "t-1" and target.name.endswith(DELETED_DIRECTORY):
            raise OSError(28, "No space left on device")
        return rename(path, target)

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 3, {})
        for index in range(3):
            append(node.log("t", index), batch(b"old"))
            node.log("t", index).waiters.add(woken.append)
        await node.groups.commits.store("g", {("t", 2): CommittedOffset(1, -1, "", NOW_MS)})
        with monkeypatch.context() as failing:
            if fault == "gone":
                shutil.rmtree(data / "t-1")
            else:
                failing.setattr(Path, "rename", renamed)
            if fault == "removed":
                failing.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
            await node.changes.delete_topic(node.topic("t"))
        assert len(woken) == 3 and not node.groups.offsets.of_group("g")
        assert [path.name for path in data.glob("t-?")] == (["t-1"] if fault == "removed" else [])
        assert not await node.changes.create_topics([new("t", 3)])
        assert [contents(node.log("t", index)) for index in range(3)] == [[], [], []]
        assert [path.name for path in data.glob("*-stray")] == (["t-1-stray"] if fault == "removed" else [])

    with_node(data, work)


def test_one_of_two_concurrent_creations_is_refused(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        requests = [[new("same", 2), new("mine")], [new("same", 3), new("other")]]
        first, second, requested = await asyncio.gather(
            node.changes.create_topics(requests[0]),
            node.changes.create_topics(requests[1]),
            node.changes.ensure_topics(["same", "asked"]),
        )
        assert (first, requested) == ({}, {})
        assert {name: refused.code for name, refused in second.items()} == {"same": ErrorCode.TOPIC_ALREADY_EXISTS}
        assert node.topic("same") is requests[0][0]
        assert sorted(node.topics.names()) == ["asked", "mine", "other", "same"]

    with_node(tmp_path, work)


def test_concurrent_changes_of_one_topic_are_all_applied(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        topic = node.changes.create_topic("t", 1, {})
        await asyncio.gather(
            node.changes.alter_topic("t", lambda topic: {**topic.configs, "retention.ms": "5"}),
            node.changes.add_partitions("t", 3),
            node.changes.alter_topic("t", lambda topic: {**topic.configs, "segment.ms": "6000"}),
        )
        changed = node.topic("t")
        assert (changed.partitions, dict(changed.configs)) == (3, {"retention.ms": "5", "segment.ms": "6000"})
        assert {node.log("t", index).limits.segment_ms_max for index in range(3)} == {6000}
        results = await asyncio.gather(
            node.changes.add_partitions("t", 4),
            node.changes.add_partitions("t", 4),
            node.changes.delete_topic(topic),
            node.changes.delete_topic(topic),
            node.changes.create_topics([new("t")]),
            node.changes.delete_topic(topic),
            return_exceptions=True,
        )
        codes = [each.code if isinstance(each, RequestRefused) else each for each in results]
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [None, ErrorCode.INVALID_PARTITIONS, None, missing, {}, missing]
        assert partition_counts(node, "t") == (1, 1)

    with_node(tmp_path, work)


def test_disconnected_clients_change_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_yielder, "BURST_S", 0)

    async def work(node: BrokerNode) -> None:
        creation = asyncio.ensure_future(node.changes.create_topics([new("t", 20)]))
        for _ in range(5):
            await asyncio.sleep(0)
        creation.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creation
        assert partition_counts(node, "t") == (0, 0) and (tmp_path / "t-0").exists()
        # The node closes after the change has finished.

    async def after_restart(node: BrokerNode) -> None:
        assert partition_counts(node, "t") == (20, 20)

    with_node(tmp_path, work)
    with_node(tmp_path, after_restart)


def test_checkpoints_are_written_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        log = node.log("t", 0)
        append(log, batch(b"a", b"b", b"c"))
        node.flusher.mark_dirty(log)
        await node.flusher.flush_dirty()
        write, may_write, inside = checkpoint_writer.write_checkpoint, threading.Event(), [0]

        def slow(path: Path, offsets: Any) -> None:
            inside[0] += 1
            assert inside[0] == 1 and may_write.wait(TIMEOUT_S)
            write(path, offsets)
            inside[0] -= 1

        monkeypatch.setattr(checkpoint_writer, "write_checkpoint", slow)
        writes = [node.checkpoints.write_log_starts(), node.checkpoints.write()]
        log.advance_log_start(2)
        writes.append(node.checkpoints.write_log_starts())
        may_write.set()
        for each in writes:
            await asyncio.wrap_future(each)
        assert read_checkpoint(tmp_path / LOG_STARTS) == {("t", 0): 2}
        assert read_checkpoint(tmp_path / RECOVERY_POINTS)["t", 0] == 3

    with_node(tmp_path, work)


def test_new_topic_waits_for_checkpoints_after_a_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoints of the deletion could not be written, and the earlier ones have a row of the deleted topic."""

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        append(node.log("t", 0), batch(b"v"))
        node.flusher.mark_dirty(node.log("t", 0))
        await node.flusher.flush_dirty()
        write, times = checkpoint_writer.write_checkpoint, [0]

        def failing(path: Path, offsets: Any) -> None:
            times[0] += 1
            if times[0] == 4:
                raise OSError(28, "No space left on device")
            write(path, offsets)

        monkeypatch.setattr(checkpoint_writer, "write_checkpoint", failing)
        old = node.checkpoints.write()
        await node.changes.delete_topic(node.topic("t"))
        await asyncio.wrap_future(old)
        assert read_checkpoint(tmp_path / RECOVERY_POINTS)["t", 0] == 1
        assert await node.changes.create_topics([new("t")]) == {}
        assert ("t", 0) not in read_checkpoint(tmp_path / RECOVERY_POINTS)

    with_node(tmp_path, work)


@pytest.mark.parametrize(("module", "slow"), [(maintenance, "read_facts"), (flusher, "sync_files")])
def test_retention_does_not_touch_a_recreated_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, slow: str
) -> None:
    """The topic was deleted and created again while an old segment was read, or while a directory was fsynced."""

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"retention.ms": "1000"})
        old, loop, real = node.log("t", 0), asyncio.get_running_loop(), getattr(module, slow)
        for _ in range(3):
            append(old, batch(b"v", timestamp_ms=NOW_MS - 10_000))
            old.roll(NOW_MS)
        append(old, batch(b"v", timestamp_ms=NOW_MS - 10_000))

        async def replaced() -> None:
            await node.changes.delete_topic(node.topic("t"))
            assert await node.changes.create_topics([new("t")]) == {}

        def meanwhile(*arguments: Any) -> Any:
            found = real(*arguments)
            if node.logs["t", 0] is old:
                asyncio.run_coroutine_threadsafe(replaced(), loop).result(TIMEOUT_S)
            return found

        monkeypatch.setattr(module, slow, meanwhile)
        await node.maintenance.run_housekeeping()
        log = node.log("t", 0)
        assert log is not old
        append(log, batch(b"new"))
        assert contents(log) == [(0, b"new")]
        assert [path.name for path in log.directory.glob("*.log*")] == [f"{0:020d}.log"]

    with_node(tmp_path, work)


def test_topic_of_transactions_is_created_once_and_retried_after_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    async def work(node: BrokerNode) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", full)
            with pytest.raises(RequestRefused) as refused:
                await node.transactions.init_producer("one", 1000, None)
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE and not node.transactions.all
        producers = await asyncio.gather(
            *(node.transactions.init_producer(name, 1000, None) for name in ("one", "two", "three"))
        )
        assert len({user.producer_id for user in producers}) == 3 and set(node.transactions.all) == {
            "one",
            "two",
            "three",
        }

    async def after_restart(node: BrokerNode) -> None:
        assert set(node.transactions.all) == {"one", "two", "three"}

    with_node(tmp_path, work)
    with_node(tmp_path, after_restart)


@pytest.mark.parametrize("name", ["__transaction_state", "__consumer_offsets"])
def test_clients_cannot_create_internal_topics(tmp_path: Path, name: str) -> None:
    async def work(node: BrokerNode) -> None:
        before = node.topics.get(name)
        context = RequestContext(node, 5, "test", "127.0.0.1")
        requested = MetadataRequest(
            version=5,
            topics=[MetadataRequest.MetadataRequestTopic(version=5, name=name)],
            allow_auto_topic_creation=True,
        )
        results = metadata.handle(context, requested)
        [found] = (await results if isinstance(results, Awaitable) else results).topics
        assert found.error_code == (ErrorCode.NONE if before else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        creatable = CreateTopicsRequest.CreatableTopic(
            version=5, name=name, num_partitions=2, replication_factor=1, assignments=[], configs=[]
        )
        request = CreateTopicsRequest(version=5, topics=[creatable], timeout_ms=1000, validate_only=False)
        [refused] = (await create_topics.handle(context, request)).topics
        assert refused.error_code == (ErrorCode.TOPIC_ALREADY_EXISTS if before else ErrorCode.INVALID_TOPIC)
        assert node.topics.get(name) is before
        assert (await node.transactions.init_producer("shop", 1000, None)).epoch == 0
        assert node.topic(name).partitions == 1

    with_node(tmp_path, work)


def test_transactions_use_an_existing_topic_of_transactions(tmp_path: Path) -> None:
    async def first(node: BrokerNode) -> None:
        assert await node.changes.create_topics([new("__transaction_state", 1)]) == {}
        assert (await node.transactions.init_producer("shop", 1000, None)).epoch == 0

    async def after_restart(node: BrokerNode) -> None:
        assert (await node.transactions.init_producer("shop", 1000, None)).epoch == 1

    with_node(tmp_path, first)
    with_node(tmp_path, after_restart)


def test_closed_node_leaves_no_threads(tmp_path: Path) -> None:
    def broker_threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("broker-")]

    before = len(broker_threads())

    async def work(node: BrokerNode) -> None:
        assert await node.changes.create_topics([new("t")]) == {}
        await node.flusher.sync([tmp_path])
        assert len(broker_threads()) >= before + 2

    with_node(tmp_path, work)
    assert len(broker_threads()) == before
