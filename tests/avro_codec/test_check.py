"""Validation of bodies by the walk in Python and by the core."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.avro_codec import BadBody, Check, check, compile_check
from headrace.avro_codec.encode import encode_long
from headrace.avro_codec.walk import DEPTH_MAX
from headrace.avro_schema import Schema, parse_schema
from support.loader.compiled_core import core_if_any, required_core
from support.loader.projection_oracle import encode, refusal
from support.schemas.body_edges import EDGES
from support.schemas.strategies import data_for, schemas

NODE = '{"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}'


def compile_both(schema: Schema) -> list[Check]:
    return [compile_check(schema, None), compile_check(schema, core_if_any())]


def parsed(kind: Any) -> Schema:
    return parse_schema(json.dumps(kind))


@pytest.mark.parametrize("edge", EDGES)
def test_body_just_beyond_a_limit_is_rejected(edge: str) -> None:
    kind, within, beyond = EDGES[edge]
    places = [
        (kind, b"", b""),
        ({"type": "array", "items": {"type": "map", "values": kind}}, b"\x02\x02\x02k", b"\0\0"),
    ]
    if edge != "union":  # a union cannot be a branch of a union
        places.append((["null", kind], b"\x02", b""))
    for place, before, after in places:
        schema = parsed(place)
        for check_body in compile_both(schema):
            check_body(before + within + after)
            for wrong in (beyond, within + b"\x00", within[:-1]):
                with pytest.raises(BadBody):
                    check_body(before + wrong + after)


def test_errors_come_from_the_walk() -> None:
    for check_body in compile_both(parsed("long")):
        with pytest.raises(BadBody, match=r"\b2 bytes\b"):
            check_body(b"\x02ab")
        with pytest.raises(BadBody):
            check_body(b"\xff")
    for check_body in compile_both(parsed(["null", "long"])):
        with pytest.raises(BadBody, match=r"-1\b.*\b2\b"):
            check_body(b"\x01\x02")


@given(st.data())
def test_core_and_walk_agree_on_every_body(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    value = data.draw(data_for(schema))
    body = bytearray(encode(schema, value))
    reference, twin = compile_both(schema)
    assert refusal(reference, bytes(body)) == refusal(twin, bytes(body)) == ""
    for _ in range(3):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        assert refusal(reference, bytes(body)) == refusal(twin, bytes(body))


def test_core_is_used_for_schemas_without_recursion() -> None:
    core = required_core()
    checked = []

    class RecordingCore:
        def is_value(self, *arguments: Any) -> int:
            checked.append(arguments[1])
            return core.is_value(*arguments)

    flat = parsed({"type": "record", "name": "R", "fields": [{"name": "f", "type": ["null", "string"]}]})
    compile_check(flat, RecordingCore())(b"\x02\x02x")  # type: ignore[arg-type]
    assert checked == [b"\x02\x02x"]
    compile_check(parse_schema(NODE), RecordingCore())(b"\x02\x00")  # type: ignore[arg-type]
    assert len(checked) == 1


def test_walk_may_accept_a_body_that_the_core_rejects() -> None:
    class RejectingCore:
        def is_value(self, *arguments: Any) -> int:
            return 0

    compile_check(parsed("long"), RejectingCore())(b"\x02")  # type: ignore[arg-type]


@pytest.fixture
def many_frames() -> Iterator[None]:
    """Raises Python's recursion limit, as some applications do, so that it does not stop the walk."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("many_frames")
def test_nesting_of_recursive_types_is_limited() -> None:
    for check_body in compile_both(parse_schema(NODE)):
        check_body(b"\x02" * DEPTH_MAX + b"\0")
        for levels in (DEPTH_MAX + 1, 100_000):
            with pytest.raises(BadBody, match=r"\b96\b"):
                check_body(b"\x02" * levels + b"\0")
        check_body(b"\x02\0")  # the counters were reset


@pytest.mark.usefixtures("many_frames")
def test_deep_recursive_type_may_be_nested_less_often() -> None:
    kind: Any = ["null", "Node"]
    for _ in range(97):
        kind = {"type": "array", "items": kind}
    schema = parsed({"type": "record", "name": "Node", "fields": [{"name": "f", "type": kind}]})
    assert check.deepest_nesting(schema) == 100
    level = b"\x02" * 98  # one item per array, and the branch
    for check_body in compile_both(schema):
        check_body(level * 9 + b"\x02" * 97 + b"\0" * (1 + 97 * 10))
        with pytest.raises(BadBody, match=r"\b9\b"):
            check_body(level * 10 + b"\x02" * 97 + b"\0" * (1 + 97 * 11))


def chain(length: int) -> Schema:
    """Returns a schema of records, each a field of the next: values are nested deeply, but the schema text is not."""
    records: list[dict[str, Any]] = [{"type": "record", "name": "R0", "fields": []}]
    for number in range(1, length):
        inside = {"name": "x", "type": ["null", f"R{number - 1}"]}
        records.append({"type": "record", "name": f"R{number}", "fields": [inside]})
    fields = [{"name": f"f{number}", "type": ["null", record]} for number, record in enumerate(records)]
    return parsed({"type": "record", "name": "Chain", "fields": fields})


@pytest.mark.usefixtures("many_frames")
def test_too_deep_schema_without_recursion_is_rejected() -> None:
    assert check.deepest_nesting(chain(499)) == 999
    for check_body in compile_both(chain(499)):
        check_body(b"\0" * 498 + b"\x02" * 499)
    with pytest.raises(BadBody, match=r"\b1001\b.*\b1000\b"):
        compile_check(chain(500), None)


def test_schema_that_expands_too_much_has_no_program() -> None:
    fields: list[dict[str, Any]] = [{"name": "f0", "type": {"type": "fixed", "name": "R0", "size": 1}}]
    for number in range(1, 40):
        pair = [{"name": name, "type": f"R{number - 1}"} for name in "ab"]
        fields.append({"name": f"f{number}", "type": {"type": "record", "name": f"R{number}", "fields": pair}})
    schema = parsed({"type": "record", "name": "Top", "fields": fields})
    assert check.walk_program(schema) is None
    with pytest.raises(BadBody):
        compile_check(parsed({"type": "record", "name": "Top", "fields": fields[:12]}), core_if_any())(b"x")


def test_zero_width_items_are_counted_per_body() -> None:
    for check_body in compile_both(parsed({"type": "array", "items": "null"})):
        for _ in range(3):
            check_body(encode_long(65_536) + b"\0")
