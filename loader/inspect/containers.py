"""Reads Avro container files to check them: counts the rows in their blocks, and reads the offsets of the rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import IO

import fastavro

from headrace.loader.write.container import MAGIC, SYNC_BYTES

LONG_BYTES_MAX = 10  # of a varint of 64 bits


@contextlib.contextmanager
def damage_as_value_error() -> Iterator[None]:
    """Raises a ValueError in place of an error of another type that fastavro raises in the context for a truncated or
    damaged file."""
    try:
        yield
    except (OSError, ValueError):
        raise
    except Exception as error:
        raise ValueError(f"the file is truncated or damaged: {error!r}") from error


def count_rows(file: IO[bytes], length: int) -> int:
    """Returns the number of rows of a container file with this length, as stated by its blocks. Does not decode the
    rows.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no container file, or it is truncated.
    """
    sync = _skip_header(file, length)
    rows = 0
    while (begin := file.tell()) < length:
        count, size = _read_long(file), _read_long(file)
        if count <= 0 or size < 0 or file.tell() + size + SYNC_BYTES > length:
            raise ValueError(f"the block at byte {begin:,} is truncated or damaged")
        file.seek(size, 1)
        if file.read(SYNC_BYTES) != sync:
            raise ValueError(f"the block at byte {begin:,} does not end with the file's sync marker")
        rows += count
    return rows


def positions(file: IO[bytes]) -> Iterator[tuple[int, int]] | None:
    """Returns the Kafka partition and offset of every row of a data file in which the `kafka` column is not null, None
    if the file has no such column.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no Avro container file of the loader, or it is truncated or damaged. The result also raises
            these errors.
    """
    with damage_as_value_error():
        schema = fastavro.reader(file).writer_schema
    file.seek(0)
    # The kafka column is the last one. Its name depends on the other columns; the name of its record is unique.
    column = schema["fields"][-1] if isinstance(schema, dict) and schema.get("fields") else {}
    record = next((one for one in column.get("type", ()) if isinstance(one, dict)), {})
    if not str(record.get("name", "")).startswith("headrace.load.kafka_position"):
        return None
    return _positions(file, {**schema, "fields": [column]}, column["name"])


def _positions(file: IO[bytes], schema: dict[str, object], column: str) -> Iterator[tuple[int, int]]:
    with damage_as_value_error():
        for row in fastavro.reader(file, reader_schema=schema):
            assert isinstance(row, dict)
            if row[column] is not None:
                yield row[column]["partition"], row[column]["offset"]


def _skip_header(file: IO[bytes], length: int) -> bytes:
    """Skips the header of a container file with this length and returns the file's sync marker."""
    if file.read(len(MAGIC)) != MAGIC:
        raise ValueError("the file does not begin with the magic bytes of an Avro container file")
    while (pairs := _read_long(file)) != 0:
        if pairs < 0:  # a negative count is followed by the size of the pairs in bytes
            _read_long(file)
            pairs = -pairs
        for _ in range(2 * pairs):
            size = _read_long(file)
            if not 0 <= size <= length:
                raise ValueError(f"the size before byte {file.tell():,} of the header is damaged")
            file.seek(size, 1)
    sync = file.read(SYNC_BYTES)
    if len(sync) != SYNC_BYTES:
        raise ValueError("the file ends within its header")
    return sync


def _read_long(file: IO[bytes]) -> int:
    number = 0
    for index in range(LONG_BYTES_MAX):
        byte = file.read(1)
        if not byte:
            raise ValueError(f"the file ends at byte {file.tell():,}, within a number")
        number |= (byte[0] & 0x7F) << 7 * index
        if byte[0] < 0x80:
            return (number >> 1) ^ -(number & 1)
    raise ValueError(f"the number before byte {file.tell():,} takes more than {LONG_BYTES_MAX} bytes")
