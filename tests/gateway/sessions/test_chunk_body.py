from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.sessions.chunk_body import (
    FRAMED,
    JSON,
    LINES,
    SEQNO_MAX,
    ChunkBody,
    MalformedChunk,
    NumberedRecord,
)


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.integers(0, 10**12))
def test_number_of_a_line_is_the_offset_after_its_newline(lines: list[bytes], begin: int) -> None:
    body = b"".join(line + b"\n" for line in lines)
    found = list(ChunkBody(LINES, body, begin))
    assert [content for _, content, _, _ in found] == lines
    for seqno, content, _, _ in found:
        assert body[: seqno - begin].endswith(content + b"\n")


@given(st.dictionaries(st.integers(1, SEQNO_MAX), st.tuples(st.binary(max_size=30), st.sampled_from(["", "1/2"]))))
def test_framed_records_may_contain_anything(records: dict[int, tuple[bytes, str]]) -> None:
    ordered = sorted(records.items())
    body = b"".join(
        f"{seqno} {len(content)}{' ' if part else ''}{part}\n".encode() + content + b"\n"
        for seqno, (content, part) in ordered
    )
    assert list(ChunkBody(FRAMED, body, None)) == [
        NumberedRecord(seqno, content, part) for seqno, (content, part) in ordered
    ]


def test_json_records_have_values() -> None:
    chunk = ChunkBody(
        JSON, b'{"records": [{"seqno": 3, "value": {"a": 1}, "time": 5}, {"seqno": 9, "value": null}]}', None
    )
    assert list(chunk) == [NumberedRecord(3, {"a": 1}, time="5"), NumberedRecord(9, None)]
    assert chunk.has_values and not ChunkBody(FRAMED, b"", None).has_values


@pytest.mark.parametrize(
    ("media_type", "body", "begin"),
    [
        (LINES, b"no end", 0),
        (LINES, b"a\n", None),
        (LINES, b"a\n", SEQNO_MAX - 1),
        (FRAMED, b"1 1\na\n", 0),
        (FRAMED, b"1 1\na", None),
        (FRAMED, b"1 2\na\n", None),
        (FRAMED, b"1 0\na\n", None),
        (FRAMED, b"2 1\na\n1 1\na\n", None),
        (FRAMED, b"2 1\na\n2 1\na\n", None),
        (FRAMED, b"0 1\na\n", None),
        (FRAMED, b"9223372036854775808 1\na\n", None),
        (FRAMED, b"-1 1\na\n", None),
        (FRAMED, b"1 9999999999\na\n", None),
        (JSON, b"[]", None),
        (JSON, b'{"records": {}}', None),
        (JSON, b'{"records": [], "more": 1}', None),
        (JSON, b'{"records": [1]}', None),
        (JSON, b'{"records": [{"seqno": 1, "value": 1, "time": 1.5}]}', None),
        (JSON, b'{"records": [{"seqno": 1, "value": 1, "time": "a\\n"}]}', None),
        (JSON, b'{"records": [{"seqno": 1, "value": 1, "else": 1}]}', None),
        (JSON, b'{"records": [{"seqno": 1}]}', None),
        (JSON, b'{"records": [{"seqno": true, "value": 1}]}', None),
        (JSON, b'{"records": [{"seqno": 1.0, "value": 1}]}', None),
        (JSON, b'{"records": [{"seqno": 2, "value": 1}, {"seqno": 2, "value": 1}]}', None),
        (JSON, b'{"records": [', None),
    ],
)
def test_malformed_body_is_refused_as_a_whole(media_type: str, body: bytes, begin: int | None) -> None:
    with pytest.raises(MalformedChunk):
        ChunkBody(media_type, body, begin)


def test_json_of_the_parser_limits_is_refused() -> None:
    with pytest.raises(MalformedChunk):
        ChunkBody(JSON, json.dumps({"records": [{"seqno": 10**30, "value": 1}]}).encode(), None)
