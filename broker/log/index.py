"""Sparse indexes of one segment, in Kafka's file format.

Offset index (`.index`): 8-byte entries, relative offset i32 and file position i32, at most one per INTERVAL_BYTES of
log. The offset is the last one of the batch at that position.

Time index (`.timeindex`): 12-byte entries, largest timestamp so far i64 and relative last offset i32 of the batch that
has it. The last entry holds the segment's largest timestamp.

Both ascend. The indexes of the active segment are in memory, and are written when the segment or the log is closed. The
indexes of closed segments are searched on disk, so that memory does not grow with the log.

Indexes only accelerate reads: an entry is compared with the batch it points to before a read relies on it, and a wrong
index is rebuilt from the log.
"""

from __future__ import annotations

import contextlib
import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from pathlib import Path

from headrace.broker.log.files import read_at

INTERVAL_BYTES = 4096

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES = _OFFSET_ENTRY.size, _TIME_ENTRY.size
offset_entries, time_entries = _OFFSET_ENTRY.iter_unpack, _TIME_ENTRY.iter_unpack
"""Functions that yield the entries in the content of an index file, as (offset, position) or (timestamp, offset)."""


@dataclass(frozen=True, slots=True)
class TimeEntry:
    timestamp_ms: int
    offset: int  # relative to the segment's base offset


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    offset: int  # relative to the segment's base offset
    position: int


class OffsetIndex:
    """Sparse map from offsets, relative to the segment's base offset, to file positions from which to read."""

    __slots__ = ("_offsets", "_positions")

    def __init__(self) -> None:
        self._offsets = array("i")
        self._positions = array("i")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int, position: int) -> None:
        self._offsets.append(offset)
        self._positions.append(position)

    def floor(self, offset: int) -> OffsetEntry | None:
        """Returns the last entry with an offset up to `offset`. None means that the segment must be read from its
        start."""
        at = bisect_right(self._offsets, offset)
        return OffsetEntry(self._offsets[at - 1], self._positions[at - 1]) if at else None

    def first_from(self, position: int) -> OffsetEntry | None:
        """Returns the first entry at or after a file position, None if there is none."""
        at = bisect_left(self._positions, position)
        return OffsetEntry(self._offsets[at], self._positions[at]) if at < len(self._positions) else None

    @property
    def last_position(self) -> int:
        return self._positions[-1] if self._positions else 0

    def to_bytes(self) -> bytes:
        return b"".join(map(_OFFSET_ENTRY.pack, self._offsets, self._positions))

    @classmethod
    def from_bytes(cls, content: bytes, log_bytes: int) -> OffsetIndex | None:
        """Parses the content of an offset index file; returns None if it cannot be the index of a log file of
        `log_bytes` bytes."""
        if len(content) % _OFFSET_ENTRY.size:
            return None
        index = cls()
        last_offset, last_position = -1, 0
        for offset, position in _OFFSET_ENTRY.iter_unpack(content):
            if offset <= last_offset or position <= last_position or position >= log_bytes:
                return None
            index.add(offset, position)
            last_offset, last_position = offset, position
        return index


class TimeIndex:
    """Sparse map from timestamps to offsets. No record before an entry's offset has a larger timestamp than the
    entry."""

    __slots__ = ("_offsets", "_timestamps")

    def __init__(self) -> None:
        self._timestamps = array("q")
        self._offsets = array("i")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, entry: TimeEntry) -> None:
        """Adds an entry if its timestamp is larger than the last one; otherwise ignores it."""
        if not self._timestamps or entry.timestamp_ms > self._timestamps[-1]:
            self._timestamps.append(entry.timestamp_ms)
            self._offsets.append(entry.offset)

    def below(self, timestamp_ms: int) -> TimeEntry | None:
        """Returns the last entry with a timestamp below `timestamp_ms`. None means that the segment must be read from
        its start."""
        at = bisect_left(self._timestamps, timestamp_ms)
        return TimeEntry(self._timestamps[at - 1], self._offsets[at - 1]) if at else None

    @property
    def last(self) -> TimeEntry | None:
        return TimeEntry(self._timestamps[-1], self._offsets[-1]) if self._timestamps else None

    def to_bytes(self) -> bytes:
        return b"".join(map(_TIME_ENTRY.pack, self._timestamps, self._offsets))

    @classmethod
    def from_bytes(cls, content: bytes) -> TimeIndex | None:
        """Parses the content of a time index file; returns None if the content cannot be a time index."""
        if len(content) % _TIME_ENTRY.size:
            return None
        index = cls()
        for timestamp_ms, offset in _TIME_ENTRY.iter_unpack(content):
            if index._timestamps and (timestamp_ms <= index._timestamps[-1] or offset < index._offsets[-1]):
                return None
            index._timestamps.append(timestamp_ms)
            index._offsets.append(offset)
        return index


def floor_entry_in_file(path: Path, offset: int) -> OffsetEntry | None:
    """Searches the offset index file of a closed segment. Returns the last entry with an offset up to `offset`, which
    is relative to the segment's base offset; None if no entry matches or the file is missing."""
    found = _floor_in_file(path, _OFFSET_ENTRY, offset)
    return OffsetEntry(*found) if found is not None else None


def floor_position_in_file(path: Path, offset: int) -> int:
    """Searches the offset index file of a closed segment. Returns the position in the log file at which to begin
    reading to find `offset`, which is relative to the segment's base offset; 0 if the index has no entry up to
    `offset`."""
    found = floor_entry_in_file(path, offset)
    return found.position if found is not None else 0


def first_entry_in_file(path: Path, position: int) -> OffsetEntry | None:
    """Searches the offset index file of a closed segment. Returns the first entry for `position` in the log file or a
    later position; None if no entry matches or the index file is missing."""
    try:
        entries = _FileEntries(path, _OFFSET_ENTRY)
    except FileNotFoundError:
        return None
    with contextlib.closing(entries):
        at = bisect_left(entries, position, key=lambda found: found[1])
        return OffsetEntry(*entries[at]) if at < len(entries) else None


def time_below_in_file(path: Path, timestamp_ms: int) -> TimeEntry | None:
    """Searches the time index file of a closed segment. Returns the last entry with a timestamp below `timestamp_ms`;
    None if no entry matches or the file is missing."""
    found = _floor_in_file(path, _TIME_ENTRY, timestamp_ms - 1)
    return TimeEntry(*found) if found is not None else None


def last_time_entry_in_file(path: Path) -> TimeEntry | None:
    """Returns the last entry of a segment's time index file, which has the segment's largest timestamp; None if the
    file is missing or empty."""
    try:
        entries = _FileEntries(path, _TIME_ENTRY)
    except FileNotFoundError:
        return None
    with contextlib.closing(entries):
        return TimeEntry(*entries[len(entries) - 1]) if len(entries) else None


class _FileEntries:
    """Sequence of the entries of an index file. An entry is read from disk when it is accessed: a binary search in a
    file with 250,000 entries reads about twenty."""

    def __init__(self, path: Path, entry: struct.Struct) -> None:
        self._entry = entry
        self._fd = os.open(path, os.O_RDONLY)
        self._count = os.fstat(self._fd).st_size // entry.size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> tuple[int, int]:
        first, second = self._entry.unpack(read_at(self._fd, self._entry.size, at * self._entry.size))
        return int(first), int(second)

    def close(self) -> None:
        os.close(self._fd)


def _floor_in_file(path: Path, entry: struct.Struct, target: int) -> tuple[int, int] | None:
    try:
        entries = _FileEntries(path, entry)
    except FileNotFoundError:
        return None
    with contextlib.closing(entries):
        at = bisect_right(entries, target, key=lambda found: found[0])
        return entries[at - 1] if at else None
