"""Values on which queries fail are rejected at every position in a message; all others are loaded unchanged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.avro_codec import BadBody, CapturedTime, UnreadableValue
from headrace.avro_codec.encode import encode_bytes, encode_long
from headrace.avro_codec.readable import DECIMAL_BYTES_MAX, TIMESTAMP_MS_MAX
from headrace.avro_codec.rewrite import ADDED_BYTES_MAX
from headrace.avro_schema import Schema, find_time_fields, parse_schema
from support.loader.projection_oracle import core_and_reference, decode, load_schema_of, project

PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
LOCAL_MILLIS = {"type": "long", "logicalType": "local-timestamp-millis"}

WIDEST = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}


def unscaled(number: int, *, padding: int = 0) -> bytes:
    """Encodes a decimal; `padding` is the number of repeated sign bytes, which the shortest encoding does not have."""
    return encode_bytes(number.to_bytes(number.bit_length() // 8 + 1 + padding, "big", signed=True))


FINE_PRICE, FINE_MILLIS = encode_bytes(b"\x01"), encode_long(1_357_000_000_000)
UNREADABLE = {
    "a decimal of no bytes": (PRICE, FINE_PRICE, encode_bytes(b"")),
    "a decimal of zero bytes, with a length of three bytes": (PRICE, FINE_PRICE, b"\x80\x80\x00"),
    "a decimal of too many bytes": (PRICE, FINE_PRICE, encode_bytes(b"\x00" * (DECIMAL_BYTES_MAX + 1))),
    "a decimal with more digits than its column": (PRICE, FINE_PRICE, unscaled(10**9)),
    "a negative decimal with more digits than its column": (PRICE, FINE_PRICE, unscaled(-(10**9))),
    "a padded decimal with more digits than its column": (PRICE, FINE_PRICE, unscaled(10**9, padding=40)),
    "a padded negative decimal with more digits than its column": (PRICE, FINE_PRICE, unscaled(-(10**9), padding=40)),
    "a decimal of 39 digits": (WIDEST, FINE_PRICE, unscaled(10**38)),
    "a decimal of 16 bytes that are all ones but the first bit": (WIDEST, FINE_PRICE, unscaled(2**127 - 1)),
    "a decimal of 17 bytes": (WIDEST, FINE_PRICE, unscaled(2**127)),
    "a decimal of 300 digits": (WIDEST, FINE_PRICE, unscaled(-(10**300))),
    "a time that overflows": (MILLIS, FINE_MILLIS, encode_long(TIMESTAMP_MS_MAX + 1)),
    "a time that overflows before 1970": (MILLIS, FINE_MILLIS, encode_long(-TIMESTAMP_MS_MAX - 1)),
    "the last long": (MILLIS, FINE_MILLIS, encode_long(2**63 - 1)),
    "the first long": (MILLIS, FINE_MILLIS, encode_long(-(2**63))),
}
READABLE = {
    "the largest decimal": (PRICE, unscaled(10**9 - 1)),
    "the smallest decimal": (PRICE, unscaled(-(10**9) + 1)),
    "the largest decimal of 38 digits, padded": (WIDEST, unscaled(10**38 - 1, padding=40)),
    "the smallest decimal of 38 digits, padded": (WIDEST, unscaled(-(10**38) + 1, padding=40)),
    "a padded decimal": (PRICE, encode_bytes(b"\x00" * (DECIMAL_BYTES_MAX - 1) + b"\x01")),
    "a decimal whose length takes three bytes": (PRICE, b"\x82\x80\x00\x05"),
    "the last time": (MILLIS, encode_long(TIMESTAMP_MS_MAX)),
    "the first time": (MILLIS, encode_long(-TIMESTAMP_MS_MAX)),
    "a small time in ten bytes": (MILLIS, b"\x82" + b"\x80" * 8 + b"\x00"),
    "the last date": ({"type": "int", "logicalType": "date"}, encode_long(2**31 - 1)),
    "microseconds, which are a bigint": ({"type": "long", "logicalType": "timestamp-micros"}, encode_long(2**63 - 1)),
    "local milliseconds, which are a bigint": (LOCAL_MILLIS, encode_long(2**63 - 1)),
    "local microseconds": ({"type": "long", "logicalType": "local-timestamp-micros"}, encode_long(2**63 - 1)),
    "a decimal that Hive cannot hold": ({**PRICE, "precision": 50}, encode_bytes(b"")),
    "a decimal that Hive cannot hold, with more digits": ({**PRICE, "precision": 50}, unscaled(10**60)),
    "a decimal on fixed, which is binary, with more digits": (
        {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 5, "scale": 2},
        b"\x7f" * 4,
    ),
    "plain bytes": ("bytes", encode_bytes(b"")),
    "a plain long": ("long", encode_long(2**63 - 1)),
}


def record(*fields: tuple[str, Any], name: str = "Event") -> Schema:
    listed = [{"name": field_name, "type": kind} for field_name, kind in fields]
    return parse_schema(json.dumps({"type": "record", "name": name, "fields": listed}))


def nested(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}, {"name": "v", "type": kind}]}


PLACES = {
    "alone": (lambda kind: kind, b"%b"),
    "nullable": (lambda kind: ["null", kind], b"\x02%b"),
    "nullable, null last": (lambda kind: [kind, "null"], b"\x00%b"),
    "in a record": (nested, b"\x02%b"),
    "in an array": (lambda kind: {"type": "array", "items": kind}, b"\x02%b\x00"),
    "in an array with byte counts": (lambda kind: {"type": "array", "items": ["null", kind]}, None),
    "in a map": (lambda kind: {"type": "map", "values": kind}, b"\x02\x02k%b\x00"),
    "in a union of several": (lambda kind: ["null", "string", kind], b"\x04%b"),
    "deep": (lambda kind: {"type": "map", "values": {"type": "array", "items": nested(["null", kind])}}, None),
}


def encoded_in(position: str, value: bytes) -> bytes:
    body = PLACES[position][1]
    if body is not None:
        return body % value
    if position == "deep":
        return b"\x02\x02k\x02\x02\x02" + value + b"\x00\x00"
    return b"\x01" + encode_long(len(value) + 1) + b"\x02" + value + b"\x00"


def loads(writer: Schema) -> dict[str, Schema]:
    """Load schemas: the writer's own, for which bodies are copied, and one to which they are converted."""
    return {"copied": load_schema_of(writer), "rewritten": load_schema_of(record(("first", "string")), writer)}


@pytest.mark.parametrize("position", PLACES)
@pytest.mark.parametrize("name", UNREADABLE)
def test_value_on_which_queries_fail_is_rejected_with_its_position(name: str, position: str) -> None:
    kind, fine, bad = UNREADABLE[name]
    writer = record(("id", "int"), ("c", PLACES[position][0](kind)), ("end", "string"))
    for load in loads(writer).values():
        convert = core_and_reference(writer, load, (), CapturedTime())
        good_body = b"\x02" + encoded_in(position, fine) + b"\x02z"
        decode(load, convert(good_body))
        with pytest.raises(UnreadableValue, match=rf"^c[\w.{{}}\[\]]*: .*\b{kind['logicalType']}\b"):
            convert(b"\x02" + encoded_in(position, bad) + b"\x02z")
        decode(load, convert(good_body))


@pytest.mark.parametrize("precision", range(1, 39))
def test_decimal_is_loaded_up_to_the_last_number_with_the_digits_of_its_column(precision: int) -> None:
    writer = record(("c", {**PRICE, "precision": precision, "scale": 0}))
    load = load_schema_of(writer)
    largest = 10**precision - 1
    powers = [sign * (1 << bits) + step for bits in range(0, 140, 4) for sign in (1, -1) for step in (-1, 0, 1)]
    edges = [sign * (largest + step) for sign in (1, -1) for step in (-1, 0, 1, 2)]
    for number in edges + powers:
        for padding in (0, 1, 9, 16):
            body = unscaled(number, padding=padding)
            if abs(number) <= largest:
                assert project(writer, load, body) == body
                continue
            with pytest.raises(UnreadableValue, match=rf"^c: .* {len(str(abs(number)))} digits"):
                project(writer, load, body)


def test_decimal_with_the_digits_of_a_later_version_is_loaded() -> None:
    narrow, wide = ({**PRICE, "precision": precision} for precision in (9, 12))
    versions = [record(("c", kind)) for kind in (narrow, wide)]
    with pytest.raises(UnreadableValue):
        project(versions[0], load_schema_of(versions[0]), unscaled(10**9))
    assert project(versions[0], load_schema_of(*versions), unscaled(10**9)) == unscaled(10**9)


@pytest.mark.parametrize("name", READABLE)
def test_value_that_queries_can_read_is_loaded(name: str) -> None:
    kind, value = READABLE[name]
    writer = record(("c", kind), ("end", "string"))
    body = value + b"\x02z"
    assert project(writer, load_schema_of(writer), body) == body
    load = loads(writer)["rewritten"]
    assert decode(load, project(writer, load, body))["end"] == "z"


def test_value_loaded_as_text_is_not_rejected() -> None:
    node = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "at", "type": MILLIS}, {"name": "next", "type": ["null", "Node"]}],
    }
    writer = record(("list", node))
    load = load_schema_of(writer)
    inner = encode_long(2**62) + b"\x00"
    row = decode(load, project(writer, load, FINE_MILLIS + b"\x02" + inner))
    assert json.loads(row["list"]["next"])["at"] == 2**62


def test_column_with_a_wider_decimal_is_checked() -> None:
    writer, wider = record(("c", PRICE)), record(("c", {**PRICE, "precision": 12}))
    with pytest.raises(UnreadableValue):
        project(writer, load_schema_of(writer, wider), b"\x00")


def test_message_that_is_not_a_record_is_checked() -> None:
    writer = parse_schema(json.dumps(MILLIS))
    load = load_schema_of(writer)
    assert project(writer, load, FINE_MILLIS) == FINE_MILLIS
    with pytest.raises(UnreadableValue, match=r"\btimestamp-millis\b"):
        project(writer, load, encode_long(2**62))


def test_malformed_body_with_an_unreadable_value_is_malformed() -> None:
    writer = record(("c", PRICE), ("flag", "boolean"))
    for load in loads(writer).values():
        for body in (b"\x00\x02", b"\x00", b"\x00\x01\x00"):
            with pytest.raises(BadBody) as caught:
                project(writer, load, body)
            assert not isinstance(caught.value, UnreadableValue)


def test_length_beyond_the_body_is_malformed() -> None:
    writer = record(("c", PRICE))
    for length in (1 << 20, -1):
        with pytest.raises(BadBody) as caught:
            project(writer, load_schema_of(writer), encode_long(length) + b"\x01")
        assert not isinstance(caught.value, UnreadableValue)


@pytest.mark.parametrize("time", [1_357_000_000_000, 2**63 - 1])
def test_time_after_an_unreadable_value_is_captured(time: int) -> None:
    """The producer counted the message at this time, so the loader must, too."""
    writer = record(("c", PRICE), ("at", MILLIS))
    for load in loads(writer).values():
        seen = CapturedTime()
        convert = core_and_reference(writer, load, find_time_fields(writer, "at", ()), seen)
        with pytest.raises(UnreadableValue, match=r"^c: .*\bdecimal\b"):
            convert(b"\x00" + encode_long(time))
        assert seen.value == time


@pytest.mark.parametrize("kind", ["array", "map"])
def test_defaults_of_items_do_not_make_a_huge_row_from_a_small_message(kind: str) -> None:
    def listed(*fields: dict[str, Any]) -> Schema:
        item = {"type": "record", "name": "Item", "fields": [{"name": "x", "type": "int"}, *fields]}
        return record(("c", {"type": kind, "items" if kind == "array" else "values": item}))

    writer, wider = listed(), listed({"name": "y", "type": "string", "default": "d" * 5000})
    load, item = load_schema_of(writer, wider), b"\x02" if kind == "array" else b"\x00\x02"
    fine = ADDED_BYTES_MAX // 6000
    assert len(project(writer, load, encode_long(fine) + fine * item + b"\x00")) > fine * 5000
    for count in (ADDED_BYTES_MAX // 4000, 65_000):
        with pytest.raises(UnreadableValue):
            project(writer, load, encode_long(count) + count * item + b"\x00")
