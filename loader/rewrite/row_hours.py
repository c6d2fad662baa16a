"""Divides the rows of a file of a table by day among the hours of the day, without decoding them.

A row belongs to the hour of its time field, found as a load finds it. If that time is on another day, because the
settings changed since or because the time was implausible, the hour is that of the record timestamp in the `kafka`
column; if that is on another day too, it is the first hour. A row therefore never leaves its day.

Each new file states the offsets of its rows, so the rows must contain them (`loader.kafka_column` is not `none`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from headrace.avro_codec.walk import (
    MALFORMED,
    BadBody,
    CapturedTime,
    Limits,
    Skip,
    WalkCompiler,
    read_varint,
    skip_capturing,
)
from headrace.avro_schema import AvroSchemaError, Record, Schema, Union, find_time_fields, parse_schema
from headrace.loader.policy import HOUR
from headrace.loader.work_unit import FileKind
from headrace.loader.write.time_partitions import TimePartitions


@dataclass(frozen=True, slots=True)
class TimeSource:
    """The fields that may hold the time of a topic's messages: the subject's metadata property `headrace.time`, or "",
    and `loader.time_fields`."""

    time_property: str
    time_fields: tuple[str, ...]


class PlacedRow(NamedTuple):
    """A row with its time partition of an hour, and the partition and offset of its message."""

    time_partition: str
    partition: int
    offset: int
    row: bytes


class TimedRow(NamedTuple):
    """The message of a row: its partition and offset, the time in its time fields (None without one), and the record
    timestamp (None if it is implausible). `end` is the place after the row in its block."""

    end: int
    partition: int
    offset: int
    time_ms: int | None
    timestamp_ms: int | None


class _Position(NamedTuple):
    end: int
    partition: int
    offset: int
    timestamp_ms: int | None


class RowsUnplaced(Exception):
    """Raised if the rows of a file do not contain the partition and offset of their messages, or cannot be read."""


class RowTimes:
    """Finds the message times of the rows in the files with one schema, by the rule of loads.

    Args:
        schema_text: the schema of the files.
        kind: rows of the table or quarantined messages; the time of the latter is the record timestamp.
        times: the time fields of the topic.

    Raises:
        RowsUnplaced: the rows do not contain offsets.
    """

    def __init__(self, schema_text: str, kind: FileKind, times: TimeSource) -> None:
        try:
            schema = parse_schema(schema_text, source="the schema of the file", strict=False)
        except AvroSchemaError as error:
            raise RowsUnplaced(str(error)) from error
        self._captured = CapturedTime()
        self._limits = Limits()
        compiler = WalkCompiler(schema, self._limits)
        self._read: Callable[[bytes, int], _Position]
        if kind is FileKind.QUARANTINE:
            self._read = _quarantined(compiler.skip(schema.root))
        else:
            self._read = _loaded(schema, compiler, times, self._captured)

    def rows(self, block: bytes) -> Iterator[TimedRow]:
        """Yields the rows of a block in order.

        Args:
            block: the encoded rows of the block, without compression.

        Raises:
            RowsUnplaced: the block does not consist of rows with this schema.
        """
        start, captured = 0, self._captured
        while start < len(block):
            self._limits.reset()
            captured.value = None
            try:
                end, partition, offset, timestamp_ms = self._read(block, start)
            except (BadBody, *MALFORMED) as error:
                raise RowsUnplaced(f"a row cannot be read: {error}") from error
            time_ms = None if captured.value is None else captured.time_ms
            yield TimedRow(end, partition, offset, time_ms, timestamp_ms)
            start = end


class RowHours:
    """Finds the hours of the rows in the files with one schema, of one day of a topic.

    Args:
        schema_text: the schema of the files.
        kind: rows of the table or quarantined messages; the time of the latter is the record timestamp.
        day: the time partition of the files, such as `dt=2026-01-31`.
        times: the time fields of the topic.

    Raises:
        RowsUnplaced: the rows do not contain offsets.
    """

    def __init__(self, schema_text: str, kind: FileKind, day: str, times: TimeSource) -> None:
        self._times = RowTimes(schema_text, kind, times)
        self._day = f"{day}/"
        self._hour_of = TimePartitions(HOUR)

    def rows(self, block: bytes) -> Iterator[PlacedRow]:
        """Yields the rows of a block in order.

        Args:
            block: the encoded rows of the block, without compression.

        Raises:
            RowsUnplaced: the block does not consist of rows with this schema.
        """
        start = 0
        for row in self._times.rows(block):
            yield PlacedRow(self._time_partition(row), row.partition, row.offset, block[start : row.end])
            start = row.end

    def _time_partition(self, row: TimedRow) -> str:
        for time_ms in (row.time_ms, row.timestamp_ms):
            if time_ms is not None and (hour := self._hour_of(time_ms)).startswith(self._day):
                return hour
        return f"{self._day}hr=00"


def _quarantined(skip: Skip) -> Callable[[bytes, int], _Position]:
    def read(block: bytes, start: int) -> _Position:
        partition, at = read_varint(block, start)
        offset, at = read_varint(block, at)
        return _Position(skip(block, start), partition, offset, read_varint(block, at)[0])

    return read


def _loaded(
    schema: Schema, compiler: WalkCompiler, times: TimeSource, captured: CapturedTime
) -> Callable[[bytes, int], _Position]:
    """Returns a function that reads the position of a row of the table and stores its time in `captured`. The last
    field of the row is the `kafka` column: null, or a record that begins with partition, offset and timestamp."""
    root = schema.resolve(schema.root)
    if not isinstance(root, Record) or not root.fields or not _is_kafka_column(schema, root):
        raise RowsUnplaced("its rows do not contain their offsets (loader.kafka_column = none)")
    fields = find_time_fields(schema, times.time_property, times.time_fields)
    paths = tuple((rank, field.path) for rank, field in enumerate(fields))
    *body, kafka = root.fields
    skips = [
        skip_capturing(
            compiler, field.type, [(rank, path[1:]) for rank, path in paths if path[0] == field.name], captured
        )
        for field in body
    ]
    skip_kafka = compiler.skip(kafka.type)

    def read(block: bytes, start: int) -> _Position:
        at = start
        for skip in skips:
            at = skip(block, at)
        end = skip_kafka(block, at)
        branch, at = read_varint(block, at)
        if branch != 1:
            raise BadBody("a row has no offset")
        partition, at = read_varint(block, at)
        offset, at = read_varint(block, at)
        branch, at = read_varint(block, at)
        return _Position(end, partition, offset, read_varint(block, at)[0] if branch == 1 else None)

    return read


def _is_kafka_column(schema: Schema, row: Record) -> bool:
    union = row.fields[-1].type
    if not isinstance(union, Union) or len(union.branches) != 2:
        return False
    record = schema.resolve(union.branches[1])
    return (
        isinstance(record, Record)
        and record.name.full.startswith("headrace.load.kafka_position")
        and tuple(field.name for field in record.fields[:3]) == ("partition", "offset", "timestamp")
    )
