"""Property tests of unions: an encoded value has no problem and is read back unchanged; others are errors with a
reason.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from decimal import Decimal
from io import BytesIO
from typing import Any, Final
from uuid import UUID

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from headrace.avro_schema import Schema, parse_schema
from headrace.clients.datum import find_problem
from headrace.clients.encoding import Encoding, compiled_schema
from headrace.clients.errors import ValueRefused
from support.schemas.strategies import data_for, schemas

KINDS: Final[tuple[Any, ...]] = (
    "null", "boolean", "int", "long", "float", "double", "bytes", "string",
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-nanos"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
    {"type": "enum", "name": "E", "symbols": ["A", "null"]},
    {"type": "fixed", "name": "F", "size": 2},
    {"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2},
)  # fmt: skip
EAST: Final = datetime.timezone(datetime.timedelta(hours=2))
TEXTS: Final = ("", "A", "null", "array", "2026-01-01", "00000000-0000-0000-0000-000000000005", "\ud800")
SCALARS: Final = (
    st.none()
    | st.booleans()
    | st.sampled_from(
        [sign * (1 << bits) + near for bits in (0, 24, 31, 53, 63) for sign in (1, -1) for near in (0, 1)]
    )
    | st.integers()
    | st.floats()
    | st.sampled_from(TEXTS)
    | st.sampled_from([b"", b"ab", bytearray(b"ab"), UUID(int=5), datetime.date(2026, 1, 1), datetime.time(1, 2)])
    | st.datetimes(timezones=st.sampled_from([EAST, datetime.UTC]))
    | st.datetimes().map(lambda value: value.replace(microsecond=value.microsecond // 1000 * 1000))
    | st.times()
    | st.sampled_from([Decimal("1.25"), Decimal("9999"), Decimal("1E+5"), Decimal("-0.01"), Decimal("NaN")])
)
VALUES: Final = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.tuples(st.sampled_from(["null", "int", "long", "double", "string", "array", "map", "R", "S", "E"]), inner)
        | st.dictionaries(st.sampled_from("fg"), inner, max_size=2)
    ),
    max_leaves=4,
)


def underlying(kind: Any) -> str:
    """Returns the name that may occur only once in a union."""
    record_type: str = kind if isinstance(kind, str) else kind["type"]
    return kind["name"] if isinstance(kind, dict) and "name" in kind else record_type


@st.composite
def unions(draw: st.DrawFn) -> Any:
    """Generates unions of scalars, with up to two of: an array, a map and two records of such unions."""
    found = draw(st.lists(st.sampled_from(KINDS), unique_by=underlying, min_size=1, max_size=4))
    for name in draw(st.sets(st.sampled_from(["array", "map", "R", "S"]), max_size=2)):
        inner = draw(st.lists(st.sampled_from(KINDS[:-3]), unique_by=underlying, min_size=1, max_size=3))
        around = {
            "array": {"type": "array", "items": inner},
            "map": {"type": "map", "values": inner},
        }.get(name, {"type": "record", "name": name, "fields": [{"name": "f", "type": inner}]})
        found.insert(draw(st.integers(0, len(found))), around)
    return found


def round_trip(schema: Schema, value: Any) -> Any:
    encoded = Encoding("t", "t-value", 1, schema, time_property="", time_fields=()).encode(value)
    return fastavro.schemaless_reader(BytesIO(encoded[5:]), compiled_schema(schema), None)


def is_same(found: Any, value: Any) -> bool:
    """Returns whether the value read back equals the written one. A number may have become a time, and a datetime
    without time zone, which is local time, one in UTC."""
    if isinstance(value, tuple):
        pair = len(value) == 2 and isinstance(value[0], str) and is_same(found, value[1])
        return pair or is_same(found, list(value))
    if isinstance(value, list):
        return isinstance(found, list) and len(found) == len(value) and all(map(is_same, found, value))
    if isinstance(value, Mapping):
        return isinstance(found, dict) and all(is_same(found[name], value[name]) for name in value)
    if isinstance(value, int) and isinstance(found, (int, float)):
        return isinstance(found, bool) is isinstance(value, bool) and bool(found == value)
    if isinstance(value, datetime.datetime) and isinstance(found, datetime.datetime):
        return found == (value.astimezone() if found.tzinfo is not None and value.tzinfo is None else value)
    return (value is None) is (found is None)


@given(kind=unions(), value=VALUES)
def test_encoded_union_value_is_read_back_unchanged(kind: Any, value: Any) -> None:
    record_type = {"type": "record", "name": "Of", "fields": [{"name": "u", "type": kind}]}
    schema = parse_schema(json.dumps(record_type))
    problem = find_problem(schema, {"u": value})
    try:
        found = round_trip(schema, {"u": value})["u"]
    except ValueRefused as refused:
        assert problem is not None
        assert refused.field.startswith("u")
    else:
        assert problem is None
        assert is_same(found, value)


@given(data=st.data(), schema=schemas())
def test_value_without_problem_is_encoded(data: st.DataObject, schema: Schema) -> None:
    value = data.draw(data_for(schema))
    if find_problem(schema, value) is None:
        round_trip(schema, value)
