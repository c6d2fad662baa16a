"""The log of a partition: appending and reading, also after crashes and corruption."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.errors import LogDamaged, RequestRefused
from headrace.broker.log.index import TIME_ENTRY_BYTES, OffsetEntry, OffsetIndex, TimeEntry, TimeIndex
from headrace.broker.log.leader_epochs import FILE_NAME, LeaderEpochs
from headrace.broker.log.partition_log import LogLimits, PartitionLog
from headrace.broker.log.produce_validation import validate_batch
from headrace.broker.log.producer_state import EXPIRATION_MS, ProducerStates
from headrace.broker.log.retention import UNLIMITED, expired_segments
from headrace.broker.log.scan import walk_batches
from headrace.broker.log.segment import (
    INDEX,
    INDEX_SUFFIXES,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    ClosedSegment,
    base_offsets,
    segment_path,
)
from headrace.broker.log.time_search import largest_timestamp_ms
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.record_batch import HEADER_BYTES, LENGTH_OVERHEAD, MAGIC_AT, read_batch_header
from support.broker.broker_samples import (
    NOW_MS,
    append,
    batch,
    contents,
    find_timestamp,
    header_of,
    open_sample_log,
    with_attributes,
)
from support.cases import all_cases
from support.examples import examples
from support.logs import logged

SMALL = LogLimits(segment_bytes_max=400)
"""About four batches of one short record per segment."""


def filled(directory: Path, count: int, limits: LogLimits = SMALL) -> PartitionLog:
    log = open_sample_log(directory, limits=limits).log
    for number in range(count):
        append(log, batch(b"value %d" % number, timestamp_ms=NOW_MS + number))
    return log


def test_offsets_continue_over_batches_and_segments(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path, limits=SMALL).log
    assert [append(log, batch(b"a", b"b", b"c")) for _ in range(10)] == list(range(0, 30, 3))
    assert len(log.closed) == 2
    assert contents(log) == [(offset, b"abc"[offset % 3 : offset % 3 + 1]) for offset in range(30)]


@pytest.mark.parametrize("segment_bytes_max", [16_000, 1 << 30])
def test_read_returns_the_batch_of_each_offset(tmp_path: Path, segment_bytes_max: int) -> None:
    """One record per batch, so large that all but the first of a segment have an index entry."""
    log = open_sample_log(tmp_path, limits=LogLimits(segment_bytes_max=segment_bytes_max)).log
    size = len(batch(b"x" * 5000))
    for number in range(11):
        assert append(log, batch(b"x" * 5000)) == number
    assert len(log.closed) == (3 if segment_bytes_max == 16_000 else 0)
    for number in range(11):
        for bytes_max, found in ((size - 1, 0), (size, size)):
            assert len(log.read(number, bytes_max, min_one_batch=False)) == found
        for bytes_max in (1, size - 1, size):
            read = bytes(log.read(number, bytes_max, min_one_batch=True))
            assert (len(read), read_batch_header(read).base_offset) == (size, number)
    assert log.read(11, 1, min_one_batch=True) == b""


@pytest.mark.parametrize("hidden", [1, 4])
def test_dirty_batches_are_not_read_with_fsync_always(tmp_path: Path, hidden: int) -> None:
    """The dirty data begins in the segment that is read, or in a later one."""
    log = open_sample_log(tmp_path, limits=LogLimits(segment_bytes_max=16_000, fsynced_reads_only=True)).log
    size = len(batch(b"x" * 5000))
    for _ in range(2):
        append(log, batch(b"x" * 5000))
    log.flushed(log.flush_job())
    for _ in range(hidden):
        append(log, batch(b"x" * 5000))
    assert [len(log.read(offset, 1 << 30, min_one_batch=True)) for offset in range(3)] == [2 * size, size, 0]
    assert [located.header.base_offset for located, _ in log.batches(0)] == [0, 1]


def test_stored_batch_differs_only_in_offset_and_epoch(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path).log
    raw = batch(b"x", b"y")
    append(log, raw)
    append(log, raw)
    stored = log.read(2, 1 << 20, min_one_batch=True)
    assert stored[16:] == raw[16:]
    assert struct.unpack(">qii", stored[:16]) == (2, len(raw) - 12, 0)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30), st.data())
def test_read_begins_with_the_batch_that_contains_the_offset(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    log = open_sample_log(tmp_path_factory.mktemp("log"), limits=SMALL).log
    for size in sizes:
        append(log, batch(*[b"v" * 20] * size))
    offset = data.draw(st.integers(0, sum(sizes) - 1))
    header = read_batch_header(log.read(offset, 1, min_one_batch=True))
    assert header.base_offset <= offset <= header.last_offset
    assert log.read(offset, 1, min_one_batch=False) == b""


def test_reads_outside_the_log_are_refused(tmp_path: Path) -> None:
    log = filled(tmp_path, 20)
    log.advance_log_start(7)
    assert log.read(20, 100, min_one_batch=True) == b""
    for offset in (6, 21, -1):
        with pytest.raises(RequestRefused) as refused:
            log.read(offset, 100, min_one_batch=True)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_batches_are_hidden_until_fsynced_with_fsync_always(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path, limits=LogLimits(segment_bytes_max=400, fsynced_reads_only=True)).log
    woken: list[int] = []
    size = len(batch(b"v"))
    log.waiters.add(woken.append)
    for _ in range(10):
        append(log, batch(b"v"))
    job = log.flush_job()
    for _ in range(3):
        append(log, batch(b"w"))
    assert (log.high_watermark, contents(log), woken) == (0, [], [])
    log.flushed(job)
    assert (log.high_watermark, len(contents(log)), woken) == (10, 10, [10 * size])
    log.flushed(log.flush_job())
    assert (len(contents(log)), woken) == (13, [10 * size, 3 * size])
    assert not log.needs_flush


@pytest.mark.parametrize("closed_only", [False, True])
def test_writes_during_an_fsync_stay_dirty(tmp_path: Path, closed_only: bool) -> None:
    log = open_sample_log(tmp_path, limits=SMALL).log
    append(log, batch(b"before"))
    job = log.flush_job(closed_only=closed_only)
    while not log.closed:
        append(log, batch(b"meanwhile"))
    log.flushed(job)
    closed = log.closed[0].path()
    assert log.recovery_point == (0 if closed_only else 1)
    assert closed in log.flush_job(closed_only=closed_only).paths
    log.flushed(log.flush_job())
    assert not log.needs_flush and log.recovery_point == log.log_end_offset
    job = log.flush_job()
    log.segments.rebuild_indexes(log.closed[0])
    log.flushed(job)
    assert set(log.flush_job().paths) == {closed.with_suffix(suffix) for suffix in INDEX_SUFFIXES}


def test_late_flush_job_does_not_lower_the_recovery_point(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path, limits=SMALL).log
    append(log, batch(b"before"))
    early = log.flush_job()
    while not log.closed:
        append(log, batch(b"meanwhile"))
    late = log.flush_job()
    log.flushed(late)
    assert not log.needs_flush
    log.flushed(early)
    assert not log.needs_flush and log.recovery_point == log.log_end_offset


def test_the_first_record_at_a_timestamp_is_found(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path, limits=LogLimits(segment_bytes_max=20_000)).log
    for number in range(300):
        append(log, batch(*[b"v" * 50] * 3, timestamp_ms=1000 + number * 10))
    for offset in (0, 1, 2, 450, 898, 899):
        found = find_timestamp(log, 1000 + offset // 3 * 10 + offset % 3)
        assert found is not None
        assert found.offset == offset
    found = find_timestamp(log, 1003)
    assert found is not None and found.offset == 3
    assert find_timestamp(log, 1000 + 299 * 10 + 3) is None
    largest = find_timestamp(log, largest_timestamp_ms(log))
    assert largest is not None and largest.offset == 899
    log.advance_log_start(500)
    found = find_timestamp(log, 0)
    assert found is not None and found.offset == 500


def test_clean_stop_preserves_everything_without_a_scan(tmp_path: Path) -> None:
    log = filled(tmp_path, 50, LogLimits(segment_bytes_max=2000))
    before = contents(log)
    log.close()
    reopened = open_sample_log(tmp_path, is_clean=True)
    assert reopened.truncated_bytes == 0
    assert contents(reopened.log) == before
    assert append(reopened.log, batch(b"next")) == 50


@pytest.mark.parametrize("suffix", [INDEX, TIME_INDEX])
@pytest.mark.parametrize("damage", ["missing", "short", "zeros"])
def test_a_damaged_index_is_rebuilt(tmp_path: Path, suffix: str, damage: str) -> None:
    log = filled(tmp_path, 600, LogLimits(segment_bytes_max=15_000))
    log.close()
    for base in base_offsets(tmp_path):
        path = segment_path(tmp_path, base, suffix)
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-1] if damage == "short" else bytes(24 * 5 + 1))
    reopened = open_sample_log(tmp_path, is_clean=True).log
    assert contents(reopened) == [(number, b"value %d" % number) for number in range(600)]
    found = find_timestamp(reopened, NOW_MS + 321)
    assert found is not None and found.offset == 321


def test_wrong_time_index_is_detected_at_the_start(tmp_path: Path) -> None:
    """The index has the right length and ascends, but no batch has its largest timestamp."""
    log = filled(tmp_path, 600, LogLimits(segment_bytes_max=15_000))
    largest = [segment.largest for segment in log.closed]
    log.close()
    for segment in log.closed:
        raw = segment.path(TIME_INDEX).read_bytes()
        entries = [raw[at : at + TIME_ENTRY_BYTES] for at in range(0, len(raw), TIME_ENTRY_BYTES)]
        assert len(entries) > 1
        segment.path(TIME_INDEX).write_bytes(b"".join(entries[:-1]) + entries[-1][:7] + b"\x01" + entries[-1][8:])
    reopened = open_sample_log(tmp_path, is_clean=True).log
    assert [segment.largest for segment in reopened.closed] == largest
    found = find_timestamp(reopened, NOW_MS + 321)
    assert found is not None and found.offset == 321


@given(st.data())
@settings(max_examples=examples(0.5))
def test_a_log_cut_at_any_byte_recovers_to_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("log")
    expected = contents(filled(directory, 12))
    base = data.draw(st.sampled_from(base_offsets(directory)))
    path = segment_path(directory, base, LOG)
    raw = path.read_bytes()
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    log = open_sample_log(directory, limits=SMALL).log
    recovered = contents(log)
    assert recovered == expected[: len(recovered)]
    if path.stat().st_size < len(raw) and path.stat().st_size:
        assert log.log_end_offset <= expected[-1][0] + 1
    assert append(log, batch(b"new")) == log.log_end_offset - 1
    assert contents(log)[-1][1] == b"new"


@given(st.data())
@settings(max_examples=examples(0.5))
def test_a_log_with_a_flipped_byte_recovers_to_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("log")
    expected = contents(filled(directory, 12))
    path = segment_path(directory, data.draw(st.sampled_from(base_offsets(directory))), LOG)
    raw = bytearray(path.read_bytes())
    if not raw:
        return
    starts = [located.position for located in walk_batches(memoryview(raw))]
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    recovered = contents(open_sample_log(directory, limits=SMALL).log)
    assert recovered == expected[: len(recovered)]
    is_epoch = at - max(start for start in starts if start <= at) in range(12, 16)
    assert is_epoch == (len(recovered) == len(expected)), "the CRC does not cover the epoch"


def test_damage_at_any_byte_removes_only_batches_from_there_on(tmp_path: Path) -> None:
    """Offsets and contents of earlier batches are unchanged, and the removed bytes are in a `.corrupt` file."""
    complete = tmp_path / "whole"
    filled(complete, 8, LogLimits())
    raw = segment_path(complete, 0, LOG).read_bytes()
    expected, size = contents(open_sample_log(complete).log), len(raw) // 8
    for at in range(len(raw) - 2 * size, len(raw)):
        for damage in ("cut", "flipped"):
            directory = tmp_path / f"{at}-{damage}"
            directory.mkdir()
            changed = bytearray(raw[:at] if damage == "cut" else raw)
            if damage == "flipped":
                changed[at] ^= 1 << at % 8
            path = segment_path(directory, 0, LOG)
            path.write_bytes(changed)
            log = open_sample_log(directory, recovery_point=5).log
            is_epoch = damage == "flipped" and at % size in range(12, 16)
            assert contents(log) == (expected if is_epoch else expected[: at // size]), (at, damage)
            remaining = b"".join(one.read_bytes() for one in directory.glob("*.corrupt"))
            removed = changed[path.stat().st_size :]
            assert remaining == removed or (not remaining and not any(removed)), (at, damage)
            assert append(log, batch(b"new")) == log.log_end_offset - 1 == len(contents(log)) - 1


def test_torn_tail_is_truncated_and_the_rest_preserved(tmp_path: Path) -> None:
    filled(tmp_path, 30)
    last = segment_path(tmp_path, base_offsets(tmp_path)[-1], LOG)
    with last.open("ab") as file:
        file.write(batch(b"torn")[:-3])
    reopened = open_sample_log(tmp_path, limits=SMALL)
    assert reopened.truncated_bytes == len(batch(b"torn")) - 3
    assert [offset for offset, _ in contents(reopened.log)] == list(range(30))


def flipped(path: Path, at: int) -> bytes:
    """Flips a bit of a file; returns the new content."""
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    return bytes(raw)


def truncate_by(path: Path, byte_count: int) -> None:
    path.write_bytes(path.read_bytes()[:-byte_count])


def corrupt_files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.corrupt")}


def test_fsynced_segments_are_not_scanned_after_a_crash(tmp_path: Path) -> None:
    filled(tmp_path, 30)
    flipped(segment_path(tmp_path, 0, LOG), -1)
    assert open_sample_log(tmp_path, recovery_point=30).log.log_end_offset == 30
    one = tmp_path / "one"
    filled(one, 30, LogLimits())
    flipped(segment_path(one, 0, LOG), len(batch(b"value 0")) * 3 - 1)
    assert open_sample_log(one, recovery_point=20).log.log_end_offset == 30
    assert not corrupt_files(one)
    assert open_sample_log(one).log.log_end_offset == 2


@pytest.mark.parametrize("field", ["length", "offset", "version", "delta"])
@pytest.mark.parametrize("limits", [SMALL, LogLimits()], ids=["closed", "active"])
def test_damage_below_the_recovery_point_fails_the_start_or_is_repaired(
    tmp_path: Path, field: str, limits: LogLimits
) -> None:
    log = filled(tmp_path, 30, limits)
    closed = log.closed[0].next_offset if log.closed else 30
    at = len(batch(b"value 0")) + {"length": 11, "offset": 3, "version": 16, "delta": 23}[field]
    (tmp_path / FILE_NAME).unlink()  # so that the headers of closed segments are read too
    damaged = flipped(segment_path(tmp_path, 0, LOG), at)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(LogDamaged, match=r"0\.log .*\b25\b.*BROKER__ON_CORRUPTION") as error:
        open_sample_log(tmp_path, limits=limits, recovery_point=25)
    assert "\n" not in str(error.value)
    assert (error.value.path, error.value.fsynced_to) == (segment_path(tmp_path, 0, LOG), 25)
    assert files == {path.name: path.read_bytes() for path in tmp_path.iterdir()}, "nothing was touched"
    log = open_sample_log(tmp_path, limits=limits, recovery_point=25, repairs_corruption=True).log
    remaining = [(number, b"value %d" % number) for number in range(30) if number != 1]
    assert contents(log) == remaining
    assert corrupt_files(tmp_path) == {f"{0:020d}.log.corrupt": damaged}
    assert (log.log_end_offset, closed <= 30) == (30, True)
    for offset in (0, 1, 2, 29):
        header = read_batch_header(log.read(offset, 1, min_one_batch=True))
        assert header.base_offset == (2 if offset == 1 else offset)
    log.close()
    assert contents(open_sample_log(tmp_path, limits=limits, recovery_point=25).log) == remaining, (
        "the gap is no corruption"
    )
    (tmp_path / FILE_NAME).unlink()
    assert contents(open_sample_log(tmp_path, limits=limits, recovery_point=30).log) == remaining


def zero_batch(path: Path, number: int) -> None:
    """Overwrites a batch with zeros, as a lost write does. `number` counts the batches of the file from 0."""
    raw = bytearray(path.read_bytes())
    at, header = list(walk_batches(memoryview(bytes(raw))))[number]
    raw[at : at + header.size] = bytes(header.size)
    path.write_bytes(raw)


def test_batches_after_zeros_are_not_skipped(tmp_path: Path) -> None:
    log = filled(tmp_path, 30)
    assert log.closed[0].next_offset == 5
    zero_batch(segment_path(tmp_path, 0, LOG), 1)
    for read in (log.read, log.read_committed):
        for offset in (1, 2, 3, 4):
            with pytest.raises(RequestRefused) as refused:
                read(offset, 1 << 20, min_one_batch=True)
            assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert read_batch_header(log.read(5, 1, min_one_batch=True)).base_offset == 5


@pytest.mark.parametrize("segment_bytes_max", [20_000, 1 << 30], ids=["closed", "active"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_zeros_in_an_internal_log_fail_the_start(tmp_path: Path, segment_bytes_max: int, is_clean: bool) -> None:
    """Of segments so long that the indexes at their end are intact."""
    limits = LogLimits(segment_bytes_max=segment_bytes_max)
    filled(tmp_path, 400, limits).close()
    zero_batch(segment_path(tmp_path, 0, LOG), 1)
    with pytest.raises(LogDamaged):
        open_sample_log(tmp_path, limits=limits, recovery_point=400, is_clean=is_clean, verifies_fsynced=True)


def test_log_shorter_than_its_recovery_point_never_reuses_offsets(tmp_path: Path) -> None:
    log = filled(tmp_path, 30)
    last = log.closed[-1]
    truncate_by(last.path(), len(batch(b"value 10")))
    segment_path(tmp_path, log.active.base_offset, LOG).unlink()
    with pytest.raises(LogDamaged, match=rf"\b{last.next_offset - 1}\b") as error:
        open_sample_log(tmp_path, recovery_point=last.next_offset)
    assert (error.value.path, error.value.fsynced_to) == (last.path(), last.next_offset)
    log = open_sample_log(tmp_path, recovery_point=last.next_offset, repairs_corruption=True).log
    assert log.log_end_offset == last.next_offset
    assert append(log, batch(b"new")) == last.next_offset
    numbers = [offset for offset, _ in contents(log)]
    assert numbers == [*range(last.next_offset - 1), last.next_offset]
    for is_clean in (False, True):
        reopened = open_sample_log(tmp_path, recovery_point=last.next_offset, is_clean=is_clean).log
        assert contents(reopened)[-1] == (last.next_offset, b"new")


def test_empty_segment_below_the_recovery_point_is_no_damage(tmp_path: Path) -> None:
    log = filled(tmp_path, 30)
    base = log.active.base_offset
    segment_path(tmp_path, base, LOG).write_bytes(b"")
    log = open_sample_log(tmp_path, recovery_point=33, repairs_corruption=True).log
    assert append(log, batch(b"new")) == 33
    for is_clean in (False, True):
        reopened = open_sample_log(tmp_path, recovery_point=33, is_clean=is_clean).log
        assert [offset for offset, _ in contents(reopened)] == [*range(base), 33]


def remove_last_batch(path: Path) -> int:
    """Removes the last batch of a segment; returns its offset."""
    content = path.read_bytes()
    *_, last = walk_batches(memoryview(content))
    path.write_bytes(content[: last.position])
    return last.header.base_offset


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("is_whole", [True, False], ids=["one batch", "all batches"])
def test_closed_segment_without_its_last_batches_is_damaged(tmp_path: Path, is_clean: bool, is_whole: bool) -> None:
    log = filled(tmp_path, 30)
    first, second = log.closed[:2]
    lost = range(first.base_offset if not is_whole else first.next_offset - 1, first.next_offset)
    if is_whole:
        assert remove_last_batch(first.path()) == lost.start
    else:
        first.path().write_bytes(b"")
    with pytest.raises(LogDamaged, match=rf"\b{lost.start}\b.*\b{second.base_offset}\b") as error:
        open_sample_log(tmp_path, recovery_point=30, is_clean=is_clean)
    assert (error.value.path, error.value.fsynced_to) == (first.path(), 30)
    log = open_sample_log(tmp_path, recovery_point=30, is_clean=is_clean, repairs_corruption=True).log
    remaining = [(number, b"value %d" % number) for number in range(30) if number not in lost]
    assert contents(log) == remaining
    header = next(log.batches(lost.start))[0].header
    assert (header.last_offset, header.record_count, header.leader_epoch) == (lost.stop - 1, 0, 0)
    for path in (tmp_path / f"{first.base_offset:020d}{suffix}" for suffix in INDEX_SUFFIXES):
        path.unlink(missing_ok=True)
    for is_clean in (True, False):
        assert contents(open_sample_log(tmp_path, recovery_point=30, is_clean=is_clean).log) == remaining, (
            "that is known"
        )


def test_closed_segment_shorter_than_its_indexes_is_damaged(tmp_path: Path) -> None:
    log = filled(tmp_path, 2000, LogLimits(segment_bytes_max=64_000))
    first = log.closed[0]
    assert first.path(INDEX).stat().st_size > 8
    remove_last_batch(first.path())
    with pytest.raises(LogDamaged, match=rf"\b{first.next_offset - 1}\b.*\b{log.closed[1].base_offset}\b") as error:
        open_sample_log(tmp_path, recovery_point=2000)
    assert error.value.path == first.path()


@pytest.mark.parametrize("recovery_point", [None, 2])
def test_log_is_truncated_where_a_dirty_closed_segment_ends_early(tmp_path: Path, recovery_point: int | None) -> None:
    """As after a power failure soon after a segment was closed; a new partition has no recovery point yet."""
    log = filled(tmp_path, 30)
    first, later = log.closed[0], [segment.path().read_bytes() for segment in log.closed[1:]]
    later.append(segment_path(tmp_path, log.active.base_offset, LOG).read_bytes())
    end = remove_last_batch(first.path())
    reopened = open_sample_log(tmp_path, recovery_point=recovery_point)
    assert [offset for offset, _ in contents(reopened.log)] == list(range(end))
    assert reopened.log.log_end_offset == end and reopened.truncated_bytes == sum(map(len, later))
    assert sorted(corrupt_files(tmp_path).values()) == sorted(later)


def test_missing_log_files_are_damage(tmp_path: Path) -> None:
    with pytest.raises(LogDamaged) as error:
        open_sample_log(tmp_path, recovery_point=7, is_clean=True)
    assert error.value.fsynced_to == 7
    log = open_sample_log(tmp_path, recovery_point=7, repairs_corruption=True).log
    assert append(log, batch(b"x")) == 7


def test_truncated_bytes_are_saved_until_retention(tmp_path: Path) -> None:
    log = filled(tmp_path, 30)
    second = log.closed[1]
    flipped(second.path(), -1)
    later = [segment.path().read_bytes() for segment in log.closed[2:]]
    later.append(segment_path(tmp_path, log.active.base_offset, LOG).read_bytes())
    reopened = open_sample_log(tmp_path, limits=SMALL, recovery_point=second.base_offset)
    end = reopened.log.log_end_offset
    assert contents(reopened.log) == [(number, b"value %d" % number) for number in range(second.next_offset - 1)]
    found = corrupt_files(tmp_path)
    assert [found[name] for name in sorted(found)][1:] == [raw for raw in later if raw]
    assert sum(map(len, found.values())) == reopened.truncated_bytes
    open_sample_log(tmp_path, recovery_point=end, log_start_offset=end)
    assert corrupt_files(tmp_path) == found
    open_sample_log(tmp_path, recovery_point=end, log_start_offset=end + 1)
    assert min(map(int, (name[:20] for name in corrupt_files(tmp_path)))) == second.next_offset


def test_truncated_zeros_are_not_saved(tmp_path: Path) -> None:
    filled(tmp_path, 3, LogLimits())
    with segment_path(tmp_path, 0, LOG).open("ab") as file:
        file.write(bytes(10_000))
    assert (open_sample_log(tmp_path).truncated_bytes, corrupt_files(tmp_path)) == (10_000, {})


def test_gaps_of_a_compacted_log_are_accepted(tmp_path: Path) -> None:
    """Gaps in offsets, empty batches, and epochs without their first batches, as compaction leaves them."""
    log = filled(tmp_path, 30)
    first = log.closed[0]
    size = len(batch(b"value 0"))
    raw = first.path().read_bytes()
    emptied = bytearray(raw[2 * size : 2 * size + 61])
    struct.pack_into(">i", emptied, 8, 61 - 12)
    struct.pack_into(">i", emptied, 57, 0)
    struct.pack_into(">I", emptied, 17, crc32c(bytes(emptied[21:])))
    remaining = [number for number in range(30) if number not in (0, 2)]
    first.path().write_bytes(raw[size : 2 * size] + bytes(emptied) + raw[3 * size :])
    for path in (*tmp_path.glob("*index"), *tmp_path.glob("*.snapshot"), tmp_path / FILE_NAME):
        path.unlink()
    for point in (None, first.next_offset, 30):
        log = open_sample_log(tmp_path, limits=SMALL, recovery_point=point).log
        assert [offset for offset, _ in contents(log)] == remaining
        assert read_batch_header(log.read(0, 1, min_one_batch=True)).base_offset == 1


@pytest.mark.parametrize("suffix", [INDEX, TIME_INDEX])
def test_index_corrupted_at_runtime_does_not_affect_reads(tmp_path: Path, suffix: str) -> None:
    log = filled(tmp_path, 600, LogLimits(segment_bytes_max=15_000))
    for segment in log.closed:
        path = segment.path(suffix)
        raw = bytearray(path.read_bytes())
        for at in range(3, len(raw), 4):
            raw[at] ^= 0x5A
        path.write_bytes(raw)
    for number in range(0, 600, 7):
        assert read_batch_header(log.read(number, 1, min_one_batch=True)).base_offset == number
        found = find_timestamp(log, NOW_MS + number)
        assert found is not None and found.offset == number
    assert log.needs_flush, "rebuilt indexes are fsynced again"


def test_correct_indexes_are_not_rebuilt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, 600, LogLimits(segment_bytes_max=15_000)).close()
    reopened = open_sample_log(tmp_path, is_clean=True).log
    for number in range(0, 600, 7):
        reopened.read(number, 1, min_one_batch=True)
        find_timestamp(reopened, NOW_MS + number)
    assert not logged(caplog, "broker.log.segments")


@given(st.data())
@settings(max_examples=examples(0.25))
def test_bit_flip_in_an_index_hides_nothing(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """In a closed segment or the active one: reads begin at the same batch as without the index, and the aborted
    transactions cover the records that are read."""
    directory = tmp_path_factory.mktemp("log")
    limits = LogLimits(segment_bytes_max=data.draw(st.sampled_from([15_000, 1 << 30])))
    log = filled(directory, 600, limits)
    for path in log.close():
        assert path.exists()
    path = segment_path(
        directory, data.draw(st.sampled_from(base_offsets(directory))), data.draw(st.sampled_from([INDEX, TIME_INDEX]))
    )
    raw = bytearray(path.read_bytes())
    if raw:
        bit = data.draw(st.integers(0, len(raw) * 8 - 1))
        raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)
    reopened = open_sample_log(directory, is_clean=True, limits=limits).log
    for number in range(0, 600, 5):
        assert read_batch_header(reopened.read(number, 1, min_one_batch=True)).base_offset == number
        found = find_timestamp(reopened, NOW_MS + number)
        assert found is not None and found.offset == number
        records, base, end = reopened.segments.read(number, 5000, reopened._visible, min_one_batch=True)
        *_, last = walk_batches(memoryview(bytes(records)))
        assert last.header.last_offset < reopened.segments.offset_at(base, end)


@pytest.mark.parametrize("entries_lost", [1, 2])
def test_truncated_time_index_is_detected_at_the_start(tmp_path: Path, entries_lost: int) -> None:
    log = filled(tmp_path, 600, LogLimits(segment_bytes_max=15_000))
    largest = [segment.largest for segment in log.closed]
    log.close()
    for segment in log.closed:
        path = segment.path(TIME_INDEX)
        path.write_bytes(path.read_bytes()[: -entries_lost * TIME_ENTRY_BYTES])
    reopened = open_sample_log(tmp_path, is_clean=True).log
    assert [segment.largest for segment in reopened.closed] == largest


def test_indexes_and_snapshots_are_fsynced_at_close(tmp_path: Path) -> None:
    log = filled(tmp_path, 3, LogLimits())
    assert {tmp_path, tmp_path / FILE_NAME, segment_path(tmp_path, 0, LOG)} == set(log.flush_job().paths)
    log.flushed(log.flush_job())
    assert log.flush_job().paths == ()
    append(log, batch(b"x"))
    suffixes = {path.suffix for path in log.close() if path.is_file()}
    assert suffixes == {LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT}


def test_segment_offsets_fit_into_32_bits(tmp_path: Path) -> None:
    log = filled(tmp_path, 3, LogLimits())
    log.active.next_offset = 2**31 - 2
    append(log, batch(b"x", b"y"))
    assert not log.closed, "the last offset is 2**31 - 1"
    append(log, batch(b"z"))
    assert [segment.next_offset for segment in log.closed] == [2**31]


@pytest.mark.parametrize("is_clean", [True, False])
def test_restarts_do_not_reset_the_age_of_a_segment(tmp_path: Path, is_clean: bool) -> None:
    aging = LogLimits(segment_ms_max=1000)
    append(open_sample_log(tmp_path, limits=aging).log, batch(b"first", timestamp_ms=NOW_MS - 900), NOW_MS - 900)
    for later_ms, closed in ((0, 0), (101, 1)):
        log = open_sample_log(tmp_path, is_clean=is_clean, limits=aging).log
        append(log, batch(b"later", timestamp_ms=NOW_MS + later_ms), NOW_MS + later_ms)
        assert len(log.closed) == closed
        log.roll_if_older(NOW_MS - 900, NOW_MS)
        assert len(log.closed) == closed


@pytest.mark.parametrize("timestamp_ms", [-1, NOW_MS + 1, NOW_MS + 10**9])
def test_segment_without_plausible_timestamp_is_as_old_as_the_start(tmp_path: Path, timestamp_ms: int) -> None:
    append(open_sample_log(tmp_path).log, batch(b"first", timestamp_ms=timestamp_ms))
    log = open_sample_log(tmp_path, limits=LogLimits(segment_ms_max=1000)).log
    append(log, batch(b"second"), NOW_MS + 1000)
    assert not log.closed
    append(log, batch(b"third"), NOW_MS + 1001)
    assert len(log.closed) == 1


def test_indexes_are_fsynced_even_if_the_log_already_was(tmp_path: Path) -> None:
    log = filled(tmp_path, 3, LogLimits())
    log.flushed(log.flush_job())
    log.roll(NOW_MS)
    assert log.needs_flush
    *indexes, directory = log.flush_job().paths
    assert {path.suffix for path in indexes} == {INDEX, TIME_INDEX, TXN_INDEX}
    assert directory == tmp_path  # it has the name of the new segment


def test_retention_drops_old_segments_and_advances_the_log_start(tmp_path: Path) -> None:
    log = filled(tmp_path, 30)
    dropped = log.closed[1].next_offset
    renamed = log.drop_segments(2)
    assert len(renamed) == 2 * len(SEGMENT_SUFFIXES) and all(path.exists() for path in renamed)
    assert log.log_start_offset == dropped
    assert contents(log)[0] == (dropped, b"value %d" % dropped)
    reopened = open_sample_log(tmp_path, limits=SMALL).log
    assert reopened.log_start_offset == dropped
    assert not any(path.exists() for path in renamed)


def test_segments_are_deleted_durably_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start would treat a gap between segments as data loss."""
    log = filled(tmp_path, 30)
    bases = base_offsets(tmp_path)
    certain: list[list[int]] = []
    monkeypatch.setattr(
        "headrace.broker.log.segments.sync_directory", lambda directory: certain.append(base_offsets(directory))
    )
    log.drop_segments(3)
    assert certain == [bases[1:], bases[2:]]
    assert base_offsets(tmp_path) == bases[3:]


def test_log_end_offset_survives_deletion_of_all_segments(tmp_path: Path) -> None:
    log = filled(tmp_path, 10)
    log.roll(NOW_MS)
    log.drop_segments(len(log.closed))
    assert (log.log_start_offset, log.log_end_offset, contents(log)) == (10, 10, [])
    reopened = open_sample_log(tmp_path).log
    assert (reopened.log_start_offset, append(reopened, batch(b"x"))) == (10, 10)


def restarted(directory: Path, leader_epoch: int, values: int, **settings: Any) -> PartitionLog:
    """Restarts the log with this epoch and appends a number of batches."""
    log = open_sample_log(directory, limits=SMALL, leader_epoch=leader_epoch, **settings).log
    for _ in range(values):
        append(log, batch(b"value"))
    return log


def epochs_in(log: PartitionLog) -> list[int]:
    return [located.header.leader_epoch for located, _ in log.batches(log.log_start_offset)]


@pytest.mark.parametrize("is_clean", [True, False])
def test_batches_have_the_leader_epoch_of_their_start(tmp_path: Path, is_clean: bool) -> None:
    restarted(tmp_path, 5, 10).close()
    restarted(tmp_path, 7, 0, is_clean=is_clean).close()
    log = restarted(tmp_path, 9, 6, is_clean=is_clean)
    assert epochs_in(log) == [5] * 10 + [9] * 6
    assert [log.epochs.at(offset) for offset in range(16)] == epochs_in(log)
    requested = {epoch: log.epoch_end(epoch) for epoch in (4, 5, 6, 8, 9, 10)}
    assert requested == {4: (4, 0), 5: (5, 10), 6: (5, 10), 8: (5, 10), 9: (9, 16), 10: None}
    assert (tmp_path / FILE_NAME).read_text() == "0\n2\n5 0\n9 10\n"


def test_current_epoch_ends_at_the_log_end_even_without_batches(tmp_path: Path) -> None:
    restarted(tmp_path, 5, 3).close()
    log = restarted(tmp_path, 7, 0, is_clean=True)
    assert (log.epoch_end(7), log.epoch_end(6), log.epoch_end(5)) == ((7, 3), (5, 3), (5, 3))
    assert open_sample_log(tmp_path / "empty", leader_epoch=7).log.epoch_end(5) is None


def epoch_end_by_batches(log: PartitionLog, epoch: int) -> tuple[int, int]:
    headers = [located.header for located, _ in log.batches(log.log_start_offset)]
    below = [header for header in headers if header.leader_epoch <= epoch]
    return (below[-1].leader_epoch, below[-1].last_offset + 1) if below else (epoch, headers[0].base_offset)


@pytest.mark.parametrize("order", [1, -1])
def test_epoch_ends_match_the_batches_despite_bit_flips_in_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, order: int
) -> None:
    for leader_epoch, values in ((5, 10), (7, 15), (8, 1), (9, 6)):
        restarted(tmp_path, leader_epoch, values).close()
    path = tmp_path / FILE_NAME
    complete = path.read_bytes()
    assert complete == b"0\n4\n5 0\n7 10\n8 25\n9 26\n"
    for bit in range(len(complete) * 8):
        flipped = bytearray(complete)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        log = open_sample_log(tmp_path, limits=SMALL, leader_epoch=12, is_clean=True).log
        for epoch in range(4, 12)[::order]:
            assert log.epoch_end(epoch) == epoch_end_by_batches(log, epoch), (bytes(flipped), epoch)
    path.write_bytes(complete.replace(b"7 10", b"6 10"))
    log = open_sample_log(tmp_path, limits=SMALL, leader_epoch=12, is_clean=True).log
    log.advance_log_start(12)
    caplog.clear()
    assert [log.epoch_end(epoch) for epoch in (5, 6, 7, 8)] == [(5, 10), (6, 12), (7, 25), (8, 26)]
    assert len(logged(caplog, "broker.log.partition_log", tmp_path.name)) == len(caplog.records) == 1
    assert path in log.flush_job().paths and path.read_bytes() == b"0\n3\n7 12\n8 25\n9 26\n"


def test_truncated_log_continues_under_a_new_epoch(tmp_path: Path) -> None:
    restarted(tmp_path, 5, 2).close()
    restarted(tmp_path, 7, 4)
    last = segment_path(tmp_path, base_offsets(tmp_path)[-1], LOG)
    last.write_bytes(last.read_bytes()[:-1])
    log = restarted(tmp_path, 9, 3)
    assert epochs_in(log) == [5] * 2 + [7] * 3 + [9] * 3
    assert log.epoch_end(7) == (7, 5)
    for path in tmp_path.glob("*.log"):
        path.write_bytes(path.read_bytes()[: len(batch(b"value"))] if path.name.startswith("0" * 20) else b"")
    log = restarted(tmp_path, 11, 1)
    assert epochs_in(log) == [5, 11]
    assert (log.epoch_end(9), log.epoch_end(11)) == ((5, 1), (11, 2))


@pytest.mark.parametrize(
    "content", [None, b"", b"0\n9\n5 0\n", b"0\n1\nx y\n", b"\xff", b"0\n2\n7 3\n5 0\n", b"0\n2\n5 0\n7 1"]
)
def test_missing_epoch_file_is_rebuilt_from_the_batches(tmp_path: Path, content: bytes | None) -> None:
    restarted(tmp_path, 5, 10).close()
    restarted(tmp_path, 7, 5, is_clean=True).close()
    if content is None:
        (tmp_path / FILE_NAME).unlink()
    else:
        (tmp_path / FILE_NAME).write_bytes(content)
    log = restarted(tmp_path, 9, 0, is_clean=True)
    assert (len(contents(log)), log.epoch_end(5), log.epoch_end(7)) == (15, (5, 10), (7, 15))
    log.close()
    restarted_log = restarted(tmp_path, 11, 0, is_clean=True)
    assert restarted_log.epoch_end(5) == (5, 10)


def test_outdated_epoch_file_is_completed(tmp_path: Path) -> None:
    restarted(tmp_path, 5, 10).close()
    before = (tmp_path / FILE_NAME).read_bytes()
    restarted(tmp_path, 7, 5, is_clean=True)
    (tmp_path / FILE_NAME).write_bytes(before)
    restarted(tmp_path, 9, 0).close()
    assert restarted(tmp_path, 11, 0, is_clean=True).epoch_end(5) == (5, 10)


def test_epochs_removed_by_retention_are_dropped(tmp_path: Path) -> None:
    for epoch in range(1, 8):
        restarted(tmp_path, epoch, 5).close()
    log = restarted(tmp_path, 9, 1)
    log.advance_log_start(22)
    log.close()
    log = restarted(tmp_path, 11, 1, log_start_offset=22)
    assert list(log.epochs) == [(5, 20), (6, 25), (7, 30), (9, 35), (11, 36)]
    assert log.epoch_end(3) == (3, 20), "all its batches were before the first remaining one"


@pytest.mark.parametrize(("number", "epoch"), [(4, 3), (4, 6), (4, 10), (1, 3), (1, 6), (1, 10)])
def test_implausible_epoch_costs_no_batch(tmp_path: Path, number: int, epoch: int) -> None:
    restarted(tmp_path, 5, 3).close()
    restarted(tmp_path, 7, 3)
    path = segment_path(tmp_path, 0, LOG)
    raw = bytearray(path.read_bytes())
    struct.pack_into(">i", raw, number * len(batch(b"value")) + 12, epoch)
    path.write_bytes(raw)
    log = restarted(tmp_path, 9, 1)
    assert len(contents(log)) == 7
    assert list(log.epochs) == [(5, 0), (7, 3), (9, 6)]


def test_epochs_without_offsets_are_dropped() -> None:
    starts = [(3, 0), (5, 20), (7, 30)]
    for start, end, left in ((0, 40, starts), (19, 31, starts), (20, 31, starts[1:]), (30, 31, starts[2:])):
        epochs = LeaderEpochs(starts)
        epochs.trim(start, end)
        assert list(epochs) == left
    epochs.trim(0, 30)
    assert list(epochs) == []


def test_newer_of_two_epochs_at_one_offset_wins() -> None:
    epochs = LeaderEpochs([(3, 0), (5, 10), (7, 10)])
    assert (epochs.at(9), epochs.at(10), epochs.end_of(5, 20)) == (3, 7, (5, 10))


def segment(next_offset: int, size: int, timestamp_ms: int) -> ClosedSegment:
    return ClosedSegment(Path("nowhere"), next_offset - 10, next_offset, size, TimeEntry(timestamp_ms, 9))


@pytest.mark.parametrize(
    ("retention_ms", "retention_bytes", "log_start_offset", "high_watermark", "expected"),
    [
        (UNLIMITED, UNLIMITED, 0, 99, 0),
        (500, UNLIMITED, 0, 99, 1),
        (100, UNLIMITED, 0, 99, 2),
        (0, UNLIMITED, 0, 99, 3),
        (0, UNLIMITED, 0, 15, 1),
        (UNLIMITED, 300, 0, 99, 1),
        (UNLIMITED, 301, 0, 99, 0),
        (UNLIMITED, 0, 0, 99, 3),
        (UNLIMITED, UNLIMITED, 20, 99, 2),
        (UNLIMITED, UNLIMITED, 19, 99, 1),
    ],
)
def test_expired_segments(
    retention_ms: int, retention_bytes: int, log_start_offset: int, high_watermark: int, expected: int
) -> None:
    closed = [segment(10, 100, 1000), segment(20, 100, 1500), segment(30, 100, 1900)]
    count = expired_segments(
        closed,
        now_ms=1700 + 300,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        total_bytes=400,
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
    )
    assert count == expected


def test_index_files_have_kafkas_layout() -> None:
    index, times = OffsetIndex(), TimeIndex()
    index.add(5, 4200)
    index.add(9, 9000)
    times.add(TimeEntry(1000, 5))
    times.add(TimeEntry(1000, 7))
    times.add(TimeEntry(2000, 9))
    assert index.to_bytes() == struct.pack(">iiii", 5, 4200, 9, 9000)
    assert times.to_bytes() == struct.pack(">qiqi", 1000, 5, 2000, 9)
    first, second = OffsetEntry(5, 4200), OffsetEntry(9, 9000)
    assert [index.floor(offset) for offset in (4, 5, 8, 9, 100)] == [None, first, first, second, second]
    assert [index.first_from(position) for position in (4200, 4201, 9000, 9001)] == [first, second, second, None]
    early, late = TimeEntry(1000, 5), TimeEntry(2000, 9)
    assert [times.below(timestamp) for timestamp in (1000, 1001, 2000, 2001)] == [None, early, early, late]
    assert OffsetIndex.from_bytes(index.to_bytes(), 9000) is None, "an entry must not point past the log"
    assert OffsetIndex.from_bytes(struct.pack(">iiii", 5, 4200, 4, 9000), 10_000) is None


def with_counts(raw: bytes, record_count: int, last_offset_delta: int, length: int | None = None) -> bytes:
    """Returns the batch with other counts in its header, optionally another length, and a valid CRC."""
    changed = bytearray(raw)
    struct.pack_into(">i", changed, 8, len(raw) - LENGTH_OVERHEAD if length is None else length)
    struct.pack_into(">i", changed, 23, last_offset_delta)
    struct.pack_into(">i", changed, 57, record_count)
    return with_attributes(bytes(changed), 0)


def test_data_that_is_not_one_intact_batch_is_refused() -> None:
    with all_cases() as case:
        for raw, code in [
            (b"", ErrorCode.CORRUPT_MESSAGE),
            (bytes(MAGIC_AT), ErrorCode.CORRUPT_MESSAGE),
            (with_counts(batch(b"x")[:HEADER_BYTES], 0, -1), ErrorCode.INVALID_RECORD),
            (with_counts(batch(b"x"), 0, -1), ErrorCode.INVALID_RECORD),
            (with_counts(batch(b"x"), 1, 1), ErrorCode.INVALID_RECORD),
            (with_counts(batch(b"x"), 2, 1), ErrorCode.INVALID_RECORD),
            (with_counts(batch(b"x"), 1, 0, HEADER_BYTES - LENGTH_OVERHEAD), ErrorCode.INVALID_RECORD),
            (with_counts(batch(b"x"), 1, 0, HEADER_BYTES - LENGTH_OVERHEAD - 1), ErrorCode.CORRUPT_MESSAGE),
            (batch(b"x")[:30], ErrorCode.CORRUPT_MESSAGE),
            (batch(b"x")[:-1], ErrorCode.CORRUPT_MESSAGE),
            (batch(b"x")[:-1] + b"\xff", ErrorCode.CORRUPT_MESSAGE),
            (batch(b"x") + batch(b"y"), ErrorCode.INVALID_RECORD),
            (batch(b"x" * 2000), ErrorCode.MESSAGE_TOO_LARGE),
            (batch(b"x")[:16] + b"\x01" + batch(b"x")[17:], ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
            (bytes(16) + b"\x00" + bytes(20), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
            (batch(b"x")[:16] + b"\x03" + batch(b"x")[17:], ErrorCode.CORRUPT_MESSAGE),
            (with_attributes(batch(b"x"), 7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
            (with_attributes(batch(b"x"), 0x10), ErrorCode.INVALID_RECORD),
            (with_attributes(batch(b"x"), 0x20), ErrorCode.INVALID_RECORD),
        ]:
            with case((raw[:80], len(raw), code)):
                with pytest.raises(RequestRefused) as refused:
                    validate_batch(memoryview(raw), 1000)
                assert refused.value.code is code


def test_intact_batch_is_accepted_up_to_the_size_limit() -> None:
    with all_cases() as case:
        for raw, record_count in [
            (batch(b""), 1),
            (batch(*[b""] * 100), 100),
            (batch(*[b""] * 1000, codec=1), 1000),
            (batch(b"x", producer_id=0, epoch=0, sequence=0, is_transactional=True), 1),
            *((with_attributes(batch(b"x"), codec), 1) for codec in range(5)),
        ]:
            with case((raw[:80], len(raw))):
                assert validate_batch(memoryview(raw), len(raw)).record_count == record_count
                with pytest.raises(RequestRefused) as refused:
                    validate_batch(memoryview(raw), len(raw) - 1)
                assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


def idempotent(sequence: int, count: int = 1, epoch: int = 0, producer_id: int = 7) -> bytes:
    return batch(*[b"v"] * count, producer_id=producer_id, epoch=epoch, sequence=sequence)


def refusal(log: PartitionLog, raw: bytes) -> ErrorCode:
    end = log.log_end_offset
    with pytest.raises(RequestRefused) as refused:
        append(log, raw)
    assert log.log_end_offset == end
    return refused.value.code


@pytest.mark.parametrize("producer_id", [0, 7])
def test_retry_gets_the_original_offset(tmp_path: Path, producer_id: int) -> None:
    log = open_sample_log(tmp_path).log

    def idempotent(sequence: int, count: int) -> bytes:
        return batch(*[b"v"] * count, producer_id=producer_id, epoch=0, sequence=sequence)

    offsets = [append(log, idempotent(3 * number, 3)) for number in range(7)]
    assert offsets == [0, 3, 6, 9, 12, 15, 18]
    assert [append(log, idempotent(3 * number, 3)) for number in (6, 2, 4)] == [18, 6, 12]
    assert log.log_end_offset == 21
    assert refusal(log, idempotent(0, 3)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER, "the window is five batches"
    assert refusal(log, idempotent(4, 3)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert refusal(log, idempotent(15, 2)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER, (
        "no stored batch has exactly this range"
    )
    assert refusal(log, idempotent(15, 9)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(log, idempotent(19, 3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "part of it was never stored"


def test_removed_batches_do_not_count_as_stored() -> None:
    """As after compaction, or after a start that reads a log which retention has shortened."""
    states = ProducerStates()
    for sequence, offset in ((0, 0), (9, 9), (10, 10)):
        states.record(header_of(idempotent(sequence)), offset, NOW_MS)
    assert states.duplicate_of(header_of(idempotent(9))) == 9
    for sequence in (1, 8):
        with pytest.raises(RequestRefused) as refused:
            states.duplicate_of(header_of(idempotent(sequence)))
        assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequence_gaps_and_old_epochs_are_refused(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path).log
    append(log, idempotent(41))
    assert refusal(log, idempotent(43)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    with pytest.raises(RequestRefused, match=r"\b7\b.*\b1\b.*\b0\b") as refused:
        append(log, idempotent(1, epoch=1))
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, idempotent(0, epoch=1))
    assert refusal(log, idempotent(42, epoch=0)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(log, batch(b"v", producer_id=7, epoch=1)) is ErrorCode.INVALID_RECORD
    append(log, idempotent(0, producer_id=8))


def test_sequences_wrap_to_zero(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path).log
    append(log, idempotent(2**31 - 2, 3))
    assert refusal(log, idempotent(2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(log, idempotent(0)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    append(log, idempotent(1))


def test_unknown_sequences_do_not_count_as_stored(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path).log
    for sequence in range(40, 48):
        append(log, idempotent(sequence))
    assert refusal(log, idempotent(40)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert refusal(log, idempotent(39)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "the state begins at 40"
    assert refusal(log, idempotent(39, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, idempotent(0, epoch=1))
    assert refusal(log, idempotent(47, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, (
        "it belongs to another epoch"
    )


def test_producer_expires_after_a_day_without_batches() -> None:
    states = ProducerStates()
    for producer_id, seen_at_ms in ((7, NOW_MS), (8, NOW_MS - 1)):
        states.record(header_of(idempotent(5, producer_id=producer_id)), 5, seen_at_ms)
    states.expire(NOW_MS + EXPIRATION_MS)
    assert list(states.ids()) == [7]
    with pytest.raises(RequestRefused):
        states.duplicate_of(header_of(idempotent(9)))
    states.expire(NOW_MS + EXPIRATION_MS + 1)
    assert states.duplicate_of(header_of(idempotent(9))) is None


@pytest.mark.parametrize("ending", ["stopped", "killed", "rolled and killed"])
def test_last_five_batches_can_be_retried_after_a_restart(tmp_path: Path, ending: str) -> None:
    log = open_sample_log(tmp_path).log
    offsets = [append(log, idempotent(2 * number, 2)) for number in range(9)]
    if ending == "stopped":
        log.close()
    elif ending == "rolled and killed":
        log.roll(NOW_MS)
    reopened = open_sample_log(tmp_path, is_clean=ending == "stopped").log
    assert [append(reopened, idempotent(2 * number, 2)) for number in range(4, 9)] == offsets[4:]
    assert refusal(reopened, idempotent(6, 2)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert refusal(reopened, idempotent(0, 2)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert refusal(reopened, idempotent(20, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(reopened, idempotent(18, 2)) == 18


def test_truncated_snapshot_is_rejected() -> None:
    states = ProducerStates()
    for count in range(2):
        content = states.to_snapshot()
        reloaded = ProducerStates.from_snapshot(content)
        assert reloaded is not None and dict(reloaded) == dict(states) and len(reloaded) == count
        assert all(ProducerStates.from_snapshot(content[:size]) is None for size in range(len(content)))
        states.record(header_of(idempotent(5, 3)), 20, NOW_MS)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("damage", [False, True])
def test_producer_states_survive_a_restart(tmp_path: Path, is_clean: bool, damage: bool) -> None:
    log = open_sample_log(tmp_path, limits=SMALL).log
    for number in range(12):
        append(log, idempotent(number))
        append(log, batch(b"plain"))
    log.close()
    if damage:
        newest = segment_path(tmp_path, base_offsets(tmp_path, SNAPSHOT)[-1], SNAPSHOT)
        newest.write_bytes(newest.read_bytes()[:-1] + b"\xff")
    reopened = open_sample_log(tmp_path, is_clean=is_clean, limits=SMALL).log
    assert append(reopened, idempotent(11)) == 22
    assert refusal(reopened, idempotent(13)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(reopened, idempotent(12)) == 24


def test_failed_append_leaves_the_log_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, 3)
    size = log.active.size

    def write_half(fd: int, pieces: list[bytes], position: int) -> int:
        import os

        os.pwrite(fd, b"".join(pieces)[:20], position)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwritev", write_half)
    assert refusal(log, batch(b"x")) is ErrorCode.STORAGE_ERROR
    assert segment_path(tmp_path, 0, LOG).stat().st_size == size
    monkeypatch.undo()
    assert append(log, batch(b"x")) == 3


def test_header_fields() -> None:
    header = header_of(batch(b"a", b"b", producer_id=5, epoch=2, sequence=9))
    assert (header.record_count, header.last_offset_delta, header.max_timestamp) == (2, 1, NOW_MS + 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 2, 9)
