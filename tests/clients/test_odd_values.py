"""Values that fastavro would write, but that would be unreadable or read as another value."""

from __future__ import annotations

import datetime
import enum
import io
import json
import re
import threading
import time
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from headrace.avro_schema import parse_schema
from headrace.clients.datum import is_recursive
from headrace.clients.encoding import Encoding, compiled_schema
from headrace.clients.errors import ValueRefused
from headrace.clients.union_branches import compile_choice

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
UUID = uuid.UUID("2d0fa971-ee54-4bda-af5a-6358e7382daa")
DATE = {"type": "int", "logicalType": "date"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "local-timestamp-micros"}
TIME_MILLIS = {"type": "int", "logicalType": "time-millis"}
TIME_MICROS = {"type": "long", "logicalType": "time-micros"}
TEXTS = {"type": "array", "items": "string"}
UUIDS = {"type": "string", "logicalType": "uuid"}
LETTERS = {"type": "enum", "name": "L", "symbols": ["A", "B"]}
LIST = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}


def record(kind: Any) -> Any:
    return {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}


def named(name: str, kind: Any) -> Any:
    return {**record(kind), "name": name}


def encoding(schema: Any) -> Encoding:
    parsed = parse_schema(json.dumps(schema), source="test")
    return Encoding("t", "t-value", 1, parsed, time_property="", time_fields=())


def round_trip(schema: Any, value: Any) -> Any:
    body = encoding(schema).encode(value)[5:]
    return fastavro.schemaless_reader(
        io.BytesIO(body), compiled_schema(parse_schema(json.dumps(schema), source="test")), None
    )


class Whole(enum.IntEnum):
    SMALL = 5
    LARGE = 2**53 + 1


class Share(float):
    pass


def decimals(precision: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2}


@pytest.mark.parametrize("is_optional", [False, True])
@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [
        (DATE, -719_162, 2_932_896),
        ({"type": "int", "logicalType": "time-millis"}, 0, 86_399_999),
        ({"type": "long", "logicalType": "time-micros"}, 0, 86_399_999_999),
        (MILLIS, -62_135_596_800_000, 253_402_300_799_999),
        ({"type": "long", "logicalType": "timestamp-micros"}, -62_135_596_800_000_000, 253_402_300_799_999_999),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, -62_135_596_800_000, 253_402_300_799_999),
        (MICROS, -62_135_596_800_000_000, 253_402_300_799_999_999),
    ],
)
def test_number_outside_of_a_time_types_range_is_an_error(kind: Any, least: int, most: int, is_optional: bool) -> None:
    schema = record(["null", kind] if is_optional else kind)
    for number in (least, most):
        round_trip(schema, {"f": number})
    for number in (least - 1, most + 1):
        with pytest.raises(ValueRefused, match=rf"{number}\b") as refused:
            encoding(schema).encode({"f": number})
        assert refused.value.field == "f"


EAST, WEST = datetime.timezone(datetime.timedelta(hours=2)), datetime.timezone(datetime.timedelta(hours=-5))
FIRST, LAST = datetime.datetime.min, datetime.datetime.max


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sets the system's time zone, which applies to naive datetimes."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


IN_UNIONS = {
    "plain": lambda kind: kind,
    "optional": lambda kind: ["null", kind],
    "with a text": lambda kind: ["null", kind, "string"],
    "with a date": lambda kind: [DATE, kind],
    "in an optional record": lambda kind: ["null", {**record(kind), "name": "I"}],
    "in an optional list": lambda kind: ["null", {"type": "array", "items": kind}],
}


@pytest.mark.usefixtures("new_york")
@pytest.mark.parametrize("position", IN_UNIONS)
@pytest.mark.parametrize("unit", ["timestamp-millis", "timestamp-micros"])
def test_datetime_outside_of_the_utc_years_is_an_error(unit: str, position: str) -> None:
    schema = record(IN_UNIONS[position]({"type": "long", "logicalType": unit}))

    def given(moment: datetime.datetime) -> Any:
        return {"f": {"f": moment} if "record" in position else [moment] if "list" in position else moment}

    last = LAST.replace(microsecond=999_000) if "millis" in unit else LAST
    for moment in (last, last.replace(tzinfo=WEST), FIRST.replace(tzinfo=EAST)):
        with pytest.raises(ValueRefused) as refused:
            encoding(schema).encode(given(moment))
        assert re.search(r"\b1 .*\b9999\b", str(refused.value)) or position.startswith("with")
        assert refused.value.field.startswith("f")
    for moment in (last.replace(tzinfo=EAST), FIRST.replace(tzinfo=WEST)):
        assert round_trip(schema, given(moment)) == given(moment)


def test_naive_datetimes_cover_all_years() -> None:
    for unit in ("local-timestamp-millis", "local-timestamp-micros"):
        last = LAST.replace(microsecond=999_000) if "millis" in unit else LAST
        for moment in (FIRST, last):
            assert round_trip(record({"type": "long", "logicalType": unit}), {"f": moment}) == {"f": moment}
    for day in (datetime.date.min, datetime.date.max):
        assert round_trip(record(DATE), {"f": day}) == {"f": day}


def test_datetime_is_not_written_as_date_next_to_a_timestamp() -> None:
    kind = [DATE, {"type": "long", "logicalType": "timestamp-nanos"}]
    with pytest.raises(ValueRefused, match="timestamp-nanos") as refused:
        encoding(record(kind)).encode({"f": NOON})
    assert refused.value.field == "f"


@pytest.mark.parametrize("kind", [["null", MILLIS, "string"], ["null", "string", {"type": "array", "items": MILLIS}]])
def test_number_outside_of_a_time_types_range_is_an_error_in_a_union(kind: Any) -> None:
    number: Any = [10**17] if isinstance(kind[2], dict) else 10**17
    with pytest.raises(ValueRefused) as refused:
        encoding(record(kind)).encode({"f": number})
    assert refused.value.field == "f"


LOST_PARTS = [
    (MILLIS, NOON.replace(microsecond=1), "microseconds"),
    (
        {"type": "long", "logicalType": "local-timestamp-millis"},
        datetime.datetime(2026, 1, 1, 0, 0, 0, 1),
        "microseconds",
    ),
    (TIME_MILLIS, datetime.time(1, 2, 3, 999), "microseconds"),
    (DATE, NOON, "time of day"),
    (DATE, NOON.replace(hour=0, microsecond=1, tzinfo=None), "time of day"),
    (MICROS, NOON, "time zone"),
    (TIME_MICROS, datetime.time(1, 2, tzinfo=datetime.UTC), "time zone"),
]


@pytest.mark.parametrize("position", IN_UNIONS)
@pytest.mark.parametrize(("kind", "moment", "part"), LOST_PARTS)
def test_part_of_a_time_that_its_type_cannot_hold_is_an_error(kind: Any, moment: Any, part: str, position: str) -> None:
    if kind["type"] == "int" and position == "with a date":
        return
    value = {"f": moment} if "record" in position else [moment] if "list" in position else moment
    with pytest.raises(ValueRefused, match=f"has (a )?{part}") as refused:
        encoding(record(IN_UNIONS[position](kind))).encode({"f": value})
    assert refused.value.field.startswith("f")


def test_nanoseconds_of_a_subclass_of_datetime_are_an_error() -> None:
    class Timestamp(datetime.datetime):
        """Like pandas.Timestamp."""

        nanosecond = 5

    with pytest.raises(ValueRefused, match="nanoseconds"):
        encoding(record({"type": "long", "logicalType": "timestamp-micros"})).encode({"f": Timestamp(2026, 1, 1)})


@pytest.mark.usefixtures("new_york")
@pytest.mark.parametrize("unit", ["timestamp-millis", "timestamp-micros"])
def test_datetime_without_time_zone_is_local_time_of_the_process(unit: str) -> None:
    """Also in the hour that occurs twice when the clock is set back, where `fold` distinguishes the two."""
    schema = record({"type": "long", "logicalType": unit})
    for moment in (datetime.datetime(2026, 7, 1, 12), *(datetime.datetime(2026, 11, 1, 1, 30, fold=n) for n in (0, 1))):
        expected = datetime.datetime.fromtimestamp(moment.timestamp(), datetime.UTC)
        assert round_trip(schema, {"f": moment}) == {"f": expected}


@pytest.mark.parametrize("kind", [("int", "time-millis"), ("long", "time-micros")])
def test_negative_time_of_day_is_not_read_as_another_time(kind: tuple[str, str]) -> None:
    schema = compiled_schema(parse_schema(json.dumps({"type": kind[0], "logicalType": kind[1]})))
    for body in (b"\x01", b"\xff\x0f"):
        with pytest.raises(ValueError, match="no time of a day"):
            fastavro.schemaless_reader(io.BytesIO(body), schema, None)


@pytest.mark.parametrize("fixed", [{}, {"type": "fixed", "name": "F", "size": 2}])
def test_decimal_with_more_digits_than_its_precision_is_read_exactly(fixed: dict[str, Any]) -> None:
    schema = compiled_schema(parse_schema(json.dumps({**decimals(4), **fixed})))
    body = (b"" if fixed else b"\x04") + (12_345).to_bytes(2, "big")
    assert fastavro.schemaless_reader(io.BytesIO(body), schema, None) == Decimal("123.45")


def test_uuid_of_a_fixed_is_read_as_a_uuid() -> None:
    kind = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    for value in (UUID, UUID.bytes):
        assert round_trip(record(kind), {"f": value}) == {"f": UUID}
    with pytest.raises(ValueRefused, match="expected uuid or 16 bytes"):
        encoding(record(kind)).encode({"f": str(UUID)})


@pytest.mark.parametrize("kind", [UUIDS, ["null", UUIDS], {"type": "array", "items": UUIDS}])
def test_text_that_is_not_a_uuid_is_an_error(kind: Any) -> None:
    def given(text: Any) -> Any:
        return {"f": [text] if isinstance(kind, dict) and "items" in kind else text}

    for text in (str(UUID), str(UUID).upper(), UUID.hex, f"{{{UUID}}}", UUID):
        assert round_trip(record(kind), given(text)) == given(UUID)
    for text in ("", "nonsense", str(UUID)[:-1], f"{UUID}0"):
        with pytest.raises(ValueRefused, match=r"\buuid\b") as refused:
            encoding(record(kind)).encode(given(text))
        assert refused.value.field.startswith("f")


PRESERVED = [
    (["double", "long"], 2**53 + 1, 2**53 + 1),
    (["null", "float", "int", "long"], 2**31 - 1, 2**31 - 1),
    (["null", "float", "int", "long"], 2**31, 2**31),
    (["double", "int"], -(2**31) - 1, float(-(2**31) - 1)),
    (["double", "long"], 0.5, 0.5),
    (["double", "boolean", "long"], True, True),
    (["null", "double", "long"], Whole.LARGE, 2**53 + 1),
    (["double", "long"], Whole.SMALL, 5),
    (["float", "double", "long"], Share(0.1), 0.1),
    (["null", MILLIS, "double"], 10**17, 1e17),
    (["double", DATE], 5, datetime.date(1970, 1, 6)),
    ([DATE, "long"], 10**8, 10**8),
    ([DATE, "double"], 10**8, 1e8),
    ([DATE, "long"], 5, datetime.date(1970, 1, 6)),
    ([UUIDS, LETTERS], "A", "A"),
    ([LETTERS, UUIDS], str(UUID), UUID),
    ([DATE, "string"], "2026-01-01", "2026-01-01"),
    ([DATE, LETTERS], "A", "A"),
    ([{"type": "array", "items": "int"}, "bytes"], b"ab", b"ab"),
    ([decimals(4), {**decimals(9), "type": "fixed", "name": "F", "size": 8}], Decimal("12345.25"), Decimal("12345.25")),
    (
        [record(["double", "long"]) | {"name": "I"}, record("string") | {"name": "J"}],
        {"f": 2**53 + 1},
        {"f": 2**53 + 1},
    ),
    ([named("I", "float"), named("J", "double")], {"f": 1e39}, {"f": 1e39}),
    ([named("I", "float"), named("J", "long")], {"f": 2**53 + 1}, {"f": 2**53 + 1}),
    ([named("I", DATE), named("J", "long")], {"f": 10**8}, {"f": 10**8}),
    ([named("I", UUIDS), named("J", "string")], {"f": "x"}, {"f": "x"}),
    ([named("I", {"type": "array", "items": "int"}), named("J", "bytes")], {"f": b"ab"}, {"f": b"ab"}),
    ([{"type": "map", "values": "float"}, named("I", "double")], {"f": 1e39}, {"f": 1e39}),
    ([DATE, MILLIS], NOON, NOON),
    ([DATE, MILLIS], NOON.date(), NOON.date()),
    ([DATE, MICROS], NOON.replace(tzinfo=None), NOON.replace(tzinfo=None)),
    ([DATE, "long"], NOON.replace(hour=0), NOON.date()),
    ([TIME_MILLIS, TIME_MICROS], datetime.time(1, 2, 3, 4), datetime.time(1, 2, 3, 4)),
    ([TIME_MILLIS, TIME_MICROS], datetime.time(1, 2, 3, 4000), datetime.time(1, 2, 3, 4000)),
    ([{"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, "string"], UUID, UUID),
    (["bytes", {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}], UUID, UUID),
    (["double", "long"], ("double", 7), 7.0),
    ({"type": "array", "items": ["double", "long"]}, [1, 2**60 + 1, 0.5], [1, 2**60 + 1, 0.5]),
    (["null", {**record(["double", "long"]), "name": "I"}], ("I", {"f": 2**53 + 1}), {"f": 2**53 + 1}),
    ([{"type": "array", "items": ["double", "long"]}, "null"], ("array", [2**53 + 1]), [2**53 + 1]),
    ([{"type": "array", "items": ["double", "long"]}, "null"], (2**53 + 1, 2), [2**53 + 1, 2]),
    (["null", {"type": "map", "values": ["double", "long"]}], ("map", {"a": 2**53 + 1}), {"a": 2**53 + 1}),
    (["null", {**record([DATE, MILLIS]), "name": "I"}], ("I", {"f": NOON}), {"f": NOON}),
    ({"type": "map", "values": ["null", "double", "long"]}, {"a": 2**60 + 1, "b": None}, {"a": 2**60 + 1, "b": None}),
    (["null", {"type": "array", "items": ["double", "long"]}], [2**60 + 1], [2**60 + 1]),
    (["null", {"type": "array", "items": [DATE, MILLIS]}], [NOON], [NOON]),
    (["null", {"type": "map", "values": [DATE, "long"]}], {"a": 10**8}, {"a": 10**8}),
    (["null", {**record([DATE, MILLIS]), "name": "I"}], {"f": NOON}, {"f": NOON}),
    (["null", {**record(["double", "long"]), "name": "I"}], {"f": 2**60 + 1}, {"f": 2**60 + 1}),
]
"""A union, a value, and the value that is read back."""


def test_union_is_written_in_the_branch_that_preserves_the_value() -> None:
    wrong = []
    for kind, value, expected in PRESERVED:
        found = round_trip(record(kind), {"f": value})["f"]
        if found != expected or type(found) is not type(expected):
            wrong.append((kind, value, expected, found))
    assert wrong == []


def test_all_records_of_a_union_are_considered() -> None:
    numbers = {"name": "g", "type": {"type": "array", "items": "int"}}
    larger = {**named("J", "int"), "fields": [*record("int")["fields"], numbers]}
    assert round_trip([named("I", "int"), larger], {"f": 1, "g": [2]}) == {"f": 1, "g": [2]}
    with pytest.raises(ValueRefused, match=r"\bI, J\b"):
        encoding([named("I", "int"), larger]).encode({"f": 1, "g": b"ab"})


@pytest.mark.parametrize("kinds", [("int", "int"), ("int", "long"), ("double", "float")])
def test_dict_is_written_in_the_first_fitting_branch(kinds: tuple[str, str]) -> None:
    first, second = named("I", kinds[0]), named("J", kinds[1])
    for union in ([first, second], [first, {"type": "map", "values": kinds[1]}]):
        assert encoding(union).encode({"f": 1})[5] == 0
        assert encoding(union[::-1]).encode({"f": 1})[5] == 0


@pytest.mark.parametrize(
    "kind",
    [
        ["null", "double"],
        ["float", "double", "string"],
        ["int", "long", "string"],
        ["null", DATE, "bytes"],
        ["null", MILLIS],
        ["null", UUIDS],
        ["string", LETTERS],
        ["null", decimals(4)],
        ["null", TEXTS],
        ["bytes", {"type": "fixed", "name": "F", "size": 2}],
        [named("I", "double"), named("J", "double"), "null"],
        ["null", {"type": "map", "values": "double"}],
    ],
)
def test_branch_choice_is_not_required_where_fastavro_chooses_correctly(kind: Any) -> None:
    """Naming the branch takes about as long as encoding the value."""
    assert not compile_choice(parse_schema(json.dumps(record(kind)), source="test")).is_required


@pytest.mark.parametrize("kind", [["null", "string"], ["null", TEXTS], {"type": "array", "items": ["null", TEXTS]}])
def test_pair_with_a_value_of_another_branch_is_an_error(kind: Any) -> None:
    value: Any = ("null", "b")
    with pytest.raises(ValueRefused, match=r"\bnull\b.*'b'") as refused:
        encoding(record(kind)).encode({"f": [value] if isinstance(kind, dict) else value})
    assert refused.value.field.startswith("f")


@pytest.mark.parametrize("items", [("a", "b"), ("array", "b", "c"), ("a",), ()])
def test_tuple_without_branch_name_is_a_list(items: tuple[str, ...]) -> None:
    for kind in (TEXTS, ["null", TEXTS], [TEXTS, DATE]):
        assert round_trip(record(kind), {"f": items}) == {"f": list(items)}
        assert round_trip(kind, items) == list(items)
    assert round_trip(["null", TEXTS], ("array", [*items])) == list(items)
    within = record(["null", record(["null", TEXTS]) | {"name": "I"}])
    assert round_trip(within, {"f": {"f": items}}) == {"f": {"f": list(items)}}
    with pytest.raises(ValueRefused) as refused:
        encoding(record(["null", "string"])).encode({"f": items})
    assert refused.value.field == "f"


def test_value_that_fastavro_rejects_is_written_if_it_fits() -> None:
    fixed = {"type": "fixed", "name": "F", "size": 2}
    assert round_trip(record(["null", fixed]), {"f": bytearray(b"ab")}) == {"f": b"ab"}
    counts = {"type": "map", "values": "int"}
    assert round_trip(record([record("int") | {"name": "I"}, counts]), {"f": {"f": 1, "g": 2}}) == {
        "f": {"f": 1, "g": 2}
    }


def test_branches_are_chosen_in_recursive_records() -> None:
    fields = [{"name": "n", "type": ["null", "N"]}, {"name": "f", "type": ["double", "long"]}]
    value = {"f": 2**60 + 1, "n": {"f": 2**61 + 1, "n": None}}
    assert round_trip({"type": "record", "name": "N", "fields": fields}, value) == value
    for invalid in ({"f": 1}, {"f": "x", "n": None}, [], None, {"f": 1, "n": [1]}):
        with pytest.raises(ValueRefused):
            encoding({"type": "record", "name": "N", "fields": fields}).encode(invalid)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("string", False),
        (record(record("int") | {"name": "I"}), False),
        (record([{"type": "array", "items": LIST}, {"type": "map", "values": "N"}]), True),
        (LIST, True),
        ({"type": "map", "values": ["null", LIST]}, True),
    ],
)
def test_is_recursive_finds_recursive_types(schema: Any, expected: bool) -> None:
    assert is_recursive(parse_schema(json.dumps(schema), source="test")) is expected


def nested(times: int) -> Any:
    value: Any = {"n": None}
    for _ in range(times):
        value = {"n": value}
    return value


def test_too_deeply_nested_value_is_an_error() -> None:
    assert round_trip(LIST, nested(90)) == nested(90)
    encode = encoding(LIST).encode
    for times in (97, 400, 900, 2_000, 100_000):
        with pytest.raises(ValueRefused):
            encode(nested(times))
    itself: dict[str, Any] = {}
    itself["n"] = itself
    with pytest.raises(ValueRefused):
        encode(itself)


def test_concurrent_threads_encode_recursive_values() -> None:
    encode, expected = encoding(LIST).encode, encoding(LIST).encode(nested(50))
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.extend(encode(nested(50)) for _ in range(50))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 200


def test_types_used_twice_per_level_compile_fast() -> None:
    text: Any = "string"
    for level in range(10):
        fields = [{"name": "a", "type": text}, {"name": "b", "type": f"R{level - 1}" if level else "string"}]
        text = {"type": "record", "name": f"R{level}", "fields": fields}
    encoding(text)


@pytest.mark.parametrize("raised", [TimeoutError, KeyboardInterrupt])
def test_exception_of_a_signal_handler_is_not_a_value_error(
    raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_error(*args: Any, **options: Any) -> None:
        raise raised

    monkeypatch.setattr(fastavro, "schemaless_writer", raise_error)
    with pytest.raises(raised):
        encoding(record(["null", "string", "bytes"])).encode({"f": "x"})
