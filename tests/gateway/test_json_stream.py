"""Streams of concatenated JSON objects: any objects in any chunks, limits, and texts that are no objects."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.json_stream import (
    AT_ONCE_BYTES_MAX,
    ITEMS_MAX,
    JsonStream,
    MalformedJson,
    ObjectTooLarge,
    TooManyItems,
    UnusableText,
    check_texts,
    parse_json,
    parse_json_in_turns,
)
from headrace.gateway.turn import Turn

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab"\\{}[]\u2028é'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=3)


def in_chunks(stream: JsonStream, text: bytes, cuts: list[int]) -> list[Any]:
    at = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [value for start, end in pairwise(at) for value, _ in stream.feed(text[start:end])]


@given(
    st.lists(st.tuples(OBJECTS, st.sampled_from(["", " ", "\n", "\r\n\t"]), st.booleans())),
    st.lists(st.integers(0, 1000)),
)
def test_objects_are_split_whatever_the_chunks_are(objects: list[tuple[Any, str, bool]], cuts: list[int]) -> None:
    text = "".join(json.dumps(value, ensure_ascii=is_ascii) + space for value, space, is_ascii in objects).encode()
    stream = JsonStream(10_000)
    assert in_chunks(stream, text, cuts) == [value for value, _, _ in objects]
    stream.end()


@pytest.mark.parametrize("text", [b"[1]", b"1", b"null", b"{} x", b'{}"a"', b"]", b"}"])
def test_other_values_than_objects_are_malformed(text: bytes) -> None:
    with pytest.raises(MalformedJson, match="expected an object"):
        list(JsonStream(100).feed(text))


@pytest.mark.parametrize("text", [b"{", b'{"a": "}', b'{"a\\', b"{} {"])
def test_an_incomplete_object_is_malformed_at_the_end(text: bytes) -> None:
    stream = JsonStream(100)
    list(stream.feed(text))
    with pytest.raises(MalformedJson, match="ends within"):
        stream.end()


def test_the_size_of_an_object_is_limited_in_any_chunks() -> None:
    stream = JsonStream(10)
    assert list(stream.feed(b'{"a": 1}{"b": 2}{"c')) == [({"a": 1}, 8), ({"b": 2}, 8)]
    with pytest.raises(ObjectTooLarge, match="10 bytes"):
        list(stream.feed(b'": "1234'))
    with pytest.raises(ObjectTooLarge, match="10 bytes"):
        list(JsonStream(10).feed(b'{"a": "1234"}'))


@pytest.mark.parametrize("text", ["\ud800", "a\0", "ä" * 16_384])
def test_texts_that_the_kafka_client_cannot_take_are_refused_anywhere(text: str) -> None:
    for value in (text, [[text]], {"a": {"b": text}}, {text: 1}):
        with pytest.raises(UnusableText):
            check_texts(value)
    check_texts({"ä": ["a", 1, None, True, 1.5]})


@pytest.mark.parametrize(
    ("text", "words"), [(b"{", "no JSON"), (b"[NaN]", "NaN"), (b'"\xff"', "UTF-8"), (b"[" * 100_000, "deeply|no JSON")]
)
def test_texts_that_are_no_json(text: bytes, words: str) -> None:
    with pytest.raises(MalformedJson, match=words):
        parse_json(text)


def parsed(text: bytes) -> Any:
    try:
        return parse_json(text)
    except MalformedJson:
        return MalformedJson


def parsed_in_turns(text: bytes) -> Any:
    try:
        return asyncio.run(parse_json_in_turns(text, Turn()))
    except MalformedJson:
        return MalformedJson


@given(
    OBJECTS | VALUES, st.sampled_from([None, 1]), st.booleans(), st.integers(0, 60), st.sampled_from(["", *'{}[]:,"x1'])
)
def test_a_large_text_parsed_in_turns_has_the_value_of_parse_json(
    value: Any, indent: int | None, is_ascii: bool, at: int, damage: str
) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    damaged = (text[:at] + damage + text[at:]).encode() + b" " * AT_ONCE_BYTES_MAX
    expected = parsed(damaged)
    assert parsed_in_turns(damaged) == (expected if isinstance(expected, dict) else MalformedJson)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": [1, 2], "a": [3]}',
        b'{"a": [1,]}',
        b'{"a": 1,}',
        b'{"a": [NaN]}',
        b'{"a": ["\xff"]}',
        b'\xef\xbb\xbf{"a": []}',
        '{"a": [1]}'.encode("utf-16"),
        b'{"a": [' + b"[" * 100_000,
        b'{"a" []}',
        b"{1: []}",
        b'{"a": []} []',
        b"{",
        b"",
    ],
)
def test_the_ends_of_json_parsed_in_turns(text: bytes) -> None:
    padding = " " * AT_ONCE_BYTES_MAX
    padded = text + (padding.encode("utf-16")[2:] if text.startswith(b"\xff\xfe") else padding.encode())
    assert parsed_in_turns(padded) == parsed(padded)


def test_number_of_items_is_limited() -> None:
    def text(count: int) -> bytes:
        return json.dumps({"records": [{}] * count}).encode()

    assert len(parsed_in_turns(text(ITEMS_MAX))["records"]) == ITEMS_MAX
    with pytest.raises(TooManyItems, match="'records' has more than 100,000 items"):
        parsed_in_turns(text(ITEMS_MAX + 1))


def test_other_requests_run_while_a_large_text_is_parsed() -> None:
    async def turns() -> int:
        text = json.dumps({"records": [{"value": "v" * 90}] * 100_000}).encode()
        parsing, count = asyncio.ensure_future(parse_json_in_turns(text, Turn())), 0
        while not parsing.done():
            await asyncio.sleep(0)
            count += 1
        return count

    assert asyncio.run(turns()) > 3
