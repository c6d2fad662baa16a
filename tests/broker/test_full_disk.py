"""Behaviour on a full disk: a refused operation changes nothing, and all work resumes when there is space."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import DeleteRecordsRequest

from headrace.broker import data_directory
from headrace.broker import topics as topics_module
from headrace.broker.config import BrokerConfig
from headrace.broker.coordinator import coordinator as coordinator_module
from headrace.broker.coordinator.records import CommittedOffset
from headrace.broker.data_directory import CLEAN_MARKER, FileRemover
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers import delete_records
from headrace.broker.handlers.context import RequestContext
from headrace.broker.log import checkpoints
from headrace.broker.log.checkpoints import LOG_STARTS, RECOVERY_POINTS, read_checkpoint
from headrace.broker.log.partition_log import LogLimits
from headrace.broker.node import BrokerNode
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.server import BrokerServer
from headrace.broker.topics import Topic
from support.broker.broker_samples import NOW_MS, append, batch, contents, open_sample_log
from support.logs import logged

REAL_WRITE_BYTES, REAL_MKDIR = Path.write_bytes, Path.mkdir


def full(*args: Any, **kwargs: Any) -> Any:
    raise OSError(28, "No space left on device")


def full_for(suffix: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Fails for paths with this suffix."""
    return lambda path, *args, **kwargs: (full if str(path).endswith(suffix) else real)(path, *args, **kwargs)


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_segment_that_cannot_be_closed_stays_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, is_clean: bool
) -> None:
    log = open_sample_log(tmp_path, limits=LogLimits(segment_bytes_max=200)).log
    for number in range(2):
        append(log, batch(b"%d" % number))
    monkeypatch.setattr(Path, "write_bytes", full_for(suffix, REAL_WRITE_BYTES))
    with pytest.raises(RequestRefused) as refused:
        append(log, batch(b"too much"))
    assert refused.value.code is ErrorCode.STORAGE_ERROR
    assert (log.log_end_offset, log.closed) == (2, [])
    monkeypatch.undo()
    for number in range(2, 6):
        assert append(log, batch(b"%d" % number)) == number
    if is_clean:
        log.close()
    reopened = open_sample_log(tmp_path, is_clean=is_clean).log
    assert contents(reopened) == [(number, b"%d" % number) for number in range(6)]


def test_incomplete_snapshot_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An incomplete snapshot is not treated as written; the state survives the deletion of the messages."""
    log = open_sample_log(tmp_path).log
    raw = batch(b"once", producer_id=7, epoch=0, sequence=0)
    append(log, raw)

    def write_half(path: Path, content: bytes) -> None:
        is_snapshot = path.name.endswith(".snapshot")
        REAL_WRITE_BYTES(path, content[: len(content) // 2] if is_snapshot else content)
        if is_snapshot:
            full()

    with monkeypatch.context() as failing:
        failing.setattr(Path, "write_bytes", write_half)
        with pytest.raises(OSError, match="No space"):
            log.roll(NOW_MS)
    log.roll(NOW_MS)
    log.flushed(log.flush_job())
    FileRemover().remove(log.drop_segments(1))
    reopened = open_sample_log(tmp_path, recovery_point=1, log_start_offset=1).log
    assert append(reopened, raw) == 0
    assert reopened.log_end_offset == 1


@pytest.mark.parametrize("suffix", [".log", ".index"])
@pytest.mark.parametrize("is_removable", [True, False])
def test_segment_that_cannot_be_renamed_is_deleted_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, is_removable: bool
) -> None:
    """A full directory may have no space for a longer name. A start would treat a gap between segments as data loss."""
    log = open_sample_log(tmp_path, limits=LogLimits(segment_bytes_max=100)).log
    for number in range(6):
        append(log, batch(b"%d" % number))
    log.flushed(log.flush_job())
    with monkeypatch.context() as failing:
        failing.setattr(Path, "rename", full_for(suffix, Path.rename))
        if not is_removable:
            failing.setattr(Path, "unlink", full_for(suffix, Path.unlink))
        is_stuck = suffix == ".log" and not is_removable
        for _ in range(2):
            with pytest.raises(OSError, match="No space") if is_stuck else contextlib.nullcontext():
                FileRemover().remove(log.drop_segments(1))
    start = log.log_start_offset
    assert start == (0 if is_stuck else 2) and len(list(tmp_path.glob("*.log*"))) == 6 - start
    FileRemover().remove(log.drop_segments(1))
    reopened = open_sample_log(tmp_path, recovery_point=6, log_start_offset=log.log_start_offset).log
    assert contents(reopened) == [(number, b"%d" % number) for number in range(start + 1, 6)]


def test_failed_deletions_are_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems need space to delete. Other files are deleted at once, the failed ones at the next deletion or
    housekeeping run."""
    paths = [tmp_path / name for name in ("a.deleted", "b.deleted", "c.deleted")]
    for path in paths:
        path.touch()
    removal, real = FileRemover(), Path.unlink
    with monkeypatch.context() as failing:
        failing.setattr(Path, "unlink", full_for("b.deleted", real))
        for files in (paths, []):
            with pytest.raises(OSError, match="No space"):
                removal.remove(files)
        assert list(tmp_path.iterdir()) == [paths[1]]
    removal.remove([tmp_path / "gone with its topic.deleted"])
    assert not list(tmp_path.iterdir())


def test_housekeeping_writes_checkpoints_despite_a_group_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without checkpoints a start after a crash would read everything written since."""

    async def work(node: BrokerNode) -> None:
        log = node.log(node.changes.create_topic("t", 1, {}).name, 0)
        append(log, batch(b"x"))
        node.flusher.mark_dirty(log)
        await node.flusher.flush(log)

        async def fails() -> None:
            raise RequestRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no space")

        with monkeypatch.context() as failing:
            failing.setattr(node.groups, "run_housekeeping", fails)
            with pytest.raises(RequestRefused, match="no space"):
                await node.maintenance.run_housekeeping()
        assert read_checkpoint(tmp_path / RECOVERY_POINTS)["t", 0] == 1
        log.roll(NOW_MS)
        with monkeypatch.context() as failing:
            failing.setattr(Path, "unlink", full_for(".deleted", Path.unlink))
            for path in log.drop_segments(1):
                with pytest.raises(OSError, match="No space"):
                    await asyncio.wrap_future(node._unlink_later([path]))
            assert list(log.directory.glob("*.deleted"))
            with pytest.raises(OSError, match="No space"):
                await node.maintenance.run_housekeeping()
        await node.maintenance.run_housekeeping()
        assert not list(log.directory.glob("*.deleted"))

    with_node(tmp_path, work)


def with_node(directory: Path, work: Callable[[BrokerNode], Any], clock: Callable[[], int] = lambda: NOW_MS) -> None:
    async def main() -> None:
        node = BrokerNode(BrokerConfig(directory, housekeeping_interval_ms=5, flush_interval_ms=5), now_ms=clock)
        try:
            await work(node)
        finally:
            await node.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("target", "fails"),
    [("pathlib.Path.mkdir", full_for("-1", REAL_MKDIR)), ("os.fsync", full)],
    ids=["mkdir", "fsync"],
)
def test_topics_are_not_created_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, fails: Callable[..., Any]
) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("grows", 1, {})
        monkeypatch.setattr(target, fails)
        with pytest.raises(RequestRefused) as at_once:
            node.changes.create_topic("t", 2, {})
        with pytest.raises(RequestRefused) as grown:
            await node.changes.add_partitions("grows", 2)
        not_created = await node.changes.create_topics([Topic(name, uuid.uuid4(), 2) for name in ("t", "u")])
        refusals = [at_once.value, grown.value, *not_created.values()]
        assert [refused.code for refused in refusals] == [ErrorCode.STORAGE_ERROR] * 4
        monkeypatch.undo()
        assert [topic.name for topic in node.topics if not topic.is_internal] == ["grows"]
        assert node.topic("grows").partitions == 1
        assert sorted(path.name for path in tmp_path.glob("*-?")) == ["__consumer_offsets-0", "grows-0"]
        await node.maintenance.run_housekeeping()
        node.changes.create_topic("t", 2, {})
        append(node.log("t", 1), batch(b"x"))

    with_node(tmp_path, work)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_maintenance_resumes_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Retention frees what it can on the full disk, and the rest later; one line without a traceback is logged."""
    now = [NOW_MS]

    async def work(node: BrokerNode) -> None:
        stuck = node.log(node.changes.create_topic("a", 1, {}).name, 0)
        freed = node.log(node.changes.create_topic("b", 1, {}).name, 0)
        for log in (stuck, freed):
            append(log, batch(b"old"))
        freed.roll(NOW_MS)
        await node.groups.commits.store("g", {("a", 0): CommittedOffset(1, -1, "", NOW_MS)})
        monkeypatch.setattr(Path, "write_bytes", full_for(".index", REAL_WRITE_BYTES))
        monkeypatch.setattr("os.pwritev", full)
        now[0] += 30 * 86_400_000
        node.start()
        await until(lambda: freed.log_start_offset == 1)
        await until(lambda: bool(logged(caplog, "broker.node", "No space left")))
        assert (stuck.log_start_offset, list(node.groups.groups)) == (0, ["g"])
        monkeypatch.undo()
        await until(lambda: stuck.log_start_offset == 1 and not node.groups.groups)

    with_node(tmp_path, work, lambda: now[0])
    assert all(record.exc_info is None for record in caplog.records)


def test_maintenance_error_of_one_log_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [NOW_MS]

    async def work(node: BrokerNode) -> None:
        stuck = node.log(node.changes.create_topic("a", 1, {}).name, 0)
        append(stuck, batch(b"old"))
        node.flusher.mark_dirty(stuck)
        await node.flusher.flush(stuck)
        await node.groups.commits.store("g", {("a", 0): CommittedOffset(1, -1, "", NOW_MS)})
        monkeypatch.setattr(Path, "write_bytes", full_for(f"a-0/{0:020}.index", REAL_WRITE_BYTES))
        now[0] += 30 * 86_400_000
        with pytest.raises(OSError, match="No space left"):
            await node.maintenance.run_housekeeping()
        assert (stuck.log_start_offset, list(node.groups.groups)) == (0, [])
        assert read_checkpoint(tmp_path / RECOVERY_POINTS)["a", 0] == 1
        monkeypatch.undo()

    with_node(tmp_path, work, lambda: now[0])


def test_groups_continue_after_a_failed_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coordinator_module, "COMPACT_BYTES", 2000)

    async def work(node: BrokerNode) -> None:
        async def commit_until(condition: Callable[[], bool]) -> None:
            while not condition():
                await node.groups.commits.store("g", {("t", 0): CommittedOffset(1, -1, "", NOW_MS)})

        node.start()
        monkeypatch.setattr(Path, "write_bytes", full_for(".index", REAL_WRITE_BYTES))
        await commit_until(
            lambda: bool(logged(caplog, "broker.coordinator.coordinator", "No space left", level=logging.ERROR))
        )
        monkeypatch.undo()
        monkeypatch.setattr(coordinator_module, "COMPACT_BYTES", 2000)
        log = node.log("__consumer_offsets", 0)
        await commit_until(lambda: log.log_start_offset > 0)

    caplog.set_level(logging.INFO)
    with_node(tmp_path, work)


def test_shutdown_on_a_full_disk_causes_a_scan_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fill(node: BrokerNode) -> None:
        append(node.log(node.changes.create_topic("t", 1, {}).name, 0), batch(b"kept"))
        monkeypatch.setattr(Path, "write_bytes", full_for(".index", REAL_WRITE_BYTES))

    async def look(node: BrokerNode) -> None:
        assert contents(node.log("t", 0)) == [(0, b"kept")]

    with_node(tmp_path, fill)
    assert not (tmp_path / CLEAN_MARKER).exists()
    assert logged(caplog, "broker.node", "No space left")
    monkeypatch.undo()
    with_node(tmp_path, look)
    assert (tmp_path / CLEAN_MARKER).exists()


def space_for_checkpoints_when(monkeypatch: pytest.MonkeyPatch, is_free: Callable[[], bool]) -> None:
    real = checkpoints.write_atomically
    monkeypatch.setattr(
        checkpoints, "write_atomically", lambda path, content: (real if is_free() else full)(path, content)
    )


async def delete_below(node: BrokerNode, offsets: dict[str, int]) -> list[tuple[ErrorCode, int]]:
    """Returns for each topic's first partition the error and the new log start offset."""
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    expected = [
        topic(
            version=2,
            name=name,
            partitions=[topic.DeleteRecordsPartition(version=2, partition_index=0, offset=offset)],
        )
        for name, offset in offsets.items()
    ]
    response = await delete_records.handle(
        RequestContext(node, 2, "client", "127.0.0.1"),
        DeleteRecordsRequest(version=2, topics=expected, timeout_ms=1000),
    )
    return [(one.error_code, one.low_watermark) for each in response.topics for one in each.partitions]


def test_delete_records_succeeds_with_the_space_it_frees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For two topics: a deleted segment of one frees space to persist the new start of the other."""

    async def work(node: BrokerNode) -> None:
        large, small = (node.log(node.changes.create_topic(name, 1, {}).name, 0) for name in ("large", "small"))
        for log in (large, small):
            for number in range(4):
                append(log, batch(b"%d" % number))
        large.roll(NOW_MS)
        append(large, batch(b"4"))
        oldest = large.closed[0].path()
        space_for_checkpoints_when(monkeypatch, lambda: not list(oldest.parent.glob(f"{oldest.name}*")))
        assert await delete_below(node, {"small": 2, "large": 4, "none": 1}) == [
            (ErrorCode.NONE, 2),
            (ErrorCode.NONE, 4),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ]
        assert read_checkpoint(tmp_path / LOG_STARTS) == {("small", 0): 2, ("large", 0): 4}
        assert contents(large) == [(4, b"4")]

    with_node(tmp_path, work)


def test_start_on_a_full_disk_uses_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reserve, real = tmp_path / data_directory.RESERVE_FILE, topics_module.write_atomically

    def full_with_reserve(path: Path, content: bytes) -> None:
        (full if reserve.exists() else real)(path, content)

    async def serve(*topics: str) -> list[str]:
        server = BrokerServer(BrokerConfig(tmp_path, port=0))
        await server.start()
        for name in topics:
            server.node.changes.create_topic(name, 1, {})
        names = sorted(topic.name for topic in server.node.topics)
        server.stop()
        await server.wait()
        return names

    names = asyncio.run(serve("t"))
    assert reserve.stat().st_size == reserve.stat().st_blocks * 512 == data_directory.RESERVE_BYTES
    monkeypatch.setattr(topics_module, "write_atomically", full_with_reserve)
    assert asyncio.run(serve()) == names
    assert reserve.exists() and logged(caplog, "broker.server", "disk is full")
    reserve.unlink()
    monkeypatch.setattr(topics_module, "write_atomically", full)
    with pytest.raises(OSError, match="No space"):
        asyncio.run(serve())


def test_delete_records_on_full_disk_does_not_apply_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(node: BrokerNode) -> None:
        log = node.log(node.changes.create_topic("t", 1, {"retention.bytes": "0"}).name, 0)
        for number in range(4):
            append(log, batch(b"%d" % number))
            log.roll(NOW_MS)
        space_for_checkpoints_when(monkeypatch, lambda: len(log.closed) < 4)
        assert await delete_below(node, {"t": 2}) == [(ErrorCode.NONE, 2)]
        assert contents(log) == [(2, b"2"), (3, b"3")] and len(log.closed) == 2

    with_node(tmp_path, work)


def test_delete_records_fails_if_it_frees_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(node: BrokerNode) -> None:
        log = node.log(node.changes.create_topic("t", 1, {}).name, 0)
        for number in range(4):
            append(log, batch(b"%d" % number))
        space_for_checkpoints_when(monkeypatch, lambda: False)
        assert await delete_below(node, {"t": 2, "none": 1}) == [
            (ErrorCode.STORAGE_ERROR, -1),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ]
        assert logged(caplog, "broker.handlers.delete_records", "No space left")
        monkeypatch.undo()
        assert await delete_below(node, {"t": 2}) == [(ErrorCode.NONE, 2)]
        assert read_checkpoint(tmp_path / LOG_STARTS) == {("t", 0): 2}

    with_node(tmp_path, work)
