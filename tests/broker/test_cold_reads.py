"""Fetches of data that is not in the page cache: a thread waits for the disk, and the broker serves other requests."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import tracemalloc
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.consumer import ListOffsetsRequest

from headrace.broker.config import BrokerConfig
from headrace.broker.handlers import fetch, list_offsets
from headrace.broker.handlers.context import RequestContext
from headrace.broker.log import files
from headrace.broker.log.files import NotCached, nonblocking_reads, read_at
from headrace.broker.log.segment import TXN_INDEX
from headrace.broker.node import BrokerNode
from headrace.broker.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchTopic
from support.broker.broker_samples import NOW_MS, append, batch

PAGE_BYTES = 4096
BATCHES = 60


class Disk:
    """A simulated disk: a page is cached once it has been read. `waits` has an entry for each blocking read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[str] = []
        self.read_by_threads = 0
        self.forgets_at_once = False
        self.fails_threads = False
        self.uncached_directory = ""  # directory with files that are never cached
        self._cached: set[tuple[int, int]] | None = None
        self._pread, self._preadv = os.pread, os.preadv
        monkeypatch.setattr(os, "pread", self.pread)
        monkeypatch.setattr(os, "preadv", self.preadv)

    def evict(self) -> None:
        """Evicts everything that was written or read so far."""
        self._cached = set()

    def content_of(self, partition: FetchedPartition) -> bytes:
        cached, self._cached = self._cached, None
        content = bytes(partition.records)
        self._cached = cached
        return content

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._touch(fd, position, size)
        return self._pread(fd, size, position)

    def preadv(self, fd: int, buffers: Sequence[bytearray], position: int, flags: int = 0) -> int:
        if not flags & os.RWF_NOWAIT:
            self._touch(fd, position, sum(map(len, buffers)))
            return self._preadv(fd, buffers, position)
        cached = sum(map(len, buffers))
        for page in sorted(self._pages(fd, position, cached), reverse=True):
            if self._cached is not None and page not in self._cached:
                cached = max(page[1] * PAGE_BYTES - position, 0)
        if not cached:
            raise BlockingIOError
        return min(self._preadv(fd, buffers, position, flags), cached)

    def _pages(self, fd: int, position: int, size: int) -> set[tuple[int, int]]:
        inode = os.fstat(fd).st_ino
        end = min(position + size, os.fstat(fd).st_size)
        return {(inode, page) for page in range(position // PAGE_BYTES, -(-end // PAGE_BYTES))}

    def _is_cached(self, fd: int, position: int, size: int) -> bool:
        return self._cached is None or self._pages(fd, position, size) <= self._cached

    def _touch(self, fd: int, position: int, size: int) -> None:
        is_in_thread = threading.current_thread() is not threading.main_thread()
        if is_in_thread and self.fails_threads:
            raise OSError(5, "Input/output error")
        if not self._is_cached(fd, position, size):
            if is_in_thread:
                self.read_by_threads += 1
            else:
                self.waits.append(f"{Path(f'/proc/self/fd/{fd}').readlink()} {position} {size}")
        is_cacheable = not self.uncached_directory or self.uncached_directory not in str(
            Path(f"/proc/self/fd/{fd}").readlink()
        )
        if self._cached is not None and not self.forgets_at_once and is_cacheable:
            self._cached |= self._pages(fd, position, size)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def with_topic(directory: Path, partitions: int, work: Callable[[BrokerNode], Awaitable[None]], **configs: str) -> None:
    """Runs `work` with a topic: each partition has BATCHES batches of one record of about 3 KB, a millisecond apart."""

    async def main() -> None:
        node = BrokerNode(BrokerConfig(directory), now_ms=lambda: NOW_MS)
        try:
            node.changes.create_topic("t", partitions, configs)
            for index in range(partitions):
                for number in range(BATCHES):
                    append(node.log("t", index), batch(b"%04d" % number * 750, timestamp_ms=NOW_MS + number))
            await asyncio.wait_for(work(node), 30)
        finally:
            await node.close()

    asyncio.run(main())


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def fetch_partitions(
    node: BrokerNode, *offsets: int, each: int = 10_000, committed: bool = False, least: int = 1, wait_ms: int = 20_000
) -> Sequence[FetchedPartition]:
    """Returns the response of a fetch from the first partitions."""
    requested = tuple(FetchPartition(index, -1, offset, each) for index, offset in enumerate(offsets))
    topics = (FetchTopic("t", uuid.UUID(int=0), requested),)
    request = FetchRequest(wait_ms, least, 1 << 30, int(committed), 0, -1, topics)
    response = fetch.handle(RequestContext(node, 12, "test", "127.0.0.1"), request)
    if not isinstance(response, fetch.FetchResult):
        response = await response
    return response.topics[0].partitions


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("configs", [{}, {"segment.bytes": "50000"}], ids=["active", "closed"])
@pytest.mark.parametrize("each", [10_000, 100_000])
def test_cold_log_reads_do_not_block_event_loop(
    tmp_path: Path, disk: Disk, configs: dict[str, str], committed: bool, each: int
) -> None:
    async def work(node: BrokerNode) -> None:
        for offset in (0, 1, 17, 37, BATCHES - 1):
            (warm,) = await fetch_partitions(node, offset, each=each, committed=committed)
            expected = disk.content_of(warm)
            disk.evict()
            (cold,) = await fetch_partitions(node, offset, each=each, committed=committed)
            assert not disk.waits
            assert disk.content_of(cold) == expected
            assert cold[:5] == warm[:5]
        assert disk.read_by_threads

    with_topic(tmp_path, 1, work, **configs)


def test_cold_aborted_index_reads_do_not_block_event_loop(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(node: BrokerNode) -> None:
        log = node.log("t", 0)
        first = log.log_end_offset
        for number in range(40):
            raw = batch(b"v" * 3000, producer_id=7, epoch=0, sequence=number, is_transactional=True)
            append(log, raw)
            log.end_transaction(7, 0, is_commit=number % 2 == 0, now_ms=NOW_MS)
        log.roll(NOW_MS)
        monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} is read without a thread"))
        for offset in range(first, first + 80, 7):
            (warm,) = await fetch_partitions(node, offset, committed=True)
            assert warm.aborted
            disk.evict()
            (cold,) = await fetch_partitions(node, offset, committed=True)
            assert not disk.waits
            assert cold[:5] == warm[:5] and cold.aborted == warm.aborted

    with_topic(tmp_path, 1, work, **{"segment.bytes": "50000"})


def test_cold_marker_reads_do_not_block_event_loop(tmp_path: Path, disk: Disk) -> None:
    """Used if the index of aborted transactions is missing."""

    async def work(node: BrokerNode) -> None:
        log = node.log("t", 0)
        start = log.log_end_offset
        append(log, batch(b"v" * 3000, producer_id=7, epoch=0, sequence=0, is_transactional=True))
        log.end_transaction(7, 0, is_commit=False, now_ms=NOW_MS)
        log.roll(NOW_MS)
        log.closed[-1].path(TXN_INDEX).unlink()
        disk.evict()
        (found,) = await fetch_partitions(node, start, committed=True)
        assert [one.producer_id for one in found.aborted] == [7]
        assert not disk.waits

    with_topic(tmp_path, 1, work)


def test_cached_data_is_returned_without_thread(tmp_path: Path, disk: Disk) -> None:
    async def work(node: BrokerNode) -> None:
        disk.evict()
        await fetch_partitions(node, 17)
        response = fetch.handle(
            RequestContext(node, 12, "test", "127.0.0.1"),
            FetchRequest(
                9,
                1,
                1 << 30,
                0,
                0,
                -1,
                (FetchTopic("t", uuid.UUID(int=0), (FetchPartition(0, -1, 17, 10_000),)),),
            ),
        )
        assert isinstance(response, fetch.FetchResult)

    with_topic(tmp_path, 1, work)


def test_other_clients_are_served_during_disk_read(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    may_read = threading.Event()
    read_ahead = NotCached.read_ahead

    def slow(each: NotCached) -> None:
        assert may_read.wait(20)
        read_ahead(each)

    monkeypatch.setattr(NotCached, "read_ahead", slow)

    async def work(node: BrokerNode) -> None:
        disk.evict()
        waiting = asyncio.ensure_future(fetch_partitions(node, 17))
        await asyncio.sleep(0)
        append(node.log("t", 0), batch(b"new"))
        assert not waiting.done()
        may_read.set()
        (found,) = await waiting
        assert len(found.records) == 10_000
        assert found.high_watermark == BATCHES + 1

    with_topic(tmp_path, 1, work)


def test_all_of_many_cold_partitions_are_read_after_several_fetches(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = 3 * fetch.READ_AHEAD_PARTITIONS_MAX
    read_once = fetch._read
    cold: list[int] = []

    def counted(*given: Any) -> Any:
        found = read_once(*given)
        cold.append(len(found.cold))
        return found

    monkeypatch.setattr(fetch, "_read", counted)

    async def work(node: BrokerNode) -> None:
        disk.evict()
        read: set[int] = set()
        for _ in range(4):
            found = await fetch_partitions(node, *[20] * partitions, least=1 << 20)
            assert [one.high_watermark for one in found] == [BATCHES] * partitions
            new = {one.partition for one in found if one.records} - read
            assert len(new) >= min(fetch.READ_AHEAD_PARTITIONS_MAX, partitions - len(read))
            read |= new
        assert len(read) == partitions
        assert max(cold) == fetch.READ_AHEAD_PARTITIONS_MAX
        assert not disk.waits

    with_topic(tmp_path, partitions, work, **{"segment.bytes": "50000"})


def test_partition_that_stays_cold_is_read_together_with_cached_ones(tmp_path: Path, disk: Disk) -> None:
    async def work(node: BrokerNode) -> None:
        disk.evict()
        disk.uncached_directory = "t-1/"
        found = await fetch_partitions(node, 20, 20, 20)
        assert [len(one.records) for one in found] == [10_000] * 3
        assert all("/t-1/" in wait for wait in disk.waits)

    with_topic(tmp_path, 3, work)


def test_data_that_thread_cannot_read_is_read_in_event_loop(tmp_path: Path, disk: Disk) -> None:
    async def work(node: BrokerNode) -> None:
        disk.evict()
        disk.fails_threads = True
        (found,) = await fetch_partitions(node, 20)
        assert len(found.records) == 10_000

    with_topic(tmp_path, 1, work)


def test_waiting_for_disk_holds_no_file_descriptors(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read = threading.Event()
    read_ahead = NotCached.read_ahead

    def slow(each: NotCached) -> None:
        assert may_read.wait(20)
        read_ahead(each)

    monkeypatch.setattr(NotCached, "read_ahead", slow)
    partitions = fetch.READ_AHEAD_PARTITIONS_MAX

    async def work(node: BrokerNode) -> None:
        await fetch_partitions(node, *[20] * partitions)
        disk.evict()
        before = open_descriptors()
        waiting = [asyncio.ensure_future(fetch_partitions(node, *[20] * partitions)) for _ in range(5)]
        await asyncio.sleep(0.01)
        assert open_descriptors() == before
        may_read.set()
        for each in waiting:
            assert [len(one.records) for one in await each] == [10_000] * partitions
        assert open_descriptors() <= before

    gc.disable()
    try:
        with_topic(tmp_path, partitions, work)
    finally:
        gc.enable()


def test_waiting_poll_holds_no_records(tmp_path: Path) -> None:
    polls = 20

    async def work(node: BrokerNode) -> None:
        await fetch_partitions(node, 0)
        tracemalloc.start()
        last = BATCHES - 9  # few enough bytes to be copied into memory
        waiting = [
            asyncio.ensure_future(fetch_partitions(node, last, last, each=1 << 20, least=1 << 20)) for _ in range(polls)
        ]
        await asyncio.sleep(0.01)
        traced_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert not any(poll.done() for poll in waiting)
        assert traced_bytes < polls * 25_000
        append(node.log("t", 0), batch(b"x" * (1 << 20)))
        await asyncio.gather(*waiting)

    with_topic(tmp_path, 2, work)


def test_append_during_poll_start_is_not_missed(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        requested = (FetchTopic("t", uuid.UUID(int=0), (FetchPartition(0, -1, BATCHES, 10_000),)),)
        response = fetch.handle(
            RequestContext(node, 12, "test", "127.0.0.1"), FetchRequest(300_000, 1, 1 << 30, 0, 0, -1, requested)
        )
        assert not isinstance(response, fetch.FetchResult)
        append(node.log("t", 0), batch(b"in the same turn of the loop"))
        assert (await response).topics[0].partitions[0].records
        assert not node.log("t", 0).waiters

    with_topic(tmp_path, 1, work)


def test_fetch_ends_even_if_page_cache_retains_nothing(tmp_path: Path, disk: Disk) -> None:
    async def work(node: BrokerNode) -> None:
        disk.forgets_at_once = True
        disk.evict()
        (found,) = await fetch_partitions(node, 17)
        assert len(found.records) == 10_000
        assert disk.waits

    with_topic(tmp_path, 1, work)


def test_long_poll_over_cold_partition_ends_when_min_bytes_available(tmp_path: Path, disk: Disk) -> None:
    async def work(node: BrokerNode) -> None:
        disk.evict()
        size = node.log("t", 0).size
        poll = asyncio.ensure_future(fetch_partitions(node, 0, each=1 << 20, least=size + 1))
        for _ in range(3):
            await asyncio.sleep(0.01)
        assert not poll.done()
        disk.evict()
        append(node.log("t", 0), batch(b"more"))
        (found,) = await poll
        assert len(found.records) > size
        assert not disk.waits

    with_topic(tmp_path, 1, work)


def test_poll_at_deadline_returns_records_of_cold_partition(tmp_path: Path, disk: Disk) -> None:
    async def work(node: BrokerNode) -> None:
        disk.evict()
        size = node.log("t", 0).size
        (found,) = await fetch_partitions(node, 0, each=1 << 20, least=size + 1, wait_ms=50)
        assert len(found.records) == size
        (found,) = await fetch_partitions(node, 0, each=1 << 20, least=size + 1, wait_ms=0)
        assert len(found.records) == size
        assert not disk.waits

    with_topic(tmp_path, 1, work)


async def lookup_offsets(node: BrokerNode, timestamps_ms: Sequence[int]) -> tuple[bool, list[tuple[int, int]]]:
    """Returns whether the search waited for the disk, and the (timestamp, offset) of each partition."""
    topic = ListOffsetsRequest.ListOffsetsTopic
    requested = [
        topic.ListOffsetsPartition(version=7, partition_index=index, current_leader_epoch=-1, timestamp=timestamp_ms)
        for index, timestamp_ms in enumerate(timestamps_ms)
    ]
    request = ListOffsetsRequest(
        version=7, replica_id=-1, isolation_level=0, topics=[topic(version=7, name="t", partitions=requested)]
    )
    response = list_offsets.handle(RequestContext(node, 7, "test", "127.0.0.1"), request)
    is_late = asyncio.iscoroutine(response)
    if is_late:
        response = await response
    (found,) = response.topics
    assert [one.partition_index for one in found.partitions] == list(range(len(timestamps_ms)))
    return is_late, [(one.timestamp, one.offset) for one in found.partitions]


@pytest.mark.parametrize("configs", [{}, {"segment.bytes": "50000"}], ids=["active", "closed"])
def test_offsets_by_time_do_not_block_event_loop(tmp_path: Path, disk: Disk, configs: dict[str, str]) -> None:
    partitions = list_offsets.READ_AHEAD_PARTITIONS_MAX + 8
    times_ms = [NOW_MS + 37, list_offsets.EARLIEST, NOW_MS + 3, list_offsets.LARGEST_TIMESTAMP, NOW_MS + 1000]
    times_ms += [NOW_MS + number for number in range(partitions - len(times_ms))]
    expected = [(NOW_MS + 37, 37), (-1, 0), (NOW_MS + 3, 3), (NOW_MS + BATCHES - 1, BATCHES - 1), (-1, -1)]
    expected += [(NOW_MS + number, number) for number in range(partitions - len(expected))]

    async def work(node: BrokerNode) -> None:
        searches = list_offsets.TIME_SEARCHES_BEFORE_YIELD
        assert await lookup_offsets(node, times_ms[:searches]) == (False, expected[:searches])
        disk.evict()
        assert await lookup_offsets(node, times_ms) == (True, expected)
        assert not disk.waits
        assert await lookup_offsets(node, times_ms[:searches]) == (False, expected[:searches])
        assert await lookup_offsets(node, [list_offsets.LATEST, list_offsets.EARLIEST]) == (
            False,
            [(-1, BATCHES), (-1, 0)],
        )
        disk.forgets_at_once = True
        disk.evict()
        assert await lookup_offsets(node, times_ms[:1]) == (True, expected[:1])
        assert disk.waits

    with_topic(tmp_path, partitions, work, **configs)


def test_large_file_is_read_ahead_only_at_requested_position(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ_AHEAD_FILE_BYTES_MAX", 1 << 20)
    path = tmp_path / "large"
    path.write_bytes(os.urandom(2 << 20))
    fd = os.open(path, os.O_RDONLY)
    disk.evict()
    with nonblocking_reads():
        for position in (1_500_000, 10):
            with pytest.raises(NotCached) as cold:
                read_at(fd, 100, position)
            thread = threading.Thread(target=cold.value.read_ahead)
            thread.start()
            thread.join()
            assert read_at(fd, 100, position) == path.read_bytes()[position : position + 100]
        with pytest.raises(NotCached):
            read_at(fd, 100, 700_000)
    assert len(read_at(fd, 100, 700_000)) == 100
    assert len(disk.waits) == 1
    os.close(fd)


def test_reads_work_without_cache_probe_support(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def preadv(*arguments: object) -> int:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "preadv", preadv)
    path = tmp_path / "file"
    path.write_bytes(b"content")
    fd = os.open(path, os.O_RDONLY)
    with nonblocking_reads():
        assert read_at(fd, 100, 3) == b"tent"
    os.close(fd)
