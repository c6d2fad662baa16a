"""Values that a schema's types would let pass, and that nobody could read again, or as another value."""

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
from headrace.clients.branches import compile_choice
from headrace.clients.datum import is_recursive
from headrace.clients.encoding import Encoding, compiled_schema
from headrace.clients.errors import ValueRefused

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
UUID = uuid.UUID("2d0fa971-ee54-4bda-af5a-6358e7382daa")
DATE = {"type": "int", "logicalType": "date"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "local-timestamp-micros"}
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


def read_again(schema: Any, value: Any) -> Any:
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
def test_numbers_that_are_no_time_are_refused(kind: Any, least: int, most: int, is_optional: bool) -> None:
    schema = record(["null", kind] if is_optional else kind)
    for number in (least, most):
        read_again(schema, {"f": number})
    for number in (least - 1, most + 1):
        with pytest.raises(ValueRefused, match=rf"{number}\b") as refused:
            encoding(schema).encode({"f": number})
        assert refused.value.field == "f"


EAST, WEST = datetime.timezone(datetime.timedelta(hours=2)), datetime.timezone(datetime.timedelta(hours=-5))
FIRST, LAST = datetime.datetime.min, datetime.datetime.max


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Datetimes without a zone are of the system's."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


IN_UNIONS = {
    "plain": lambda kind: kind,
    "optional": lambda kind: ["null", kind],
    "beside a text": lambda kind: ["null", kind, "string"],
    "beside a date": lambda kind: [DATE, kind],
    "in an optional record": lambda kind: ["null", {**record(kind), "name": "I"}],
    "in an optional list": lambda kind: ["null", {"type": "array", "items": kind}],
}


@pytest.mark.usefixtures("new_york")
@pytest.mark.parametrize("place", IN_UNIONS)
@pytest.mark.parametrize("unit", ["timestamp-millis", "timestamp-micros"])
def test_datetimes_outside_of_the_years_of_utc_are_refused(unit: str, place: str) -> None:
    schema = record(IN_UNIONS[place]({"type": "long", "logicalType": unit}))

    def given(moment: datetime.datetime) -> Any:
        return {"f": {"f": moment} if "record" in place else [moment] if "list" in place else moment}

    for moment in (LAST, LAST.replace(tzinfo=WEST), FIRST.replace(tzinfo=EAST)):
        with pytest.raises(ValueRefused) as refused:
            encoding(schema).encode(given(moment))
        assert re.search(r"\b1 .*\b9999\b", str(refused.value)) or place.startswith("beside")
        assert refused.value.field.startswith("f")
    for moment in (LAST.replace(tzinfo=EAST), FIRST.replace(tzinfo=WEST)):
        instant = moment.replace(microsecond=moment.microsecond // 1000 * 1000) if "millis" in unit else moment
        assert read_again(schema, given(moment)) == given(instant)


def test_datetimes_without_a_zone_have_all_years() -> None:
    for unit in ("local-timestamp-millis", "local-timestamp-micros"):
        for moment in (FIRST, LAST, FIRST.replace(tzinfo=EAST), LAST.replace(tzinfo=WEST)):
            found = read_again(record({"type": "long", "logicalType": unit}), {"f": moment})["f"]
            assert found.year == moment.year
    for day in (datetime.date.min, datetime.date.max):
        assert read_again(record(DATE), {"f": day}) == {"f": day}


def test_a_datetime_is_no_date_where_it_would_be_a_time() -> None:
    kind = [DATE, {"type": "long", "logicalType": "timestamp-nanos"}]
    with pytest.raises(ValueRefused, match="timestamp-nanos") as refused:
        encoding(record(kind)).encode({"f": NOON})
    assert refused.value.field == "f"


@pytest.mark.parametrize("kind", [["null", MILLIS, "string"], ["null", "string", {"type": "array", "items": MILLIS}]])
def test_numbers_that_are_no_time_are_refused_within_a_union(kind: Any) -> None:
    number: Any = [10**17] if isinstance(kind[2], dict) else 10**17
    with pytest.raises(ValueRefused) as refused:
        encoding(record(kind)).encode({"f": number})
    assert refused.value.field == "f"


@pytest.mark.parametrize("kind", [UUIDS, ["null", UUIDS], {"type": "array", "items": UUIDS}])
def test_texts_that_are_no_uuid_are_refused(kind: Any) -> None:
    def given(text: Any) -> Any:
        return {"f": [text] if isinstance(kind, dict) and "items" in kind else text}

    for text in (str(UUID), str(UUID).upper(), UUID.hex, f"{{{UUID}}}", UUID):
        assert read_again(record(kind), given(text)) == given(UUID)
    for text in ("", "nonsense", str(UUID)[:-1], f"{UUID}0"):
        with pytest.raises(ValueRefused, match=r"\buuid\b") as refused:
            encoding(record(kind)).encode(given(text))
        assert refused.value.field.startswith("f")


SURVIVING = [
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
    ([DATE, "long"], NOON, NOON.date()),
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
"""A union, a value and what is read again."""


def test_union_is_written_in_the_branch_that_preserves_the_value() -> None:
    wrong = []
    for kind, value, expected in SURVIVING:
        found = read_again(record(kind), {"f": value})["f"]
        if found != expected or type(found) is not type(expected):
            wrong.append((kind, value, expected, found))
    assert wrong == []


def test_each_of_several_records_is_looked_at() -> None:
    numbers = {"name": "g", "type": {"type": "array", "items": "int"}}
    larger = {**named("J", "int"), "fields": [*record("int")["fields"], numbers]}
    assert read_again([named("I", "int"), larger], {"f": 1, "g": [2]}) == {"f": 1, "g": [2]}
    with pytest.raises(ValueRefused, match=r"\bI, J\b"):
        encoding([named("I", "int"), larger]).encode({"f": 1, "g": b"ab"})


@pytest.mark.parametrize("kinds", [("int", "int"), ("int", "long"), ("double", "float")])
def test_a_dict_goes_to_the_first_branch_that_can_hold_it(kinds: tuple[str, str]) -> None:
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
def test_no_branch_is_said_where_fastavro_finds_it(kind: Any) -> None:
    """It takes about as long as encoding the value."""
    assert not compile_choice(parse_schema(json.dumps(record(kind)), source="test")).is_always


@pytest.mark.parametrize("kind", [["null", "string"], ["null", TEXTS], {"type": "array", "items": ["null", TEXTS]}])
def test_a_pair_whose_value_is_not_of_its_branch_is_refused(kind: Any) -> None:
    value: Any = ("null", "b")
    with pytest.raises(ValueRefused, match=r"\bnull\b.*'b'") as refused:
        encoding(record(kind)).encode({"f": [value] if isinstance(kind, dict) else value})
    assert refused.value.field.startswith("f")


@pytest.mark.parametrize("items", [("a", "b"), ("array", "b", "c"), ("a",), ()])
def test_a_tuple_that_names_no_branch_is_a_list(items: tuple[str, ...]) -> None:
    for kind in (TEXTS, ["null", TEXTS], [TEXTS, DATE]):
        assert read_again(record(kind), {"f": items}) == {"f": list(items)}
        assert read_again(kind, items) == list(items)
    assert read_again(["null", TEXTS], ("array", [*items])) == list(items)
    within = record(["null", record(["null", TEXTS]) | {"name": "I"}])
    assert read_again(within, {"f": {"f": items}}) == {"f": {"f": list(items)}}
    with pytest.raises(ValueRefused) as refused:
        encoding(record(["null", "string"])).encode({"f": items})
    assert refused.value.field == "f"


def test_what_fits_a_branch_that_fastavro_would_not_take_is_taken() -> None:
    fixed = {"type": "fixed", "name": "F", "size": 2}
    assert read_again(record(["null", fixed]), {"f": bytearray(b"ab")}) == {"f": b"ab"}
    counts = {"type": "map", "values": "int"}
    assert read_again(record([record("int") | {"name": "I"}, counts]), {"f": {"f": 1, "g": 2}}) == {
        "f": {"f": 1, "g": 2}
    }


def test_a_union_within_a_recursive_record_has_it_too() -> None:
    fields = [{"name": "n", "type": ["null", "N"]}, {"name": "f", "type": ["double", "long"]}]
    value = {"f": 2**60 + 1, "n": {"f": 2**61 + 1, "n": None}}
    assert read_again({"type": "record", "name": "N", "fields": fields}, value) == value
    for misfit in ({"f": 1}, {"f": "x", "n": None}, [], None, {"f": 1, "n": [1]}):
        with pytest.raises(ValueRefused):
            encoding({"type": "record", "name": "N", "fields": fields}).encode(misfit)


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
def test_types_inside_themselves_are_found(schema: Any, expected: bool) -> None:
    assert is_recursive(parse_schema(json.dumps(schema), source="test")) is expected


def nested(times: int) -> Any:
    value: Any = {"n": None}
    for _ in range(times):
        value = {"n": value}
    return value


def test_values_inside_each_other_too_often_are_refused_and_end_nothing() -> None:
    assert read_again(LIST, nested(90)) == nested(90)
    encode = encoding(LIST).encode
    for times in (97, 400, 900, 2_000, 100_000):
        with pytest.raises(ValueRefused):
            encode(nested(times))
    itself: dict[str, Any] = {}
    itself["n"] = itself
    with pytest.raises(ValueRefused):
        encode(itself)


def test_threads_may_encode_values_of_recursive_types() -> None:
    encode, expected = encoding(LIST).encode, encoding(LIST).encode(nested(50))
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.extend(encode(nested(50)) for _ in range(50))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 200


def test_types_used_twice_at_each_level_take_no_time() -> None:
    text: Any = "string"
    for level in range(10):
        fields = [{"name": "a", "type": text}, {"name": "b", "type": f"R{level - 1}" if level else "string"}]
        text = {"type": "record", "name": f"R{level}", "fields": fields}
    encoding(text)


@pytest.mark.parametrize("raised", [TimeoutError, KeyboardInterrupt])
def test_what_a_signal_handler_raises_is_no_misfit(
    raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **options: Any) -> None:
        raise raised

    monkeypatch.setattr(fastavro, "schemaless_writer", interrupted)
    with pytest.raises(raised):
        encoding(record(["null", "string", "bytes"])).encode({"f": "x"})
