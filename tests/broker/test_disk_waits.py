"""Fsyncs run in threads: a slow one does not delay other clients."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.broker.config import BrokerConfig, FsyncMode
from headrace.broker.coordinator import coordinator, transactions
from headrace.broker.coordinator.offsets import CommittedOffset
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.node import BrokerNode
from headrace.broker.producer_ids import BLOCK_SIZE
from headrace.broker.topics import Topic
from support.broker.broker_samples import NOW_MS, append, batch, keyed_batch
from support.logs import logged

SHORT_MS = 1000


@pytest.fixture
def fsync_callers(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The broker's functions that called fsync, by `thread` and `event loop`."""
    found: dict[str, set[str]] = {"thread": set(), "event loop": set()}

    def recording(force: Callable[[int], None]) -> Callable[[int], None]:
        def recording_fsync(fd: int) -> None:
            frame = sys._getframe(1)
            while frame.f_back is not None and frame.f_code.co_filename.endswith("log/files.py"):
                frame = frame.f_back
            is_thread = threading.current_thread() is not threading.main_thread()
            found["thread" if is_thread else "event loop"].add(frame.f_code.co_name)
            force(fd)

        return recording_fsync

    monkeypatch.setattr(os, "fsync", recording(os.fsync))
    monkeypatch.setattr(os, "fdatasync", recording(os.fdatasync))
    return found


@pytest.mark.parametrize("fsync", FsyncMode)
def test_event_loop_never_calls_fsync(
    tmp_path: Path, fsync: FsyncMode, fsync_callers: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "COMPACT_BYTES", 600)
    monkeypatch.setattr(transactions, "COMPACT_BYTES", 600)
    clock = [NOW_MS]

    async def live(node: BrokerNode) -> None:
        clean = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        await node.changes.create_topics([Topic("plain", uuid.uuid4(), 1, {"retention.ms": str(SHORT_MS)})])
        await node.changes.create_topics([Topic("table", uuid.uuid4(), 1, clean)])
        for _ in range(2):
            for number in range(60):
                append(node.log("plain", 0), batch(b"x" * 30))
                append(node.log("table", 0), keyed_batch((b"k%d" % (number % 5), b"value %d" % number)))
                await node.groups.commits.store("group", {("plain", 0): CommittedOffset(number, 0, "", clock[0])})
            for log in (node.log("plain", 0), node.log("table", 0)):
                node.flusher.mark_dirty(log)
                await node.flusher.flush(log)
            await node.maintenance.clean()
        assert node.cleaner.compactions == 2
        await asyncio.gather(*(node.producer_ids.allocate() for _ in range(BLOCK_SIZE + 1)))
        for number in range(10):
            user = await node.transactions.init_producer(f"id-{number}", 60_000, None)
            await node.transactions.add_partitions(f"id-{number}", user, [("plain", 0)])
            await node.transactions.end_transaction(f"id-{number}", user, is_commit=True)
        clock[0] += 10 * SHORT_MS
        await node.maintenance.run_housekeeping()
        assert not node.log("plain", 0).closed
        await node.groups.store.compact()
        await node.changes.alter_topic("plain", lambda _: {"retention.ms": "5"})
        await node.changes.add_partitions("plain", 2)
        node.log("plain", 0).advance_log_start(3)
        await asyncio.wrap_future(node.checkpoints.write_log_starts())
        await node.changes.delete_topic(node.topic("table"))

    async def main() -> None:
        node = BrokerNode(BrokerConfig(tmp_path, fsync=fsync, segment_bytes_max=400), now_ms=lambda: clock[0])
        at_start = set(fsync_callers["event loop"])
        await live(node)
        assert fsync_callers["event loop"] - at_start == set()
        assert {"sync_files", "fsync_staged_swap", "complete_swap", "write_cleaned_segment"} <= fsync_callers["thread"]
        await node.close()

    asyncio.run(main())


def test_flush_error_reaches_only_the_waiters_of_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        node = BrokerNode(BrokerConfig(tmp_path, fsync=FsyncMode.ALWAYS), now_ms=lambda: NOW_MS)
        await node.changes.create_topics([Topic("t", uuid.uuid4(), 2, {})])
        logs = [node.log("t", index) for index in range(2)]
        for log in logs:
            append(log, batch(b"x"))
        with monkeypatch.context() as patched:
            patched.setattr(PartitionLog, "flush_job", lambda _: [][0])
            waits = asyncio.gather(*map(node.flusher.flush, logs), return_exceptions=True)
            outcomes = await asyncio.wait_for(waits, 30)
        assert [type(outcome) for outcome in outcomes] == [IndexError, IndexError]
        assert [record.args for record in logged(caplog, "broker.log.flusher")] == [(2,)]
        assert [log.recovery_point for log in logs] == [0, 0]
        await asyncio.wait_for(asyncio.gather(*map(node.flusher.flush, logs)), 30)
        assert [log.recovery_point for log in logs] == [1, 1]
        await node.close()

    asyncio.run(main())


@pytest.mark.parametrize("fsync", [FsyncMode.INTERVAL, FsyncMode.NONE])
def test_failed_flush_is_repeated_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fsync: FsyncMode
) -> None:
    """For example, the system could not start a thread. No further write marks the log dirty again."""

    async def main() -> None:
        node = BrokerNode(BrokerConfig(tmp_path, fsync=fsync, flush_interval_ms=5), now_ms=lambda: NOW_MS)
        await node.changes.create_topics([Topic("t", uuid.uuid4(), 1, {})])
        log = node.log("t", 0)
        append(log, batch(b"x"))
        log.roll(NOW_MS)
        node.flusher.mark_dirty(log)
        tried = asyncio.Event()

        def fails(*_: object) -> None:
            tried.set()
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(node._executor, "submit", fails)
            node.start()
            await asyncio.wait_for(tried.wait(), 30)
        async with asyncio.timeout(30):
            while log.recovery_point < 1:
                await asyncio.sleep(0.005)
        assert "can't start new thread" in caplog.text
        await node.close()

    asyncio.run(main())
