"""Cuts the bytes of a file into chunks of records, as pure functions.

A record's seqno is the position after its last byte in the file, including the line end. So positions and seqnos are
the same numbers, and a chunk that was stored in part continues at the last stored seqno.

Three body formats exist. A text body is bytes of the file, unchanged: no work per line. A framed body has records of
several lines and parts of long lines. A JSON body has values of lines that are JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from headrace.push.contents import Content, fingerprint
from headrace.push.rules import FINGERPRINT_BYTES, Fingerprint

TEXT = "text/plain"
FRAMED = "application/vnd.headrace.records"
JSON = "application/json"
RECORDS_MAX = 10_000
"""Records of a framed or JSON chunk: short ones would otherwise exceed the gateway's limit by their frames."""
NOT_JSON = 42203
Bytes = Union[bytes, memoryview]


@dataclass(frozen=True)
class PushReject:
    """A record that was not stored, with the reason."""

    seqno: int
    error_code: int
    message: str
    value: bytes


@dataclass(frozen=True)
class PushChunk:
    """Records of one request.

    Attributes:
        begin: position before the first record; the body of a text chunk begins there.
        end: position after the last record.
        body: not compressed. That of a text chunk may be a view of the bytes that were read: a copy takes time.
        anchor: fingerprint of the bytes before `end`.
        rejects: records that the client itself rejects, because they are no JSON. They are not in the body.
        is_empty: the chunk has no record; only the position advances.
        line_start: begin of the line that has its first parts before `end`; None if `end` is the begin of a line.
    """

    begin: int
    end: int
    content_type: str
    body: Bytes
    anchor: Fingerprint
    rejects: tuple[PushReject, ...] = ()
    is_empty: bool = False
    line_start: Optional[int] = None


@dataclass(frozen=True)
class Cut:
    """How to cut a file.

    Attributes:
        start: matches the first line of a record; None: each line is a record.
    """

    chunk_bytes: int
    line_bytes_max: int
    is_json: bool = False
    start: Optional[re.Pattern[bytes]] = None

    @property
    def read_bytes(self) -> int:
        return self.chunk_bytes if self.start is None else max(self.chunk_bytes, self.line_bytes_max)


@dataclass(frozen=True)
class CutStep:
    """The next step of reading a file.

    Attributes:
        chunk: records to send, or None if none is complete.
        nul_bytes: number of NUL bytes that were skipped.
        scanned_to: no line end is between the position and this one, so that a growing line is not searched again.
    """

    chunk: Optional[PushChunk] = None
    nul_bytes: int = 0
    scanned_to: int = 0


@dataclass
class TailCursor:
    """A reader's position in a content.

    Attributes:
        position: of the next byte to read.
        anchor: fingerprint of the bytes before it.
        line_start: begin of the line that has its first parts before `position`; None at the begin of a line.
    """

    position: int = 0
    anchor: Fingerprint = field(default_factory=Fingerprint)
    line_start: Optional[int] = None
    scanned_to: int = 0


class ContentReplaced(Exception):
    """The bytes before the position differ from the bytes that were read: the file was truncated and rewritten."""


def compile_start(pattern: Optional[str]) -> Optional[re.Pattern[bytes]]:
    return None if pattern is None else re.compile(b"^(?:" + pattern.encode() + b")", re.MULTILINE)


def next_step(content: Content, cursor: TailCursor, cut: Cut, at_end: bool) -> CutStep:
    """Returns the next chunk from the cursor on, without moving it.

    Args:
        at_end: the file has not grown for a while, so its records are complete, also a record of
            several lines. A last line without a line end is complete if the content is at its end; see `next_rest`.

    Raises:
        ContentReplaced: the anchor does not match.
    """
    anchor_length = cursor.anchor.length
    data = content.read(cursor.position - anchor_length, anchor_length + cut.read_bytes)
    if fingerprint(data[:anchor_length]) != cursor.anchor:
        raise ContentReplaced
    if len(data) == anchor_length:
        return CutStep()
    if data[anchor_length] == 0 and cursor.line_start is None:
        return _skip_nuls(content, cursor, data)
    end = data.rfind(b"\n", anchor_length) + 1
    if not end:
        if len(data) < anchor_length + cut.read_bytes:
            return CutStep(scanned_to=cursor.position + len(data) - anchor_length)
        return _long_line(content, cursor, cut)
    if cursor.line_start is not None:
        first = data.find(b"\n", anchor_length) + 1
        return _part(content, cursor, cut, cursor.position + first - anchor_length - 1, ends_with_lf=True)
    nul = data.find(b"\n\0", anchor_length, end) if b"\0" in data else -1
    if nul >= 0:
        end = nul + 1
    is_full = len(data) == anchor_length + cut.read_bytes or nul >= 0
    if cut.start is not None:
        return _several_lines(data, anchor_length, end, cursor, cut, flush=at_end or nul >= 0, is_full=is_full)
    if cut.is_json:
        return CutStep(_json_chunk(data, anchor_length, cursor.position, _line_ends(data, anchor_length, end)))
    is_most = end - anchor_length > len(data) // 2  # a view of less would hold more memory than `buffer_bytes` counts
    body: Bytes = memoryview(data)[anchor_length:end] if is_most else data[anchor_length:end]
    return CutStep(PushChunk(cursor.position, cursor.position + len(body), TEXT, body, _anchor(data, end)))


def next_rest(content: Content, cursor: TailCursor, cut: Cut) -> CutStep:
    """Returns the last line of a content, without a line end, as a chunk."""
    end = cursor.position
    while True:
        data = content.read(end, cut.chunk_bytes)
        end += len(data)
        if len(data) < cut.chunk_bytes:
            break
    if end == cursor.position:
        return CutStep()
    return _part(content, cursor, cut, end, ends_with_lf=False)


def _skip_nuls(content: Content, cursor: TailCursor, data: bytes) -> CutStep:
    """Skips NUL bytes at the begin of a line: after copytruncate a writer without O_APPEND writes at its old position,
    and the file system fills the gap."""
    start = cursor.position
    data = data[cursor.anchor.length :]
    position = start
    while data and not data.strip(b"\0"):
        position = max(position + len(data), content.next_data(position + len(data)))
        data = content.read(position, len(data))
    position += len(data) - len(data.lstrip(b"\0"))
    length = min(position, FINGERPRINT_BYTES)
    anchor = fingerprint(content.read(position - length, length))
    return CutStep(PushChunk(start, position, TEXT, b"", anchor, is_empty=True), position - start)


def _long_line(content: Content, cursor: TailCursor, cut: Cut) -> CutStep:
    """Returns the chunk of a line that is longer than a chunk: whole, or its next part."""
    position = max(cursor.position, cursor.scanned_to)
    while True:
        data = content.read(position, cut.chunk_bytes)
        found = data.find(b"\n")
        if found >= 0:
            return _part(content, cursor, cut, position + found, ends_with_lf=True)
        position += len(data)
        if len(data) < cut.chunk_bytes:
            return CutStep(scanned_to=position)


def _part(content: Content, cursor: TailCursor, cut: Cut, line_end: int, ends_with_lf: bool) -> CutStep:
    """Returns the next part of a line, the whole line if it is short enough.

    Args:
        line_end: position of the line end, or of the content's end.
    """
    start = cursor.position if cursor.line_start is None else cursor.line_start
    if (cursor.position - start) % cut.line_bytes_max:
        start = cursor.position  # the bytes before were sent as a line without a line end
    parts = max(1, -(-(line_end - start) // cut.line_bytes_max))
    part = (cursor.position - start) // cut.line_bytes_max + 1
    data = content.read(cursor.position, min(cut.line_bytes_max, line_end - cursor.position))
    end = cursor.position + len(data)
    if part >= parts and ends_with_lf:
        end += 1
    length = min(end, FINGERPRINT_BYTES)
    anchor = fingerprint(content.read(end - length, length))
    next_start = start if part < parts or not ends_with_lf else None
    if not data and cursor.line_start is not None:  # the line end of a line that was sent without it
        return CutStep(PushChunk(cursor.position, end, TEXT, b"", anchor, is_empty=True))
    if cut.is_json:
        if parts == 1:
            return CutStep(_json_chunk(data, 0, cursor.position, iter([len(data)]), anchor, end))
        reject = PushReject(end, NOT_JSON, f"line of {line_end - start} bytes is larger than line_bytes_max", data)
        return CutStep(PushChunk(cursor.position, end, JSON, b"", anchor, (reject,), True, next_start))
    suffix = f" {part}/{parts}" if parts > 1 else ""
    body = f"{end} {len(data)}{suffix}\n".encode() + data + b"\n"
    return CutStep(PushChunk(cursor.position, end, FRAMED, body, anchor, line_start=next_start))


def _several_lines(
    data: bytes, begin: int, end: int, cursor: TailCursor, cut: Cut, flush: bool, is_full: bool
) -> CutStep:
    """Returns a chunk of records of several lines. A record is complete when the next one begins, when the file rests
    (`flush`), or when it is as large as the buffer."""
    assert cut.start is not None
    ends = [found.start() for found in cut.start.finditer(data, begin, end) if found.start() > begin]
    if flush or (is_full and not ends):
        ends.append(end)
    if not ends:
        return CutStep()
    if cut.is_json:
        return CutStep(_json_chunk(data, begin, cursor.position, iter(ends)))
    frames = []
    start = begin
    for stop in ends[:RECORDS_MAX]:
        frames.append(b"%d %d\n%b" % (cursor.position + stop - begin, stop - 1 - start, data[start:stop]))
        start = stop
    chunk_end = cursor.position + start - begin
    return CutStep(PushChunk(cursor.position, chunk_end, FRAMED, b"".join(frames), _anchor(data, start)))


def _line_ends(data: bytes, begin: int, end: int) -> Iterator[int]:
    while begin < end:
        begin = data.find(b"\n", begin) + 1
        yield begin


def _json_chunk(
    data: bytes,
    begin: int,
    position: int,
    ends: Iterator[int],
    anchor: Optional[Fingerprint] = None,
    chunk_end: Optional[int] = None,
) -> PushChunk:
    """Returns a chunk of JSON values. Blank lines are no records.

    Args:
        ends: where each record ends in `data`.
        anchor: of the chunk's end, if its bytes are not in `data`.
        chunk_end: the position after the only record, if that is not its end in `data`.
    """
    records = []
    rejects = []
    start = begin
    for stop in ends:
        seqno = position + stop - begin if chunk_end is None else chunk_end
        value = data[start:stop].strip()
        start = stop
        if value:
            problem = json_problem(value)
            if problem is None:
                records.append(b'{"seqno":%d,"value":%b}' % (seqno, value))
            else:
                rejects.append(PushReject(seqno, NOT_JSON, problem, value))
        if len(records) + len(rejects) >= RECORDS_MAX:
            break
    body = b'{"records":[' + b",".join(records) + b"]}"
    end = position + start - begin if chunk_end is None else chunk_end
    return PushChunk(position, end, JSON, body, anchor or _anchor(data, start), tuple(rejects), is_empty=not records)


def json_problem(value: bytes) -> Optional[str]:
    """Returns why bytes are not one JSON value; None if they are."""
    try:
        json.loads(value.decode("utf-8"), parse_constant=_reject_constant)
    except UnicodeDecodeError:
        return "not valid UTF-8"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    return None


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _anchor(data: bytes, end: int) -> Fingerprint:
    """Returns the fingerprint before an index. `data` begins with the former anchor, so it has enough bytes."""
    return fingerprint(data[max(0, end - FINGERPRINT_BYTES) : end])


def record_of(chunk: PushChunk, seqno: int) -> Optional[bytes]:
    """Returns the record of a chunk that has a seqno, as it was sent; None if the chunk has none."""
    body = bytes(chunk.body)
    if chunk.content_type == TEXT:
        end = seqno - chunk.begin - 1
        if not 0 <= end < len(body):
            return None
        return body[body.rfind(b"\n", 0, end) + 1 : end]
    if chunk.content_type == JSON:
        for record in json.loads(body)["records"]:
            if record["seqno"] == seqno:
                return json.dumps(record["value"], ensure_ascii=False).encode("utf-8", "surrogatepass")
        return None
    at = 0
    while at < len(body):
        line_end = body.index(b"\n", at)
        words = body[at:line_end].split()
        at = line_end + 1 + int(words[1])
        if int(words[0]) == seqno:
            return body[line_end + 1 : at]
        at += 1
    return None
