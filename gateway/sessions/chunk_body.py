"""Parses the bodies of chunks to numbered records.

| media type | content |
|---|---|
| `text/plain` | lines that end with LF; a line's number is `begin` plus the bytes up to and including its LF |
| `application/vnd.headrace.records` | records with a head `SEQNO LENGTH[ PART/PARTS]` LF, LENGTH bytes, LF |
| `application/json` | `{"records": [{"seqno": 1, "value": …, "time": …}]}`; time is optional |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from headrace.gateway.json_stream import MalformedJson, parse_json

LINES: Final = "text/plain"
FRAMED: Final = "application/vnd.headrace.records"
JSON: Final = "application/json"
SEQNO_MAX: Final = 2**63 - 1
TIME_LENGTH_MAX: Final = 64
_HEAD: Final = re.compile(rb"(\d{1,19}) (\d{1,10})(?: (\d{1,9}/\d{1,9}))?\n")


class MalformedChunk(ValueError):
    """A body has not the form of its media type. The message is a sentence."""


class NumberedRecord(NamedTuple):
    """A record of a chunk. `content` are bytes, or a parsed value from JSON; `part` is "" or `PART/PARTS`, `time` the
    client's time as it was sent, "" without one."""

    seqno: int
    content: Any
    part: str = ""
    time: str = ""


_Fields = tuple[int, Any, str, str]


class ChunkBody:
    """A validated body with `count` records. Iterating yields the records. `content` and `begin` are the arguments, 0
    for bodies without `begin`.

    Args:
        media_type: one of the three.
        body: the inflated body.
        begin: the sequence number before the first line, of lines only.

    Raises:
        MalformedChunk: the body is malformed.
    """

    def __init__(self, media_type: str, body: bytes, begin: int | None) -> None:
        self.content = body
        self.begin = 0
        self._values: list[NumberedRecord] = []
        self.count = 0
        self._iterate = {LINES: self._lines, FRAMED: self._framed, JSON: self._parsed}[media_type]
        if (begin is None) == (media_type == LINES):
            raise MalformedChunk(f"the parameter begin is for {LINES}, which needs it")
        if begin is not None:
            self.begin = begin
            self._check_lines()
        elif media_type == FRAMED:
            self._check_framed()
        else:
            self._values = list(_values(body))
            self.count = len(self._values)

    @property
    def has_values(self) -> bool:
        """Whether the contents are values that were parsed from JSON, instead of bytes."""
        return self._iterate == self._parsed

    @property
    def is_lines(self) -> bool:
        return self._iterate == self._lines

    def __iter__(self) -> Iterator[_Fields]:
        """Yields the records in rising order of their numbers, as tuples with the fields of `NumberedRecord`."""
        return self._iterate()

    def _check_lines(self) -> None:
        if not 0 <= self.begin <= SEQNO_MAX - len(self.content):
            raise MalformedChunk(f"begin={self.begin} is outside of 0 … 2^63-1")
        if self.content and self.content[-1] != 10:
            raise MalformedChunk("the last line does not end with LF; send it when it is complete")
        self.count = self.content.count(b"\n")

    def lines_from(self, position: int) -> Iterator[_Fields]:
        """Yields the lines from a position in `content`, the beginning of a line, like `__iter__`."""
        seqno = self.begin + position
        for line in self.content[position:].split(b"\n")[:-1]:
            seqno += len(line) + 1
            yield seqno, line, "", ""

    def _lines(self) -> Iterator[_Fields]:
        return self.lines_from(0)

    def _check_framed(self) -> None:
        body, position, last = self.content, 0, 0
        while position < len(body):
            head = _HEAD.match(body, position)
            if head is None:
                raise MalformedChunk(f"at byte {position}: expected SEQNO LENGTH[ PART/PARTS] and LF")
            seqno, end = int(head[1]), head.end() + int(head[2])
            if body[end : end + 1] != b"\n":
                raise MalformedChunk(f"at byte {position}: the record of {int(head[2])} bytes does not end with LF")
            last = _rising(seqno, last, f"at byte {position}")
            position = end + 1
            self.count += 1

    def _framed(self) -> Iterator[NumberedRecord]:
        body, position = self.content, 0
        while position < len(body):
            head = _HEAD.match(body, position)
            assert head is not None
            end = head.end() + int(head[2])
            yield NumberedRecord(int(head[1]), body[head.end() : end], (head[3] or b"").decode())
            position = end + 1

    def _parsed(self) -> Iterator[NumberedRecord]:
        return iter(self._values)


def _rising(seqno: int, last: int, where: str) -> int:
    if not 1 <= seqno <= SEQNO_MAX:
        raise MalformedChunk(f"{where}: the seqno {seqno} is outside of 1 … 2^63-1")
    if seqno <= last:
        raise MalformedChunk(f"{where}: the seqno {seqno} is not above {last}, that of the record before")
    return seqno


def _values(body: bytes) -> Iterator[NumberedRecord]:
    try:
        content = parse_json(body)
    except MalformedJson as error:
        raise MalformedChunk(str(error)) from None
    records = content.get("records") if isinstance(content, dict) else None
    if not isinstance(records, list) or set(content) != {"records"}:
        raise MalformedChunk('expected an object {"records": […]}')
    last = 0
    for index, record in enumerate(records):
        where = f"records[{index}]"
        if not isinstance(record, dict) or not {"seqno", "value"} <= set(record) <= {"seqno", "value", "time"}:
            raise MalformedChunk(f"{where}: expected an object with seqno, value and optionally time")
        seqno = record["seqno"]
        if isinstance(seqno, bool) or not isinstance(seqno, int):
            raise MalformedChunk(f"{where}: expected seqno to be an integer")
        last = _rising(seqno, last, where)
        yield NumberedRecord(seqno, record["value"], time=_time(record.get("time"), where))


def _time(value: Any, where: str) -> str:
    if value is None:
        return ""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    text = str(value) if is_number else value
    if not isinstance(text, str) or not text.isascii() or not text.isprintable() or len(text) > TIME_LENGTH_MAX:
        raise MalformedChunk(f"{where}: expected time to be milliseconds since 1970 or an ISO text")
    return text
