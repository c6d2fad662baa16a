"""Counts the rows of one published file by window of message time: the work of a task of `headrace audit recount`.

A row does not contain the bytes of its message, so the fingerprint of the audit cannot be computed from it. The
fingerprint here is that of the positions of the messages: the sum modulo 2**64 of the XXH64 of partition and offset, as
two big-endian numbers of 64 bits. It does not depend on the order of rows and files, so compaction and repartitioning
do not change it. The content of a file is compared by the checksum of its commit.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Final, NamedTuple

import fastavro

from headrace.audit.count import FINGERPRINT_MASK, message_hash
from headrace.audit.window import SPECIAL_WINDOWS, WINDOW_MS, counted_window
from headrace.loader.checksum import READ_BYTES, SHA_256, XXH3, Checksum
from headrace.loader.inspect.compare_files import ExpectedFile
from headrace.loader.inspect.containers import damage_as_value_error
from headrace.loader.inspect.findings import ConsistencyCheck
from headrace.loader.rewrite.row_hours import RowsUnplaced, RowTimes, TimedRow, TimeSource
from headrace.loader.storage.local import files_at
from headrace.loader.storage.protocols import WarehouseFiles
from headrace.loader.work_unit import FileKind

POSITION: Final = struct.Struct(">qq")
NO_TIME_MS: Final = -1
"""The time of a row without time field and with an implausible record timestamp: loads count it out of range."""


class WindowRows(NamedTuple):
    """The rows of a window: their number, and the fingerprint of their positions."""

    rows: int
    fingerprint: int

    def plus(self, other: WindowRows) -> WindowRows:
        return WindowRows(self.rows + other.rows, (self.fingerprint + other.fingerprint) & FINGERPRINT_MASK)


NO_ROWS: Final = WindowRows(0, 0)


@dataclass(frozen=True, slots=True)
class RecountUnit:
    """A published file to be counted.

    Attributes:
        path: its path below the warehouse.
        warehouse: the text from which tasks open the warehouse's files (`WarehouseFiles.root`).
        expected: the file as its commit describes it; None for a file that no commit contains.
        times: the time fields of the topic.
        since_ms, until_ms: rows of windows that overlap [since_ms, until_ms) are counted by window; None is unbounded.
            Special windows are counted only if both are None.
    """

    kind: FileKind
    time_partition: str
    path: str
    length: int
    warehouse: str
    expected: ExpectedFile | None
    times: TimeSource
    since_ms: int | None = None
    until_ms: int | None = None

    def covers(self, window_start_ms: int) -> bool:
        return is_covered(window_start_ms, self.since_ms, self.until_ms)


@dataclass(frozen=True, slots=True)
class FileRows:
    """The rows of a file.

    Attributes:
        windows: the rows of a data file by window.
        check, problem: the check that failed, and the problem as a sentence; None and "" for a file as committed.
        unplaced: the reason why the rows of a data file are in no window; "" if they are.
    """

    unit: RecountUnit
    rows: int = 0
    windows: Mapping[int, WindowRows] = field(default_factory=dict)
    check: ConsistencyCheck | None = None
    problem: str = ""
    unplaced: str = ""


def is_covered(window_start_ms: int, since_ms: int | None, until_ms: int | None) -> bool:
    """Returns whether a window overlaps the interval [since_ms, until_ms) of message time; None is unbounded. A special
    window overlaps only the interval of all times."""
    if window_start_ms in SPECIAL_WINDOWS:
        return since_ms is None and until_ms is None
    after_start = since_ms is None or window_start_ms + WINDOW_MS > since_ms
    return after_start and (until_ms is None or window_start_ms < until_ms)


def run_recount_unit(unit: RecountUnit) -> FileRows:
    """Counts a file in a Spark task, which opens it on the local file system."""
    return count_file(unit, files_at(unit.warehouse))


def count_file(unit: RecountUnit, files: WarehouseFiles) -> FileRows:
    """Reads a file once: counts its rows, by window if it is a data file, and compares their number and the checksum
    with the commit. A file that is missing or cannot be read is a problem in the result.

    Args:
        files: opens the file.
    """
    origin = "no commit contains it" if unit.expected is None else f"commit {unit.expected.commit_number} added it"
    counted = _Counted(unit)
    try:
        with files.open(unit.path) as opened, damage_as_value_error():
            checksum = counted.read(opened)
    except FileNotFoundError:
        return FileRows(unit, check=ConsistencyCheck.PLACE, problem=f"is missing; {origin}")
    except OSError as error:
        return counted.result(ConsistencyCheck.ROWS, f"cannot be read: {error.strerror or error}; {origin}")
    except (ValueError, RowsUnplaced) as error:
        return counted.result(ConsistencyCheck.ROWS, f"cannot be read: {error}; {origin}")
    expected = unit.expected
    if expected is not None and counted.rows != expected.records:
        return counted.result(
            ConsistencyCheck.ROWS, f"has {counted.rows:,} rows instead of {expected.records:,}; {origin}"
        )
    if expected is not None and checksum != expected.checksum:
        return counted.result(
            ConsistencyCheck.CHECKSUM, f"has the checksum {checksum} instead of {expected.checksum}; {origin}"
        )
    return counted.result()


class _Counted:
    """The rows of a file as far as it was read."""

    def __init__(self, unit: RecountUnit) -> None:
        self._unit = unit
        self._windows: dict[int, WindowRows] = defaultdict(lambda: NO_ROWS)
        self._unplaced = ""
        self.rows = 0

    def result(self, check: ConsistencyCheck | None = None, problem: str = "") -> FileRows:
        return FileRows(self._unit, self.rows, dict(self._windows), check, problem, self._unplaced)

    def read(self, opened: IO[bytes]) -> str:
        """Counts the rows of an open file. Returns the checksum of its bytes."""
        expected = self._unit.expected
        source = _ChecksummedReader(opened, "" if expected is None else expected.checksum)
        reader = fastavro.block_reader(source)
        times = None if self._unit.kind is FileKind.QUARANTINE else self._row_times(reader.metadata["avro.schema"])
        for block in reader:
            rows = block.num_records if times is None else self._count(times.rows(block.bytes_.read()))
            if rows != block.num_records:
                raise ValueError(f"a block has {rows:,} rows, but states {block.num_records:,}")
            self.rows += rows
        while source.read(READ_BYTES):
            pass
        return str(source.checksum)

    def _row_times(self, schema_text: str) -> RowTimes | None:
        try:
            return RowTimes(schema_text, FileKind.DATA, self._unit.times)
        except RowsUnplaced as error:
            self._unplaced = str(error)
            return None

    def _count(self, rows: Iterator[TimedRow]) -> int:
        windows, covers = self._windows, self._unit.covers
        number = 0
        for row in rows:
            number += 1
            time_ms = row.timestamp_ms if row.time_ms is None else row.time_ms
            start_ms = counted_window(NO_TIME_MS if time_ms is None else time_ms, windows)
            if start_ms in windows or covers(start_ms):
                position = message_hash(None, POSITION.pack(row.partition, row.offset))
                windows[start_ms] = windows[start_ms].plus(WindowRows(1, position))
        return number


class _ChecksummedReader:
    """A file whose bytes are added to a checksum as they are read from its begin to its end."""

    def __init__(self, file: IO[bytes], committed: str) -> None:
        self._file = file
        self.checksum = Checksum(XXH3 if committed.startswith(XXH3) else SHA_256)

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.checksum.update(data)
        return data

    def tell(self) -> int:
        return self._file.tell()
