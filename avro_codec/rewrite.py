"""Building blocks of the conversion of a message to a row: functions from the bytes of a value to the bytes of its
column.

Source: Avro 1.12, Schema Resolution.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.avro_codec.encode import encode_long
from headrace.avro_codec.program import Code
from headrace.avro_codec.readable import UnreadableValue
from headrace.avro_codec.walk import (
    BadBody,
    Limits,
    Skip,
    check_block,
    check_count,
    read_block,
    read_index,
    read_varint,
    skip_string,
)
from headrace.avro_schema import PrimitiveType

ADDED_BYTES_MAX = 64 * 1024 * 1024
"""Maximum number of bytes by which a converted array or map may be larger than in the message: its items may get
defaults that the message does not contain."""

Convert = Callable[[bytes, int], tuple[bytes, int]]
"""A function that converts the value at a position to the load schema; it returns the bytes and the position after the
value."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The conversion of one node of a writer schema (a node is a type in the schema). `skip` validates a value.
    `copies` means that the bytes of its values stay the same; otherwise `convert` rewrites them.

    `code` is the same conversion for the core, None if the core cannot do it.
    """

    skip: Skip
    convert: Convert
    copies: bool
    code: Code | None

    @classmethod
    def copy(cls, skip: Skip, code: Code | None) -> Plan:
        def convert(b: bytes, p: int) -> tuple[bytes, int]:
            q = skip(b, p)
            return b[p:q], q

        return cls(skip, convert, True, code)


def convert_record(template: list[bytes], field_plans: Sequence[tuple[int, Plan]]) -> Convert:
    """Returns the function that converts an encoded record of the writer to an encoded row. From the record's bytes and
    position it returns the row's bytes and the position after the record.

    The function converts the fields in the writer's order and joins the results in the order of the columns. Adjacent
    fields that are copied to adjacent columns are copied as one slice.

    Args:
        template: for each column, the encoded null or default if no field is converted to it, else b"".
        field_plans: for each of the writer's fields, in order, the index of its column and the plan of its conversion.
    """
    steps: list[tuple[int, Convert]] = []
    run: list[Skip] = []
    run_start = -1
    for column, plan in field_plans:
        if run and not (plan.copies and column == run_start + len(run)):
            steps.append((run_start, copy_run(run)))
            run = []
        if plan.copies:
            run_start = run_start if run else column
            run.append(plan.skip)
        else:
            steps.append((column, plan.convert))
    if run:
        steps.append((run_start, copy_run(run)))
    return concatenate(template, steps)


def concatenate(template: list[bytes], steps: list[tuple[int, Convert]]) -> Convert:
    """Returns a converter from the fields of an encoded record to an encoded row.

    Args:
        template: the encoded columns of the row; a converted field replaces the column that it is written to.
        steps: for each field in the writer's order, the index of its column and its converter.
    """

    def convert(b: bytes, p: int) -> tuple[bytes, int]:
        row = template[:]
        for column, step in steps:
            row[column], p = step(b, p)
        return b"".join(row), p

    return convert


def copy_run(run: Sequence[Skip]) -> Convert:
    skips = tuple(run)

    def convert(b: bytes, p: int) -> tuple[bytes, int]:
        q = p
        for skip in skips:
            q = skip(b, q)
        return b[p:q], q

    return convert


def walk_first(skip: Skip, convert: Convert) -> Convert:
    def converted(b: bytes, p: int) -> tuple[bytes, int]:
        if skip(b, p) > len(b):
            raise BadBody("the body ends inside a value")
        return convert(b, p)

    return converted


def add_prefix(prefix: bytes, convert: Convert) -> Convert:
    def converted(b: bytes, p: int) -> tuple[bytes, int]:
        row, p = convert(b, p)
        return prefix + row, p

    return converted


def surround(before: bytes, convert: Convert, after: bytes) -> Convert:
    def converted(b: bytes, p: int) -> tuple[bytes, int]:
        row, p = convert(b, p)
        return before + row + after, p

    return converted


def reject(reason: str) -> Convert:
    def convert(b: bytes, p: int) -> tuple[bytes, int]:
        raise BadBody(reason)

    return convert


def by_branch(converts: Sequence[Convert]) -> Convert:
    count = len(converts)

    def convert(b: bytes, p: int) -> tuple[bytes, int]:
        index, p = read_index(b, p, count)
        return converts[index](b, p)

    return convert


def array_of(item: Convert, zero_width: Limits | None) -> Convert:
    """Returns a converter of arrays, which converts each item with `item`.

    Args:
        zero_width: counts the items if they take no bytes, so that their number is limited; None for other items.
    """

    def convert(b: bytes, p: int) -> tuple[bytes, int]:
        parts: list[bytes] = []
        start, size = p, 0
        while b[p]:
            count, p, end = read_block(b, p)
            if count == 0:
                break
            if zero_width is None:
                check_count(count, len(b) - p)
            else:
                zero_width.count_zero_width(count)
            parts.append(encode_long(count))
            for _ in range(count):
                row, p = item(b, p)
                parts.append(row)
                size += len(row)
                if size > p - start + ADDED_BYTES_MAX:
                    raise _too_large()
            check_block(p, end)
        else:
            p += 1
        parts.append(b"\x00")
        return b"".join(parts), p

    return convert


def map_of(value: Convert) -> Convert:
    def convert(b: bytes, p: int) -> tuple[bytes, int]:
        parts: list[bytes] = []
        start, size = p, 0
        while b[p]:
            count, p, end = read_block(b, p)
            if count == 0:
                break
            check_count(count, len(b) - p)
            parts.append(encode_long(count))
            for _ in range(count):
                q = skip_string(b, p)
                parts.append(b[p:q])
                row, p = value(b, q)
                parts.append(row)
                size += len(row)
                if size > p - start + ADDED_BYTES_MAX:
                    raise _too_large()
            check_block(p, end)
        else:
            p += 1
        parts.append(b"\x00")
        return b"".join(parts), p

    return convert


def _too_large() -> UnreadableValue:
    return UnreadableValue(
        f"with the defaults of its items, an array or map would take {ADDED_BYTES_MAX} bytes more than the message"
    )


def nearest_float(n: int) -> float:
    """Returns a double that rounds to the float nearest to `n`; `float(n)` would round twice beyond 2^53."""
    size = abs(n).bit_length()
    if size <= 53:
        return float(n)
    shift = size - 53
    bits = abs(n) >> shift
    if bits << shift != abs(n):
        bits |= 1
    return math.ldexp(-bits if n < 0 else bits, shift)


def _int_to_float(b: bytes, p: int) -> tuple[bytes, int]:
    n, p = read_varint(b, p)
    return struct.pack("<f", nearest_float(n)), p


def _int_to_double(b: bytes, p: int) -> tuple[bytes, int]:
    n, p = read_varint(b, p)
    return struct.pack("<d", float(n)), p


def _float_to_double(b: bytes, p: int) -> tuple[bytes, int]:
    return struct.pack("<d", struct.unpack_from("<f", b, p)[0]), p + 4


SAME_BYTES = frozenset({(PrimitiveType.INT, PrimitiveType.LONG), (PrimitiveType.STRING, PrimitiveType.BYTES)})

PROMOTIONS: dict[tuple[PrimitiveType, PrimitiveType], Convert] = {
    (PrimitiveType.INT, PrimitiveType.FLOAT): _int_to_float,
    (PrimitiveType.LONG, PrimitiveType.FLOAT): _int_to_float,
    (PrimitiveType.INT, PrimitiveType.DOUBLE): _int_to_double,
    (PrimitiveType.LONG, PrimitiveType.DOUBLE): _int_to_double,
    (PrimitiveType.FLOAT, PrimitiveType.DOUBLE): _float_to_double,
}
