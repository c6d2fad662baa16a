"""The answer to ListGroups, versions 0 to 5, by hand: there may be tens of thousands of groups, in a few states."""

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


class ListGroupsAnswer(NamedTuple):
    groups: Sequence[ListedGroup]


def encode(answer: ListGroupsAnswer, version: int) -> bytearray:
    writer = Writer(flexible=version >= FLEXIBLE_FROM)
    if version >= 1:
        writer.i32(0)  # throttle time
    writer.i16(ErrorCode.NONE)
    writer.array_size(len(answer.groups))
    told = 1 if version < STATES_FROM else 2 if version < TYPES_FROM else 3
    rests: dict[tuple[str, ...], bytearray] = {}
    for group in answer.groups:
        writer.string(group.group_id)
        rest = group[1 : 1 + told]
        if rest not in rests:
            rests[rest] = _row_end(rest, version)
        writer.buffer += rests[rest]
    writer.tags()
    return writer.buffer


def _row_end(texts: Iterable[str], version: int) -> bytearray:
    writer = Writer(flexible=version >= FLEXIBLE_FROM)
    for text in texts:
        writer.string(text)
    writer.tags()
    return writer.buffer
