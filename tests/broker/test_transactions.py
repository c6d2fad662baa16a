"""Transactions in the log of a partition: records visible with `read_committed`, also after damage to the files."""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.errors import RequestRefused
from headrace.broker.log import compaction, transactions
from headrace.broker.log.compaction import CleaningRules, DutyCycle
from headrace.broker.log.partition_log import LogLimits, PartitionLog
from headrace.broker.log.producer_state import EXPIRATION_MS, ProducerStates
from headrace.broker.log.segment import SNAPSHOT, TXN_INDEX, base_offsets
from headrace.broker.log.transactions import (
    NO_OFFSET,
    TransactionIndexEntry,
    TransactionOutcomes,
    aborted_between,
    aborted_by,
    blocks_of,
    end_marker,
    from_index,
    is_commit,
    overlapping,
    to_index,
)
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire import requests
from headrace.kafka_wire.record_batch import (
    CONTROL,
    NO_HEADERS,
    TRANSACTIONAL,
    has_valid_crc,
    read_batch,
    split_batches,
)
from headrace.kafka_wire.record_batch import read_batch_header as header_of
from headrace.loader.read.range_reader import BatchKind, TransactionFilter
from support.broker.broker_samples import NOW_MS, append, batch, keyed_batch, open_sample_log, replace_segments

SMALL = LogLimits(segment_bytes_max=400)
DAY_MS = 86_400_000


class Writer:
    """Producers that write to one log; each batch has the next sequence number."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self._sequences: dict[int, int] = {}

    def send(self, producer_id: int, value: bytes, key: bytes = b"key") -> int:
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + 1
        raw = keyed_batch((key, value), producer_id=producer_id, sequence=sequence, is_transactional=True)
        return append(self.log, raw)

    def plain(self, value: bytes) -> int:
        return append(self.log, batch(value))

    def end(self, producer_id: int, *, is_commit: bool, epoch: int = 0) -> None:
        self.log.end_transaction(producer_id, epoch, is_commit=is_commit, now_ms=NOW_MS)


def committed(log: PartitionLog, bytes_max: int = 1 << 20) -> list[bytes | None]:
    """Returns the records that the loader's reader gets from a log, fetch by fetch."""
    found: list[bytes | None] = []
    offset = log.log_start_offset
    while True:
        records, aborted = log.read_committed(offset, bytes_max, min_one_batch=True)
        notified = [requests.AbortedTransaction(one.producer_id, one.first_offset) for one in aborted]
        reader, before = TransactionFilter(notified), offset
        for frame in split_batches(records, "test"):
            read = read_batch(frame, "test", 1 << 20)
            if reader.kind(read) is BatchKind.DATA:
                found += [value for at, _, _, value, _ in read.records if at >= before]
            offset = read.next_offset
        if offset == before:
            return found


def history(log: PartitionLog) -> list[bytes]:
    """Writes with four producers, one of them not transactional; returns the committed values in order."""
    writer = Writer(log)
    for step in range(12):
        writer.send(1, b"one %d" % step)
        writer.send(2, b"two %d" % step)
        writer.plain(b"plain %d" % step)
        writer.end(1, is_commit=step % 2 == 0)
        if step % 3 == 2:
            writer.end(2, is_commit=step % 2 == 1)
    order = [value for step in range(12) for value in (b"one %d" % step, b"two %d" % step, b"plain %d" % step)]
    aborted = {b"one %d" % step for step in range(1, 12, 2)}
    aborted |= {b"two %d" % step for step in range(12) if (step // 3 * 3 + 2) % 2 == 0}
    return [value for value in order if value not in aborted]


def test_last_stable_offset_stops_at_the_oldest_open_transaction(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path).log
    writer = Writer(log)
    writer.plain(b"before")
    writer.send(1, b"a")
    writer.send(2, b"b")
    writer.plain(b"after")
    assert (log.last_stable_offset, log.high_watermark) == (1, 4)
    assert committed(log) == [b"before"]
    writer.end(2, is_commit=True)
    assert log.last_stable_offset == 1, "the first one is still open"
    writer.end(1, is_commit=False)
    assert log.last_stable_offset == log.high_watermark == 6
    assert committed(log) == [b"before", b"b", b"after"]
    assert log.aborted(0, 6) == [TransactionIndexEntry(1, 1, 5, 6)]


def test_markers_without_records_change_no_outcome(tmp_path: Path) -> None:
    """A start repeats the markers of a transaction that was being completed."""
    log = open_sample_log(tmp_path).log
    writer = Writer(log)
    writer.send(1, b"a")
    for commits in (True, True, False):
        writer.end(1, is_commit=commits)
    writer.end(7, is_commit=False, epoch=1)
    assert log.last_stable_offset == log.log_end_offset == 5
    assert committed(log) == [b"a"] and log.aborted(0, 5) == []
    log.close()
    reopened = open_sample_log(tmp_path, is_clean=True).log
    assert committed(reopened) == [b"a"] and reopened.aborted(0, 5) == []
    for epoch, sequence, code in (
        (0, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
        (1, 3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ):
        with pytest.raises(RequestRefused) as refused:
            append(reopened, batch(b"late", producer_id=7, epoch=epoch, sequence=sequence))
        assert refused.value.code is code


def test_marker_has_kafkas_format() -> None:
    raw = end_marker(7, 3, is_commit=False, first_offset=5, last_stable_offset=11, now_ms=NOW_MS)
    header = header_of(raw)
    assert has_valid_crc(memoryview(raw), header)
    assert header.attributes == TRANSACTIONAL | CONTROL
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    ((_, time_ms, key, value, headers),) = read_batch(next(iter(split_batches(raw, ""))), "", 1000).records
    assert (time_ms, key, headers) == (NOW_MS, b"\0\0\0\0", NO_HEADERS)
    assert value is not None and value[:6] == b"\0\0\0\0\0\0" and struct.unpack(">qq", value[6:]) == (5, 11)
    assert not is_commit(raw)
    assert aborted_by(header._replace(base_offset=9), raw) == TransactionIndexEntry(7, 5, 9, 11)
    committing = end_marker(7, 3, is_commit=True, first_offset=5, last_stable_offset=11, now_ms=NOW_MS)
    assert is_commit(committing)
    assert aborted_by(header_of(committing), committing) is None
    empty = end_marker(7, 3, is_commit=False, first_offset=NO_OFFSET, last_stable_offset=11, now_ms=NOW_MS)
    assert aborted_by(header_of(empty), empty) is None


@pytest.mark.parametrize("bytes_max", [1, 150, 700, 1 << 20])
@pytest.mark.parametrize("limits", [LogLimits(), SMALL], ids=["one segment", "many"])
def test_committed_records_are_read_with_any_fetch_size(tmp_path: Path, limits: LogLimits, bytes_max: int) -> None:
    log = open_sample_log(tmp_path, limits=limits).log
    expected = history(log)
    assert committed(log, bytes_max) == expected


@pytest.mark.parametrize("is_clean", [True, False], ids=["closed", "killed"])
def test_open_and_aborted_transactions_survive_a_restart(tmp_path: Path, is_clean: bool) -> None:
    log = open_sample_log(tmp_path, limits=SMALL).log
    expected = history(log)
    writer = Writer(log)
    writer.send(5, b"left open")
    end = log.log_end_offset - 1
    if is_clean:
        log.close()
    reopened = open_sample_log(tmp_path, limits=SMALL, is_clean=is_clean).log
    assert committed(reopened) == expected
    assert reopened.last_stable_offset == end
    assert reopened.producers.open == log.producers.open
    reopened.end_transaction(5, 0, is_commit=True, now_ms=NOW_MS)
    assert committed(reopened) == [*expected, b"left open"]


@pytest.mark.parametrize("is_clean", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("harm", ["gone", "empty", "flipped", "older"])
def test_aborted_records_stay_hidden_if_the_index_is_lost(tmp_path: Path, harm: str, is_clean: bool) -> None:
    log = open_sample_log(tmp_path, limits=SMALL).log
    expected = history(log)
    log.close()
    assert (
        sum(from_index(path.read_bytes(), path.with_suffix(".log").stat().st_size) != [] for path in _indexes(log)) > 3
    )
    for path in _indexes(log):
        _do_harm(path, harm)
    fsynced_to = log.log_end_offset
    reopened = open_sample_log(tmp_path, limits=SMALL, is_clean=is_clean, recovery_point=fsynced_to).log
    assert committed(reopened) == expected
    for path in _indexes(reopened):
        path.unlink()
    assert committed(reopened) == expected, "indexes deleted at runtime"
    for path in _indexes(reopened):
        _do_harm(path, harm)
    assert committed(reopened) == expected, "indexes corrupted at runtime"
    for path in _indexes(reopened):
        assert from_index(path.read_bytes(), path.with_suffix(".log").stat().st_size) is not None


def _do_harm(index: Path, harm: str) -> None:
    if harm == "gone":
        index.unlink()
    elif harm == "empty":
        index.write_bytes(b"")
    elif harm == "older":
        index.write_bytes(to_index([], 17))
    else:
        raw = bytearray(index.read_bytes())
        raw[len(raw) // 2] ^= 1
        index.write_bytes(raw)


def test_read_loads_only_the_needed_index_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "BLOCK_ENTRIES", 8)
    log = open_sample_log(tmp_path).log
    writer = Writer(log)
    writer.send(2, b"for long")
    for number in range(100):
        writer.send(1, b"%d" % number)
        writer.end(1, is_commit=False)
    writer.end(2, is_commit=False)
    aborted = list(log.active.aborted)
    log.roll(NOW_MS)
    for number in range(20):
        writer.send(1, b"%d" % number)
    writer.end(1, is_commit=False)
    log.roll(NOW_MS)
    (index, _) = _indexes(log)
    really, reads = os.pread, []

    def pread(fd: int, size: int, position: int) -> bytes:
        content = really(fd, size, position)
        if Path(f"/proc/self/fd/{fd}").readlink() == index:
            reads.append(len(content))
        return content

    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} is read completely"))
    for start in range(1, 201, 10):
        reads.clear()
        _, notified = log.read_committed(start, 1, min_one_batch=True)
        # The batch of a transaction that the next marker ends, or that marker; and the long transaction.
        assert {aborted[(start - 1) // 2], aborted[-1]} <= set(notified)
        assert set(notified) <= set(aborted)
        # The end of a read is known to about 4 KB of log, which holds 20 markers here.
        assert sum(reads) <= 5 * 8 * 34
    reads.clear()
    assert log.read_committed(205, 1, min_one_batch=True)[1] and not reads


def _indexes(log: PartitionLog) -> list[Path]:
    return sorted(log.directory.glob(f"*{TXN_INDEX}"))


def test_open_transactions_are_restored_from_the_batches(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path, limits=SMALL).log
    expected = history(log)
    Writer(log).send(5, b"open")
    for base in base_offsets(tmp_path, SNAPSHOT):
        (tmp_path / f"{base:020d}{SNAPSHOT}").write_bytes(b"damaged")
    reopened = open_sample_log(tmp_path, limits=SMALL).log
    assert reopened.producers.open == log.producers.open
    assert committed(reopened) == expected


def test_deleted_start_of_a_transaction_does_not_lower_the_last_stable_offset(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path, limits=SMALL).log
    writer = Writer(log)
    for number in range(10):
        writer.send(1, b"%d" % number)
    log.drop_segments(2)
    assert log.last_stable_offset == log.log_start_offset > 0
    assert committed(log) == []
    start = log.log_start_offset
    writer.end(1, is_commit=True)
    assert committed(log) == [b"%d" % number for number in range(start, 10)]


def test_plain_batch_is_refused_during_an_open_transaction(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path).log
    Writer(log).send(1, b"a")
    with pytest.raises(RequestRefused) as refused:
        append(log, batch(b"b", producer_id=1, epoch=0, sequence=1))
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE


def test_marker_of_a_later_epoch_fences_its_producer(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path).log
    writer = Writer(log)
    writer.send(1, b"a")
    writer.end(1, is_commit=False, epoch=1)
    with pytest.raises(RequestRefused) as refused:
        writer.send(1, b"late")
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    before = batch(b"before", producer_id=1, epoch=1, sequence=2**31 - 1, is_transactional=True)
    with pytest.raises(RequestRefused) as refused:
        append(log, before)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "no batch of this epoch is stored"
    first = batch(b"next", producer_id=1, epoch=1, sequence=0, is_transactional=True)
    assert append(log, first) == 2
    reloaded = ProducerStates.from_snapshot(log.producers.to_snapshot())
    assert reloaded is not None and reloaded.open == log.producers.open


def test_producer_with_an_open_transaction_does_not_expire(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path).log
    Writer(log).send(1, b"a")
    log.producers.expire(NOW_MS + 2 * EXPIRATION_MS)
    assert len(log.producers) == 1
    Writer(log).end(1, is_commit=True)
    log.producers.expire(NOW_MS + 2 * EXPIRATION_MS)
    assert len(log.producers) == 0


def test_read_committed_returns_only_fsynced_records_with_fsync_always(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path, limits=LogLimits(fsynced_reads_only=True)).log
    notified: list[int] = []
    log.waiters.add(notified.append)
    writer = Writer(log)
    writer.send(1, b"a")
    writer.end(1, is_commit=True)
    assert committed(log) == [] and log.last_stable_offset == 0
    log.flushed(log.flush_job())
    assert committed(log) == [b"a"]
    assert notified, "waiters are notified"


def test_end_of_a_transaction_notifies_waiters(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path).log
    writer = Writer(log)
    writer.send(1, b"a" * 5000)
    notified: list[int] = []
    log.waiters.add(notified.append)
    writer.end(1, is_commit=True)
    assert sum(notified) > 5000, "waiters for many bytes too"


ENTRIES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.integers(0, 40)), max_size=12).map(
    lambda rows: [TransactionIndexEntry(one, min(a, b), max(a, b), 0) for one, a, b in rows]
)


@given(ENTRIES, st.integers(0, 45), st.integers(0, 45))
def test_overlapping_finds_exactly_the_overlapping_transactions(
    entries: list[TransactionIndexEntry], start: int, end: int
) -> None:
    entries.sort(key=lambda one: one.last_offset)
    # Transactions that end later begin at or after this last stable offset.
    located = [
        one._replace(
            last_stable_offset=min((each.first_offset for each in entries[at + 1 :]), default=one.last_offset + 1)
        )
        for at, one in enumerate(entries)
    ]
    found = list(overlapping(located, start, end))
    assert found == [one for one in located if one.last_offset >= start and one.first_offset < end]
    content = to_index(located, 99)
    assert from_index(content, 99) == located
    assert from_index(content, 98) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactions, "BLOCK_ENTRIES", 3)
        blocks = blocks_of(located)
        assert aborted_between(blocks, start, end, lambda size, at: content[at : at + size]) == found
        if found:
            assert aborted_between(blocks, start, end, lambda size, at: content[at + 1 : at + size + 1]) is None
            assert aborted_between(blocks, start, end, lambda size, at: b"") is None


# Compaction


def clean(log: PartitionLog, now_ms: int = NOW_MS) -> None:
    segments = [segment for segment in log.closed if segment.next_offset <= log.last_stable_offset]
    outcomes = TransactionOutcomes(log.aborted(segments[0].base_offset, segments[-1].next_offset))
    found = compaction.build_offset_map(segments, 0, outcomes, DutyCycle(pause=lambda rest_s: None))
    rules = CleaningRules(now_ms + DAY_MS, now_ms, log.producers.last_offsets())
    for group in compaction.group_segments(segments, 1 << 20):
        facts = compaction.write_cleaned_segment(group, found, rules, outcomes, DutyCycle(pause=lambda rest_s: None))
        if facts is not None:
            replace_segments(log, group, facts)


def table(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    """Returns the newest committed value of each key, as read from the start."""
    found: dict[bytes | None, bytes | None] = {}
    offset = log.log_start_offset
    records, aborted = log.read_committed(offset, 1 << 20, min_one_batch=True)
    while records:
        reader = TransactionFilter([requests.AbortedTransaction(one.producer_id, one.first_offset) for one in aborted])
        for frame in split_batches(records, "test"):
            read = read_batch(frame, "test", 1 << 20)
            if reader.kind(read) is BatchKind.DATA:
                found.update({key: value for _, _, key, value, _ in read.records})
            offset = read.next_offset
        records, aborted = log.read_committed(offset, 1 << 20, min_one_batch=True)
    return found


Step = tuple[int, int, bool]
STEPS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 4), st.sampled_from([None, None, True, False])), max_size=60
)


@given(STEPS, st.data())
def test_compaction_preserves_the_committed_table(
    steps: list[tuple[int, int, bool | None]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = open_sample_log(Path(directory), limits=SMALL).log
        writer = Writer(log)
        for number, (producer_id, key, end) in enumerate(steps):
            writer.send(producer_id, b"value %d" % number, b"k%d" % key)
            if end is not None:
                writer.end(producer_id, is_commit=end)
        expected, stable = table(log), log.last_stable_offset
        for round_ in range(3):
            if any(segment.next_offset <= stable for segment in log.closed):
                clean(log, NOW_MS + round_ * 2 * DAY_MS)
            assert table(log) == expected
            assert log.last_stable_offset == stable
        if data.draw(st.booleans(), "without snapshots"):
            for base in base_offsets(Path(directory), SNAPSHOT):
                (Path(directory) / f"{base:020d}{SNAPSHOT}").unlink()
        reopened = open_sample_log(Path(directory), limits=SMALL, recovery_point=log.log_end_offset).log
        assert table(reopened) == expected
        assert reopened.producers.open == log.producers.open


def test_markers_are_removed_with_the_last_record_of_their_transaction(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path, limits=SMALL).log
    writer = Writer(log)
    for number in range(40):
        writer.send(number, b"value", b"hot")
        writer.end(number, is_commit=number % 2 == 0)
    log.roll(NOW_MS)
    writer.plain(b"active")
    log.producers.expire(NOW_MS + 2 * EXPIRATION_MS)
    clean(log)
    assert len(_markers(log)) == 40, "current readers still see the markers"
    clean(log, NOW_MS + 2 * DAY_MS)
    assert len(_markers(log)) == 2, "the newest record's marker, and the last batch, which marks the segment's end"
    assert committed(log) == [b"value", b"active"]
    assert log.aborted(0, 80) == [TransactionIndexEntry(39, 78, 79, 80)]


def _markers(log: PartitionLog) -> list[int]:
    return [located.header.base_offset for located, _ in log.batches(0) if located.header.attributes & CONTROL]
