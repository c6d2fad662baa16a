"""What a partition's log holds, batch by batch and, if wanted, record by record; beside a broker that runs, or not."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.broker.inspect.walk import Damage, SegmentWalk, segment_files
from headrace.broker.log.opened import BYTES_OPENED_MAX, opened
from headrace.broker.log.scan import PlacedBatch
from headrace.kafka_wire.errors import CorruptBatch
from headrace.kafka_wire.record_batch import CONTROL, BatchHeader, headers_of

SETTLE_S = 0.1
"""The end of the last segment may be a batch that a broker is just writing."""
MARKERS = {0: "abort", 1: "commit"}

_CONTROL_KEY = struct.Struct(">hh")


@dataclass(frozen=True, slots=True)
class DumpedRecord:
    """`value_bytes` is None of a record without a value, as a tombstone is."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value_bytes: int | None
    header_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """`marker` is what a control batch says, "" for others; `unopened` why records are not shown, "" where they are."""

    file: str
    position: int
    header: BatchHeader
    marker: str = ""
    records: tuple[DumpedRecord, ...] | None = None
    unopened: str = ""


@dataclass(frozen=True, slots=True)
class DumpedDamage:
    """Bytes of a file that are no batch of the log, which should go on there at `next_offset`."""

    file: str
    position: int
    byte_count: int
    next_offset: int
    reason: str


Dumped = DumpedBatch | DumpedDamage


def dump(directory: Path, start: int, end: int | None, *, with_records: bool) -> Iterator[Dumped]:
    """The batches of a partition's directory that have offsets in [start, end), and the damage among them.

    Raises:
        OSError: a file cannot be read.
    """
    segments = segment_files(directory)
    for segment in segments:
        if (segment.end is not None and segment.end <= start) or (end is not None and segment.base_offset >= end):
            continue
        try:
            with SegmentWalk(segment) as walk:
                yield from _segment(walk, start, end, with_records)
        except FileNotFoundError:
            continue  # retention took it meanwhile


def _segment(walk: SegmentWalk, start: int, end: int | None, with_records: bool) -> Iterator[Dumped]:
    for found in _settled(walk):
        if isinstance(found, Damage):
            if end is None or found.next_offset < end:
                yield DumpedDamage(
                    walk.segment.path.name, found.position, found.end - found.position, found.next_offset, found.reason
                )
            continue
        if end is not None and found.header.base_offset >= end:
            return
        if found.header.last_offset >= start:
            yield _dumped(walk, found, start, end, with_records)


def _settled(walk: SegmentWalk) -> Iterator[PlacedBatch | Damage]:
    """The batches, with a second look at the end of a segment that somebody may be writing to."""
    for found in walk.batches():
        if not isinstance(found, Damage) or found.end < walk.size or walk.segment.end is not None:
            yield found
            continue
        time.sleep(SETTLE_S)
        walk.grow()
        yield from walk.batches(found.position, found.next_offset)
        return


def _dumped(walk: SegmentWalk, placed: PlacedBatch, start: int, end: int | None, with_records: bool) -> DumpedBatch:
    header, file = placed.header, walk.segment.path.name
    is_control = bool(header.attributes & CONTROL)
    if not (with_records or is_control):
        return DumpedBatch(file, placed.position, header)
    if header.size > BYTES_OPENED_MAX:
        return DumpedBatch(file, placed.position, header, unopened=f"the batch has {header.size:,} bytes")
    try:
        found = opened(walk.bytes_of(placed))
        records = tuple(
            DumpedRecord(offset, time_ms, key, None if value is None else len(value), _names(headers))
            for offset, time_ms, key, value, headers in found
            if start <= offset and (end is None or offset < end)
        )
    except (CorruptBatch, ValueError) as error:
        return DumpedBatch(file, placed.position, header, unopened=str(error))
    marker = _marker(found[0][2]) if is_control and found else ""
    return DumpedBatch(file, placed.position, header, marker, records if with_records else None)


def _names(headers: bytes) -> tuple[str, ...]:
    return tuple(name for name, _ in headers_of(headers))


def _marker(key: bytes | None) -> str:
    if key is None or len(key) < _CONTROL_KEY.size:
        return "unknown"
    kind = _CONTROL_KEY.unpack_from(key)[1]
    return MARKERS.get(kind, f"type {kind}")
