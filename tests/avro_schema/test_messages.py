"""Wire format and time of messages."""

import datetime
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.avro_schema import (
    Framed,
    FramingError,
    MessageTimeError,
    check_time_property,
    find_time_field,
    frame,
    parse_schema,
    unframe,
)

HEADER = "__value_schema_id"


def schema_of(*fields):
    return parse_schema(
        json.dumps({"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields]})
    )


@given(st.integers(0, 2**31 - 1), st.binary(max_size=20))
def test_framing_is_reversible(schema_id, body):
    assert unframe(frame(schema_id, body)) == Framed(schema_id, body)


def test_the_prefix_is_magic_and_big_endian_id():
    assert frame(258, b"x") == b"\x00\x00\x00\x01\x02x"


def test_header_takes_precedence_over_value():
    assert unframe(b"body", [("other", b"1"), (HEADER, b"\x00\x00\x00\x00\x07")]) == Framed(7, b"body")
    assert unframe(b"\x00\x00\x00\x00\x05x", [(HEADER, None)]) == Framed(5, b"x")


@pytest.mark.parametrize(
    ("value", "headers", "reason"),
    [
        (b"", (), "too-short"),
        (b"\x00\x00\x00\x01", (), "too-short"),
        (b"{", (), "bad-magic"),
        (b'{"a": 1}', (), "bad-magic"),
        (b"\x01\x00\x00\x00\x01", (), "bad-magic"),
        (b"\x00\xff\xff\xff\xff", (), "bad-id"),
        (b"x", [(HEADER, b"\x01" + b"g" * 16)], "guid"),
    ],
)
def test_unframe_refuses_invalid_framing(value, headers, reason):
    with pytest.raises(FramingError) as caught:
        unframe(value, headers)
    assert caught.value.reason == reason


def test_frame_refuses_id_out_of_range():
    with pytest.raises(FramingError):
        frame(2**31, b"")


CANDIDATES = ("header.time", "timestamp")


@pytest.mark.parametrize(
    ("kind", "value", "ms"),
    [
        ("long", 1_500, 1_500),
        ({"type": "long", "logicalType": "timestamp-millis"}, -1, -1),
        ({"type": "long", "logicalType": "timestamp-micros"}, -1, -1),
        ({"type": "long", "logicalType": "timestamp-nanos"}, 1_999_999, 1),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, 2_500, 2),
        ({"type": "int", "logicalType": "date"}, 1, 86_400_000),
        ({"type": "int", "logicalType": "date"}, datetime.date(1970, 1, 2), 86_400_000),
        (["null", "long"], None, None),
        (["null", "long"], 7, 7),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            datetime.datetime(1970, 1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
            0,
        ),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, datetime.datetime(1970, 1, 1, 0, 0, 1), 1_000),
    ],
)
def test_times_are_converted_to_milliseconds(kind, value, ms):
    found = find_time_field(schema_of(("timestamp", kind)), "", CANDIDATES)
    assert found is not None
    assert found.source == "timestamp"
    assert found.read({"timestamp": value}) == ms


@pytest.mark.parametrize(
    "kind",
    ["string", "double", "int", {"type": "long", "logicalType": "time-micros"}, ["long", "string"]],
)
def test_types_without_unit_are_not_time_fields(kind):
    assert find_time_field(schema_of(("timestamp", kind)), "", CANDIDATES) is None


def test_named_field_precedes_candidates():
    header = {"type": "record", "name": "H", "fields": [{"name": "time", "type": "long"}]}
    schema = schema_of(("timestamp", "long"), ("at", "long"), ("header", ["null", header]))
    assert find_time_field(schema, "at", CANDIDATES).source == "at"
    found = find_time_field(schema, "gone", CANDIDATES)
    assert found.path == ("header", "time")
    assert found.read({"header": None, "timestamp": 5}) is None
    assert found.read({"header": {"time": 5}}) == 5
    assert find_time_field(schema, "", ()) is None
    assert find_time_field(parse_schema('"long"'), "", CANDIDATES) is None


def test_a_property_that_names_no_time_is_refused():
    schema = schema_of(("at", "string"))
    with pytest.raises(MessageTimeError) as refused:
        check_time_property(schema, "at")
    assert refused.value.path == "at"
