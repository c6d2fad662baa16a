"""Converts whole batches with the C core: record bytes to records, and records to rows.

Cases that the core does not support are left to Python: a batch with unusual records is parsed in Python, and a
conversion stops before a message that the core cannot convert, so that Python converts it or reports the reason.
"""

from __future__ import annotations

import builtins
import ctypes
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from headrace.audit.window import TIME_MS_MAX, WINDOW_MS
from headrace.avro_codec.core import library
from headrace.avro_codec.core.library import COutput, CProgram, CRange, Library, c_program
from headrace.avro_codec.encode import encode_long
from headrace.avro_codec.program import Program
from headrace.kafka_wire.record_batch import NO_HEADERS, Record, parse_records

RECORD_BYTES_MIN = 7  # smallest record; a larger record count than the batch's bytes allow is rejected
ROWS_BYTES_MAX = 1 << 20
COLUMNS_LENGTH_MAX = 8_192

_RECORD = struct.Struct(library.RECORD)
_WINDOW = struct.Struct(library.WINDOW)
_TIME_PARTITION = struct.Struct(library.TIME_PARTITION)


class Columns(Sequence[Record]):
    """The records of one batch as arrays of their fields. A record becomes a Python object only on access."""

    __slots__ = ("_buffer", "_count", "payload")

    def __init__(self, payload: bytes | memoryview, buffer: ctypes.Array[ctypes.c_char], count: int) -> None:
        self.payload = payload
        self._buffer = buffer
        self._count = count

    @property
    def address(self) -> int:
        return ctypes.addressof(self._buffer)

    @property
    def payload_address(self) -> bytes | int:
        return _address(self.payload)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._record(_RECORD.unpack_from(self._buffer, index * _RECORD.size))

    def __iter__(self) -> Iterator[Record]:
        for numbers in _RECORD.iter_unpack(memoryview(self._buffer)[: self._count * _RECORD.size]):
            yield self._record(numbers)

    def _record(self, numbers: tuple[int, ...]) -> Record:
        offset, time_ms, key_at, key_size, value_at, value_size, headers_at, end = numbers
        payload = self.payload
        key = None if key_size < 0 else bytes(payload[key_at : key_at + key_size])
        value = None if value_size < 0 else bytes(payload[value_at : value_at + value_size])
        headers = bytes(payload[headers_at:end]) if payload[headers_at] else NO_HEADERS
        return offset, time_ms, key, value, headers


def _address(payload: bytes | memoryview) -> bytes | int:
    """Returns a payload (the bytes of a batch's records) in a form that the core accepts as an address: bytes as they
    are, for a memoryview its memory address. The address is valid as long as the payload is referenced."""
    if isinstance(payload, bytes) or not payload:
        return bytes(payload)
    return ctypes.addressof(ctypes.c_char.from_buffer(payload))


class RecordColumns:
    """Parses the records of a batch into `Columns`. If the core reports a problem, the batch is parsed in Python
    instead (`parse_records`), which raises an error if it is malformed."""

    def __init__(self, core: Library) -> None:
        self._core = core

    def __call__(
        self, payload: bytes | memoryview, count: int, base_offset: int, base_time: int, fixed_time: int | None
    ) -> Sequence[Record]:
        if isinstance(payload, memoryview) and payload.readonly:
            payload = bytes(payload)  # the core cannot address a memoryview
        if 0 <= count <= len(payload) // RECORD_BYTES_MIN:
            buffer = ctypes.create_string_buffer(max(1, count) * _RECORD.size)
            has_fixed = fixed_time is not None
            refused = self._core.records(
                _address(payload), len(payload), count, base_offset, base_time, has_fixed, fixed_time or 0, buffer
            )
            if not refused:
                return Columns(payload, buffer, count)
        return parse_records(payload, count, base_offset, base_time, fixed_time)


@dataclass(frozen=True, slots=True)
class RowRun:
    """Rows of one time partition in offset order, joined in `data`; messages between them may belong to other time
    partitions. `period` is the number of the time partition, counted from 1970 in multiples of its length. `offsets`
    are the offsets of the rows' messages, `ends` the end positions of the rows in `data`. Valid until the next call of
    `RowsOfBatches.convert` with the same `OutputBuffers`."""

    period: int
    offsets: Sequence[int]
    ends: Sequence[int]
    data: memoryview


@dataclass(frozen=True, slots=True)
class CoreWindowCount:
    """Number, bytes and fingerprint of converted messages of one audit window, which begins at `start_ms`. A window may
    have several counts, which the caller adds.

    `value` and `time_ms` belong to the first message: the number in its time field (or its record timestamp, if it has
    none), and the message time derived from it. `program` is the position of that message's schema id in
    `RowsOfBatches.schema_ids`; `source` is the core's number for where the time came from, and `unit` that of the unit
    of `value`. The last four are the arguments of `audit.latency.WindowTimes.of`;
    `slices` are 32-bit numbers.
    """

    start_ms: int
    value: int
    time_ms: int
    count: int
    bytes: int
    fingerprint: int
    program: int
    source: int
    unit: int
    no_time: int
    total_ms: int
    first_ms: int
    slices: builtins.bytes


@dataclass(frozen=True, slots=True)
class CoreResult:
    """The result of `RowsOfBatches.convert`.

    `next` is the first record that was not converted; `is_refused` means that Python must convert it. `runs` are the
    rows, `windows` the audit counts. `sources` are numbers of messages: for each schema id in turn, one number for each
    place from which a message time may come (a time field, the record timestamp, the arrival), then for each time field
    one number of texts in it that are not times.
    """

    next: int
    is_refused: bool
    tombstones: int
    runs: tuple[RowRun, ...]
    windows: tuple[CoreWindowCount, ...]
    sources: tuple[int, ...]


class OutputBuffers:
    """Output buffers of the core. One range of a task uses them at a time."""

    def __init__(self) -> None:
        self._rows = ctypes.create_string_buffer(ROWS_BYTES_MAX)
        self._grouped = ctypes.create_string_buffer(ROWS_BYTES_MAX)
        self._offsets = (ctypes.c_int64 * COLUMNS_LENGTH_MAX)()
        self._ends = (ctypes.c_uint64 * COLUMNS_LENGTH_MAX)()
        self._scratch = (ctypes.c_uint64 * (2 * COLUMNS_LENGTH_MAX))()
        self._windows = ctypes.create_string_buffer(COLUMNS_LENGTH_MAX * _WINDOW.size)
        self._time_partitions = ctypes.create_string_buffer(COLUMNS_LENGTH_MAX * _TIME_PARTITION.size)
        self.output = COutput(
            rows=ctypes.addressof(self._rows),
            grouped=ctypes.addressof(self._grouped),
            rows_capacity=ROWS_BYTES_MAX,
            offsets=ctypes.addressof(self._offsets),
            ends=ctypes.addressof(self._ends),
            scratch=ctypes.addressof(self._scratch),
            columns_capacity=COLUMNS_LENGTH_MAX,
            windows=ctypes.addressof(self._windows),
            time_partitions=ctypes.addressof(self._time_partitions),
        )
        self.rows = memoryview(self._rows).cast("B")
        self.grouped = memoryview(self._grouped).cast("B")
        self.offsets = memoryview(self._offsets).cast("B").cast("q")
        self.ends = memoryview(self._ends).cast("B").cast("Q")
        self.windows = memoryview(self._windows).cast("B")
        self.time_partitions = memoryview(self._time_partitions).cast("B")


class RowsOfBatches:
    """Converts the records of one range. The program for a schema id is added at its first message with the id before
    the body.

    Args:
        buffers: buffers that no other range is using.
        kafka_column: none, position or full.
        period_ms: length of a time partition.
        clamp: how far a message's time may be after its arrival, and the start of the run, both in milliseconds (see
            `messages.Clamp`); None for no limit.
    """

    def __init__(
        self,
        core: Library,
        buffers: OutputBuffers,
        kafka_column: str,
        partition: int,
        period_ms: int,
        clamp: tuple[int, int] | None,
    ) -> None:
        self._core = core
        self._buffers = buffers
        self._programs: list[tuple[int, CProgram, object]] = []
        self._ids: list[int] = []
        suffix = b"\x02" + encode_long(partition)
        future_ms_max, now_ms = clamp or (0, 0)
        self._range = CRange(
            suffix=suffix,
            suffix_size=len(suffix),
            suffix_mode=library.SUFFIX_MODES[kafka_column],
            is_clamped=clamp is not None,
            future_ms_max=min(future_ms_max, TIME_MS_MAX),
            now_ms=now_ms,
            time_ms_max=TIME_MS_MAX,
            window_ms=WINDOW_MS,
            period_ms=period_ms,
        )
        self._rebuild_table()

    @property
    def schema_ids(self) -> Sequence[int]:
        """The schema ids for which the core has a program, ascending. `CoreWindowCount.program` is a position in this
        sequence, and the numbers in `CoreResult.sources` are in its order."""
        return self._ids

    def add(self, schema_id: int, program: Program, *, has_time_field: bool) -> None:
        """Adds the program for messages with this schema id. Call it once per id.

        Args:
            program: the conversion to rows, as operations of the core.
            has_time_field: whether the writer schema has a time field.
        """
        compiled, words = c_program(program, schema_id, has_time_field=has_time_field)
        self._programs = sorted([*self._programs, (schema_id, compiled, words)], key=lambda one: one[0])
        self._rebuild_table()

    def _rebuild_table(self) -> None:
        count = len(self._programs)
        self._ids = [schema_id for schema_id, _, _ in self._programs]
        self._table = (CProgram * max(1, count))(*(compiled for _, compiled, _ in self._programs))
        self._sources = (ctypes.c_uint64 * max(1, count * library.SOURCES))()
        self._range.programs = self._table
        self._range.program_count = count

    def convert(self, records: Columns, start: int) -> CoreResult:
        """Converts records from `start` on, as many as fit into the buffers. Returns their rows and counts, and the
        record at which it stopped."""
        buffers = self._buffers
        output, offsets, ends = buffers.output, buffers.offsets, buffers.ends
        output.sources = ctypes.addressof(self._sources)
        self._core.run(self._range, records.payload_address, records.address, start, len(records), output)
        rows = buffers.grouped if output.is_grouped else buffers.rows
        time_partitions = buffers.time_partitions[: output.time_partition_count * _TIME_PARTITION.size]
        windows = buffers.windows[: output.window_count * _WINDOW.size]
        return CoreResult(
            output.next,
            output.status == library.MESSAGE,
            output.tombstones,
            tuple(
                RowRun(period, offsets[first : first + count], ends[first : first + count], rows[at : at + size])
                for period, at, size, first, count in _TIME_PARTITION.iter_unpack(time_partitions)
            ),
            tuple(CoreWindowCount(*numbers) for numbers in _WINDOW.iter_unpack(windows)),
            tuple(self._sources[: len(self._ids) * library.SOURCES]),
        )


def project(core: Library, program: Program, body: bytes, row_bytes_max: int) -> tuple[bytes, int | None] | None:
    """Converts one body in the core. Returns the row, and the number in the body's time field (None if the body has
    none). If the core does not accept the body or the row is too large, returns a single None; Python must then convert
    the body or report the reason.

    Args:
        program: the conversion, as operations of the core.
        row_bytes_max: the maximum size of the row.
    """
    compiled, _words = c_program(program, 0, has_time_field=False)
    row = ctypes.create_string_buffer(max(1, row_bytes_max))
    unit, value = ctypes.c_int32(), ctypes.c_int64()
    size = core.project(compiled, body, len(body), row, row_bytes_max, unit, value)
    return None if size < 0 else (row.raw[:size], value.value if unit.value else None)
