"""Sample record batches and logs for broker tests."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c
from kafka.record.default_records import DefaultRecordBatchBuilder

from headrace.broker.log import compaction
from headrace.broker.log.decoding import decode_records
from headrace.broker.log.files import OpenFiles
from headrace.broker.log.partition_log import LogLimits, PartitionLog
from headrace.broker.log.recovery import OpenLog, open_log
from headrace.broker.log.scan import SegmentFacts
from headrace.broker.log.segment import ClosedSegment
from headrace.broker.log.time_search import TimeSearch, TimestampOffset
from headrace.kafka_wire.record_batch import CONTROL, BatchHeader, read_batch_header

NOW_MS = 1_700_000_000_000


def batch(
    *values: bytes,
    timestamp_ms: int = NOW_MS,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    codec: int = 0,
    is_transactional: bool = False,
) -> bytes:
    """Returns a record batch as a producer sends it; timestamps increase by one millisecond per record."""
    builder = DefaultRecordBatchBuilder(2, codec, is_transactional, producer_id, epoch, sequence, 1 << 30)
    for delta, value in enumerate(values):
        builder.append(delta, timestamp_ms + delta, None, value, [])
    return bytes(builder.build())


def with_attributes(raw: bytes, attributes: int) -> bytes:
    """Returns the batch with other attributes and a valid CRC."""
    changed = bytearray(raw)
    struct.pack_into(">h", changed, 21, attributes)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def header_of(raw: bytes) -> BatchHeader:
    return read_batch_header(raw)


LOGS_OPEN_MAX = 4  # open logs per test; older ones are closed, since a property test opens hundreds
_open: deque[OpenFiles] = deque()


def open_sample_log(
    directory: Path,
    *,
    is_clean: bool = False,
    recovery_point: int | None = 0,
    limits: LogLimits | None = None,
    log_start_offset: int = 0,
    leader_epoch: int = 0,
    repairs_corruption: bool = False,
    verifies_fsynced: bool = False,
) -> OpenLog:
    directory.mkdir(parents=True, exist_ok=True)
    files = OpenFiles(64)
    _open.append(files)
    if len(_open) > LOGS_OPEN_MAX:
        _open.popleft().close()
    return open_log(
        directory,
        files,
        limits or LogLimits(),
        is_clean=is_clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        leader_epoch=leader_epoch,
        repairs_corruption=repairs_corruption,
        verifies_fsynced=verifies_fsynced,
        now_ms=NOW_MS,
    )


def append(log: PartitionLog, raw: bytes, now_ms: int = NOW_MS) -> int:
    return log.append(raw, read_batch_header(raw), now_ms)


def replace_segments(log: PartitionLog, group: Sequence[ClosedSegment], facts: SegmentFacts) -> None:
    """Replaces segments of a log by a file that compaction has written, with the same steps as the broker's log
    cleaner.

    Args:
        group: the segments to replace.
        facts: offsets, size and indexes of the new segment.
    """
    compaction.stage_swap(group)
    log.replace_segments(group, facts)
    for path in compaction.complete_swap(group):
        path.unlink(missing_ok=True)


def find_timestamp(log: PartitionLog, timestamp_ms: int) -> TimestampOffset | None:
    """Returns the first record at or above a timestamp, None if there is none."""
    search = TimeSearch(log, timestamp_ms)
    while not search.is_done:
        batch = search.step()
        if batch is not None:
            search.record_result(batch, batch.first_record())
    return search.found


def contents(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    """Returns offset and value of every record from the log start offset on."""
    return [
        (offset, value)
        for _, raw in log.batches(log.log_start_offset)
        for offset, _, _, value, _ in decode_records(raw)
        if offset >= log.log_start_offset
    ]


def committed(log: PartitionLog) -> list[bytes]:
    """Returns the values of all committed records below the last stable offset."""
    deleted = log.aborted(0, log.log_end_offset)
    found = []
    for located, raw in log.batches(log.log_start_offset):
        header = located.header
        is_aborted = any(
            one.producer_id == header.producer_id and one.first_offset <= header.base_offset <= one.last_offset
            for one in deleted
        )
        if not header.attributes & CONTROL and not is_aborted and header.last_offset < log.last_stable_offset:
            found += [value or b"" for _, _, _, value, _ in decode_records(raw)]
    return found


def keyed_batch(
    *entries: tuple[bytes | None, bytes | None],
    timestamp_ms: int = NOW_MS,
    producer_id: int = -1,
    sequence: int = -1,
    codec: int = 0,
    is_transactional: bool = False,
) -> bytes:
    """Returns a record batch of (key, value) pairs as a producer sends it."""
    epoch = 0 if producer_id >= 0 else -1
    builder = DefaultRecordBatchBuilder(2, codec, is_transactional, producer_id, epoch, sequence, 1 << 30)
    for delta, (key, value) in enumerate(entries):
        builder.append(delta, timestamp_ms + delta, key, value, [("h", b"1")])
    return bytes(builder.build())
