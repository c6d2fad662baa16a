"""Wire format and time of messages."""

import datetime
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.avro_schema import (
    Framed,
    FramingError,
    find_time_fields,
    frame,
    parse_schema,
    read_time,
    unframe,
)
from headrace.avro_schema.message_time import TimeUnit, parse_time_text, unusable_time_fields

ID_HEADER = "__value_schema_id"


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
    assert unframe(b"body", [("other", b"1"), (ID_HEADER, b"\x00\x00\x00\x00\x07")]) == Framed(7, b"body")
    assert unframe(b"\x00\x00\x00\x00\x05x", [(ID_HEADER, None)]) == Framed(5, b"x")


@pytest.mark.parametrize(
    ("value", "headers", "reason"),
    [
        (b"", (), "too-short"),
        (b"\x00\x00\x00\x01", (), "too-short"),
        (b"{", (), "bad-magic"),
        (b'{"a": 1}', (), "bad-magic"),
        (b"\x01\x00\x00\x00\x01", (), "bad-magic"),
        (b"\x00\xff\xff\xff\xff", (), "bad-id"),
        (b"x", [(ID_HEADER, b"\x01" + b"g" * 16)], "guid"),
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
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}


@pytest.mark.parametrize(
    ("kind", "value", "ms"),
    [
        ("long", 1_500, 1_500),
        (MILLIS, -1, -1),
        (MICROS, -1, -1),
        ({"type": "long", "logicalType": "timestamp-nanos"}, 1_999_999, 1),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, 2_500, 2),
        (DATE, 1, 86_400_000),
        (DATE, datetime.date(1970, 1, 2), 86_400_000),
        (["null", "long"], None, None),
        (["null", "long"], 7, 7),
        (MILLIS, datetime.datetime(1970, 1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))), 0),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, datetime.datetime(1970, 1, 1, 0, 0, 1), 1_000),
        ("string", "1970-01-01T00:00:01Z", 1_000),
        ("string", "yesterday", None),
        (["null", "string"], "1970-01-01T00:00:01Z", 1_000),
        (["null", "string"], None, None),
        (["null", "long", "string"], 7, 7),
        (["null", "long", "string"], "1970-01-01T01:00:00+01:00", 0),
        (["null", MICROS, "string"], 1_000, 1),
        (["string", "int"], 7, None),
        (["long", "double"], 7, 7),
        (["long", "double"], 7.5, None),
    ],
)
def test_times_are_converted_to_milliseconds(kind, value, ms):
    (found,) = find_time_fields(schema_of(("timestamp", kind)), "", CANDIDATES)
    assert found.source == "timestamp"
    assert found.read({"timestamp": value}) == ms


UNUSABLE = [
    ("int", "is an int, which states no unit"),
    ("float", "is a float, which states no unit"),
    ("double", "is a double, which states no unit"),
    (["null", "double"], "is a double, which states no unit"),
    ("boolean", "is a boolean, which states no point in time"),
    ("null", "is always null"),
    ({"type": "long", "logicalType": "time-micros"}, "is a time-micros, which states no point in time"),
    ({"type": "string", "logicalType": "uuid"}, "is a uuid, which states no point in time"),
    ({"type": "record", "name": "T", "fields": []}, "is of type record, which states no point in time"),
    ({"type": "array", "items": "long"}, "is of type array, which states no point in time"),
    (["int", "long"], "is a union without exactly one type that can be a time"),
    (["double", "boolean"], "is a union without exactly one type that can be a time"),
]


@pytest.mark.parametrize(("kind", "reason"), UNUSABLE)
def test_types_without_a_point_in_time_are_no_time_fields(kind, reason):
    schema = schema_of(("timestamp", kind))
    assert find_time_fields(schema, "", CANDIDATES) == ()
    assert find_time_fields(schema, "timestamp", ()) == ()
    (found,) = unusable_time_fields(schema, ("timestamp",))
    assert (found.name, found.exists, found.reason) == ("timestamp", True, reason)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("createdAt", "does not exist (the schema has created_at)"),
        ("meta.sentat", "does not exist (the schema has meta.sent_at)"),
        ("sent", "does not exist"),
        ("", "does not exist"),
        ("created_at.ms", "does not exist (created_at is no record)"),
    ],
)
def test_names_that_are_no_field_are_reported(name, reason):
    meta = {"type": "record", "name": "M", "fields": [{"name": "sent_at", "type": "long"}]}
    (found,) = unusable_time_fields(schema_of(("created_at", "long"), ("meta", ["null", meta])), (name,))
    assert (found.exists, found.reason) == (False, reason)


HEADER = {"type": "record", "name": "H", "fields": [{"name": "time", "type": "long"}]}


def test_named_field_precedes_candidates():
    schema = schema_of(("timestamp", "long"), ("at", "long"), ("header", ["null", HEADER]))
    assert [one.source for one in find_time_fields(schema, "at", CANDIDATES)] == ["at"]
    assert [one.source for one in find_time_fields(schema, "gone", CANDIDATES)] == ["header.time", "timestamp"]
    assert find_time_fields(schema, "", ()) == ()
    assert find_time_fields(parse_schema('"long"'), "", CANDIDATES) == ()


def test_first_candidate_with_a_time_in_the_message_is_used():
    schema = schema_of(("timestamp", "long"), ("header", ["null", HEADER]), ("text", "string"))
    fields = find_time_fields(schema, "", ("text", "header.time", "timestamp", "timestamp"))
    assert len(fields) == 3
    assert read_time(fields, {"text": "?", "header": {"time": 5}, "timestamp": 6}) == 5
    assert read_time(fields, {"text": "?", "header": None, "timestamp": 6}) == 6
    assert read_time(fields, {"text": "1970-01-01T00:00Z", "header": None, "timestamp": 6}) == 0
    assert read_time(fields, {"text": "?", "header": None}) is None
    assert read_time(fields, "text") is None


def renamed(*fields):
    return parse_schema(json.dumps({"type": "record", "name": "R", "fields": list(fields)}))


def test_time_fields_are_found_by_aliases_of_the_writer_and_of_the_newest_version():
    old = renamed({"name": "created", "type": MICROS}, {"name": "ts", "type": "long"})
    new = renamed(
        {"name": "created_at", "type": MICROS, "aliases": ["made", "created"]},
        {"name": "timestamp", "type": "long", "aliases": ["ts"]},
    )
    assert [(one.path, one.unit, one.source) for one in find_time_fields(old, "created_at", (), new)] == [
        (("created",), TimeUnit.MICROS, "created_at")
    ]
    assert [one.path for one in find_time_fields(new, "created", (), new)] == [("created_at",)]
    assert [one.path for one in find_time_fields(old, "", CANDIDATES, new)] == [("ts",)]
    assert find_time_fields(old, "created_at", (), None) == ()
    swapped = renamed({"name": "b", "type": "long"}, {"name": "a", "type": "long", "aliases": ["b"]})
    assert [one.path for one in find_time_fields(swapped, "b", (), swapped)] == [("b",)], "a name precedes an alias"


def test_aliases_apply_to_nested_fields():
    def nested(outer, inner, aliases, outer_aliases):
        record = {"type": "record", "name": "H", "fields": [{"name": inner, "type": "long", "aliases": aliases}]}
        return renamed({"name": outer, "type": ["null", record], "aliases": outer_aliases})

    old, new = nested("head", "at", [], []), nested("header", "time", ["at"], ["head"])
    assert [one.path for one in find_time_fields(old, "", CANDIDATES, new)] == [("head", "at")]


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-01-31T07:08:09Z", 1_769_843_289_000),
        ("2026-01-31T07:08Z", 1_769_843_280_000),
        ("2026-01-31T07:08:09.5Z", 1_769_843_289_500),
        ("2026-01-31t07:08:09,123999999z", 1_769_843_289_123),
        ("2026-01-31 07:08:09.123456+00", 1_769_843_289_123),
        ("2026-01-31T09:38:09+02:30", 1_769_843_289_000),
        ("2026-01-31T04:08:09-0300", 1_769_843_289_000),
        ("2024-02-29T00:00:00-00:00", 1_709_164_800_000),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        ("9999-12-31T23:59:59-01:00", 253_402_304_399_000),
        ("1969-12-31T23:59:59.999Z", -1),
    ],
)
def test_iso_texts_with_a_zone_are_times(text, ms):
    assert parse_time_text(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-31T07:08:09",
        "2026-01-31",
        "2026-01-31Z",
        "2026-01-31T07Z",
        "20260131T070809Z",
        "2026-1-31T07:08:09Z",
        "2026-02-29T07:08:09Z",
        "1900-02-29T07:08:09Z",
        "2026-00-01T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-01-00T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "12026-01-31T07:08:09Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T07:60:00Z",
        "2026-01-31T07:08:60Z",
        "2026-01-31T07:08:Z",
        "2026-01-31T07:08.5Z",
        "2026-01-31T07:08:09.Z",
        "2026-01-31T07:08:09.1234567890Z",
        "2026-01-31T07:08:09+24:00",
        "2026-01-31T07:08:09+02:60",
        "2026-01-31T07:08:09+2",
        "2026-01-31T07:08:09+02:",
        "2026-01-31T07:08:09 UTC",
        " 2026-01-31T07:08:09Z",
        "2026-01-31T07:08:09Z\n",
        "2026-01-31T07:08:09+02:00[Europe/Paris]",
        "\u0662026-01-31T07:08:09Z",
        "1769843289",
        "now",
    ],
)
def test_other_texts_are_no_times(text):
    assert parse_time_text(text) is None


@given(
    st.datetimes(timezones=st.timezones() | st.just(datetime.UTC)).filter(lambda one: one.year < 9999),
    st.sampled_from(["T", " "]),
    st.sampled_from(["auto", "minutes", "seconds", "milliseconds", "microseconds"]),
)
def test_texts_of_datetimes_are_read_like_python_does(time, separator, precision):
    """Python's own parser is the oracle. Offsets with seconds, of the time before standard time, are no ISO 8601."""
    text = time.isoformat(separator, timespec=precision)
    offset = datetime.datetime.fromisoformat(text).utcoffset()
    assert offset is not None
    whole = offset % datetime.timedelta(minutes=1) == datetime.timedelta(0)
    expected = (datetime.datetime.fromisoformat(text) - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // (
        datetime.timedelta(milliseconds=1)
    )
    assert parse_time_text(text) == (expected if whole else None)
