"""Reads the batches, and optionally the records, of a partition's log for printing. A broker may be running on the
directory."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.broker.inspect.walk import Damage, SegmentWalk, segment_files
from headrace.broker.log.decoding import DECODED_BYTES_MAX, decode_records
from headrace.broker.log.scan import LocatedBatch
from headrace.kafka_wire.errors import CorruptBatch
from headrace.kafka_wire.record_batch import CONTROL, BatchHeader, parse_headers

TAIL_RETRY_DELAY_S = 0.1
"""If the end of the last segment seems damaged, it is read again after this delay: a broker may be writing a batch
there."""
MARKERS = {0: "abort", 1: "commit"}

_CONTROL_KEY = struct.Struct(">hh")


@dataclass(frozen=True, slots=True)
class DumpedRecord:
    """One record, for printing. `value_bytes` is the size of its value; None for a record without a value, a
    tombstone."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value_bytes: int | None
    header_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """One batch, for printing. `marker` is the type of a control batch, "" for a data batch. `records` is None if they
    were not requested or could not be decoded. `undecoded_reason` explains why the records, or the type of a control
    batch, could not be decoded; otherwise it is ""."""

    file: str
    position: int
    header: BatchHeader
    marker: str = ""
    records: tuple[DumpedRecord, ...] | None = None
    undecoded_reason: str = ""


@dataclass(frozen=True, slots=True)
class DumpedDamage:
    """Bytes of a file that are not a valid batch of the log. A batch that begins at offset `next_offset` or later is
    expected there."""

    file: str
    position: int
    byte_count: int
    next_offset: int
    reason: str


Dumped = DumpedBatch | DumpedDamage


def dump(directory: Path, start: int, end: int | None, *, with_records: bool) -> Iterator[Dumped]:
    """Yields the batches of a partition's directory that overlap the offsets [start, end), and the damage before `end`
    in the segments that may contain these offsets. Decodes the records with these offsets if `with_records`. Segments
    that are deleted meanwhile are skipped.

    Raises:
        OSError: a file cannot be read.
    """
    segments = segment_files(directory)
    for segment in segments:
        if (segment.end is not None and segment.end <= start) or (end is not None and segment.base_offset >= end):
            continue
        try:
            with SegmentWalk(segment) as walk:
                yield from _dump_segment(walk, start, end, with_records)
        except FileNotFoundError:
            continue  # retention has deleted the file


def _dump_segment(walk: SegmentWalk, start: int, end: int | None, with_records: bool) -> Iterator[Dumped]:
    for found in _retrying_tail(walk):
        if isinstance(found, Damage):
            if end is None or found.next_offset < end:
                yield DumpedDamage(
                    walk.segment.path.name, found.position, found.end - found.position, found.next_offset, found.reason
                )
            continue
        if end is not None and found.header.base_offset >= end:
            return
        if found.header.last_offset >= start:
            yield _dump_batch(walk, found, start, end, with_records)


def _retrying_tail(walk: SegmentWalk) -> Iterator[LocatedBatch | Damage]:
    """Yields the intact batches and the damage of the segment file that `walk` reads. If the end of the last segment
    seems damaged, reads it a second time after a delay, because a broker may have been writing a batch there."""
    for found in walk.batches():
        if not isinstance(found, Damage) or found.end < walk.size or walk.segment.end is not None:
            yield found
            continue
        time.sleep(TAIL_RETRY_DELAY_S)
        walk.refresh_size()
        yield from walk.batches(found.position, found.next_offset)
        return


def _dump_batch(
    walk: SegmentWalk, located: LocatedBatch, start: int, end: int | None, with_records: bool
) -> DumpedBatch:
    header, file = located.header, walk.segment.path.name
    is_control = bool(header.attributes & CONTROL)
    if not (with_records or is_control):
        return DumpedBatch(file, located.position, header)
    if header.size > DECODED_BYTES_MAX:
        return DumpedBatch(file, located.position, header, undecoded_reason=f"the batch has {header.size:,} bytes")
    try:
        found = decode_records(walk.bytes_of(located))
        records = tuple(
            DumpedRecord(offset, time_ms, key, None if value is None else len(value), _names(headers))
            for offset, time_ms, key, value, headers in found
            if start <= offset and (end is None or offset < end)
        )
    except (CorruptBatch, ValueError) as error:
        return DumpedBatch(file, located.position, header, undecoded_reason=str(error))
    marker = _marker(found[0][2]) if is_control and found else ""
    return DumpedBatch(file, located.position, header, marker, records if with_records else None)


def _names(headers: bytes) -> tuple[str, ...]:
    return tuple(name for name, _ in parse_headers(headers))


def _marker(key: bytes | None) -> str:
    if key is None or len(key) < _CONTROL_KEY.size:
        return "unknown"
    kind = _CONTROL_KEY.unpack_from(key)[1]
    return MARKERS.get(kind, f"type {kind}")
