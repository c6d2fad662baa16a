"""Encoder of ListGroups responses, versions 0 to 5, written by hand: there may be tens of thousands of groups, and
their rows differ only in a few values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.primitives import Writer

FLEXIBLE_FROM, STATES_FROM, TYPES_FROM = 3, 4, 5


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    group_state: str
    group_type: str


class ListGroupsResult(NamedTuple):
    groups: Sequence[ListedGroup]


def encode(result: ListGroupsResult, version: int) -> bytearray:
    writer = Writer(flexible=version >= FLEXIBLE_FROM)
    if version >= 1:
        writer.i32(0)  # throttle time
    writer.i16(ErrorCode.NONE)
    writer.array_size(len(result.groups))
    field_count = 1 if version < STATES_FROM else 2 if version < TYPES_FROM else 3
    encoded_rows: dict[tuple[str, ...], bytearray] = {}
    for group in result.groups:
        writer.string(group.group_id)
        fields = group[1 : 1 + field_count]
        if fields not in encoded_rows:
            encoded_rows[fields] = _row_end(fields, version)
        writer.buffer += encoded_rows[fields]
    writer.tags()
    return writer.buffer


def _row_end(texts: Iterable[str], version: int) -> bytearray:
    writer = Writer(flexible=version >= FLEXIBLE_FROM)
    for text in texts:
        writer.string(text)
    writer.tags()
    return writer.buffer
