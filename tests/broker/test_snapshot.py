"""Snapshots of a running broker: one instant of all partitions, also if the logs change afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path

import pytest

from headrace.broker import snapshot as snapshot_module
from headrace.broker.config import BrokerConfig
from headrace.broker.data_directory import SNAPSHOT_DIRECTORY
from headrace.broker.errors import DataDirectoryInUse
from headrace.broker.inspect.verify import verify
from headrace.broker.node import BrokerNode
from headrace.broker.producer_ids import LOST_FILE_GAP, read_producer_ids
from headrace.broker.server import BrokerServer
from headrace.broker.snapshot import (
    SOCKET_NAME,
    LogSnapshot,
    SnapshotFailed,
    create_directory,
    data_directory_files,
    open_snapshot,
    segment_copies,
    skip_producer_ids,
)
from support.broker.broker_samples import NOW_MS, append, batch, contents, keyed_batch

SEGMENT_BYTES = 1024


def copy(snapshot: LogSnapshot, target: Path, producer_ids: int | None = 1000) -> None:
    for source, name, size in segment_copies(snapshot):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(source.read_bytes()[:size] if source is not None else b"")
    for name, content in data_directory_files(snapshot, producer_ids):
        (target / name).write_bytes(content)


def open_node(directory: Path) -> BrokerNode:
    return BrokerNode(BrokerConfig(directory, segment_bytes_max=SEGMENT_BYTES), now_ms=lambda: NOW_MS)


def test_copy_is_the_instant_of_the_snapshot(tmp_path: Path) -> None:
    """Afterwards the broker appends, rolls, drops and ends a transaction; none of it is in the copy."""

    async def take() -> LogSnapshot:
        node = open_node(tmp_path / "source")
        node.changes.create_topic("orders", 2, {"retention.ms": "1000"})
        first, second = node.log("orders", 0), node.log("orders", 1)
        for number in range(60):
            append(first, batch(b"%d" % number))
        first.advance_log_start(3)
        append(second, keyed_batch((b"k", b"open"), producer_id=7, sequence=0, is_transactional=True))
        assert len(first.closed) > 2
        create_directory(tmp_path / "source")
        snapshot = node.snapshot()
        for number in range(60, 90):
            append(first, batch(b"%d" % number))
        for path in first.drop_segments(2):
            path.unlink()
        second.end_transaction(7, 0, is_commit=True, now_ms=NOW_MS)
        node.changes.create_topic("later", 1, {})
        copy(snapshot, tmp_path / "copy")
        await node.close()
        return snapshot

    asyncio.run(take())
    assert read_producer_ids(tmp_path / "copy" / "producer-ids") == 1000
    findings = [one for report in verify(tmp_path / "copy") for one in report.findings if not one.is_note]
    assert [one for one in findings if one.check != "indexes"] == []

    async def check() -> None:
        node = open_node(tmp_path / "copy")
        assert sorted(node.topics.names()) == ["orders"]
        assert node.topic("orders").configs == {"retention.ms": "1000"}
        first, second = node.log("orders", 0), node.log("orders", 1)
        assert (first.log_start_offset, first.log_end_offset) == (3, 60)
        assert contents(first)[-57:] == [(number, b"%d" % number) for number in range(3, 60)]
        assert [aborted.producer_id for aborted in second.aborted(0, 9)] == [7]  # the start aborts it, as after a kill
        retried = keyed_batch((b"k", b"open"), producer_id=7, sequence=0, is_transactional=True)
        assert append(second, retried) == 0
        assert append(first, batch(b"next")) == 60
        await node.close()

    asyncio.run(check())


def test_missing_bytes_of_a_copy_are_damage_and_not_a_shorter_log(tmp_path: Path) -> None:
    async def take() -> None:
        node = open_node(tmp_path / "source")
        node.changes.create_topic("orders", 1, {})
        append(node.log("orders", 0), batch(b"a", b"b"))
        create_directory(tmp_path / "source")
        copy(node.snapshot(), tmp_path / "copy")
        await node.close()

    asyncio.run(take())
    path = tmp_path / "copy" / "orders-0" / f"{0:020d}.log"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(Exception, match="orders-0"):
        open_node(tmp_path / "copy")


def test_new_producers_get_no_id_that_was_assigned_after_the_copy(tmp_path: Path) -> None:
    (tmp_path / "producer-ids").write_text("3000\n")
    skip_producer_ids(tmp_path)
    assert read_producer_ids(tmp_path / "producer-ids") == 3000 + LOST_FILE_GAP


def test_stopped_broker_is_excluded_while_its_files_are_copied(tmp_path: Path) -> None:
    node_directory = tmp_path / "broker"

    async def create() -> None:
        await open_node(node_directory).close()

    asyncio.run(create())
    with open_snapshot(node_directory) as snapshot:
        assert snapshot is None
        with pytest.raises(DataDirectoryInUse):
            open_node(node_directory)


def test_snapshot_lives_as_long_as_the_connection(tmp_path: Path) -> None:
    directory = tmp_path / ("long name " * 12) / "broker"  # longer than the path of a socket may be
    (directory / SNAPSHOT_DIRECTORY / "left by a killed broker").mkdir(parents=True)

    def use() -> None:
        with open_snapshot(directory) as snapshot:
            assert snapshot is not None
            assert json.loads(snapshot.topics)["topics"][0]["name"] == "__consumer_offsets"
            assert stat.S_IMODE((directory / SNAPSHOT_DIRECTORY).stat().st_mode) == 0o700
            with pytest.raises(SnapshotFailed, match="another backup"), open_snapshot(directory):
                pass

    async def main() -> None:
        server = BrokerServer(BrokerConfig(directory, host="127.0.0.1", port=0))
        await server.start()
        assert not (directory / SNAPSHOT_DIRECTORY).exists()
        assert stat.S_IMODE((directory / SOCKET_NAME).stat().st_mode) == 0o600
        serving = asyncio.create_task(server.wait())
        for _ in range(2):
            await asyncio.to_thread(use)
            assert not (directory / SNAPSHOT_DIRECTORY).exists()
        server.stop()
        await serving
        assert not (directory / SOCKET_NAME).exists()

    asyncio.run(main())


def test_running_broker_without_a_socket_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    async def main() -> None:
        node = open_node(tmp_path)
        with pytest.raises(SnapshotFailed, match="stop the broker"), open_snapshot(tmp_path):
            pass
        await node.close()

    asyncio.run(main())


def test_segment_that_cannot_be_linked_is_reported(tmp_path: Path) -> None:
    def refuse() -> LogSnapshot:
        raise OSError(31, "Too many links")

    server = snapshot_module.SnapshotServer(tmp_path, refuse)
    assert asyncio.run(server._response()) == b"error the segments cannot be linked: Too many links\n"
