"""Streams of concatenated JSON objects: any objects in any chunks, limits, and texts that are no objects."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.json_stream import (
    JsonStream,
    MalformedJson,
    ObjectTooLarge,
    UnusableText,
    check_texts,
    parse_json,
)

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
