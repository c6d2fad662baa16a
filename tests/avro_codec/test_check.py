"""What is decoded must be one value first: by the walk, and by the core's word that it is."""

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


def both(schema: Schema) -> list[Check]:
    return [compile_check(schema, None), compile_check(schema, core_if_any())]


def parsed(kind: Any) -> Schema:
    return parse_schema(json.dumps(kind))


@pytest.mark.parametrize("edge", EDGES)
def test_what_lies_just_beyond_an_edge_is_refused(edge: str) -> None:
    kind, within, beyond = EDGES[edge]
    route_places = [
        (kind, b"", b""),
        ({"type": "array", "items": {"type": "map", "values": kind}}, b"\x02\x02\x02k", b"\0\0"),
    ]
    if edge != "union":  # which is no branch of another
        route_places.append((["null", kind], b"\x02", b""))
    for place, before, after in route_places:
        schema = parsed(place)
        for its_check in both(schema):
            its_check(before + within + after)
            for wrong in (beyond, within + b"\x00", within[:-1]):
                with pytest.raises(BadBody):
                    its_check(before + wrong + after)


def test_reasons_are_those_of_the_walk() -> None:
    for its_check in both(parsed("long")):
        with pytest.raises(BadBody, match=r"\b2 bytes\b"):
            its_check(b"\x02ab")
        with pytest.raises(BadBody):
            its_check(b"\xff")
    for its_check in both(parsed(["null", "long"])):
        with pytest.raises(BadBody, match=r"-1\b.*\b2\b"):
            its_check(b"\x01\x02")


@given(st.data())
def test_both_say_the_same_of_any_body(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    value = data.draw(data_for(schema))
    body = bytearray(encode(schema, value))
    reference, twin = both(schema)
    assert refusal(reference, bytes(body)) == refusal(twin, bytes(body)) == ""
    for _ in range(3):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        assert refusal(reference, bytes(body)) == refusal(twin, bytes(body))


def test_the_core_walks_what_does_not_recur() -> None:
    core = required_core()
    asked = []

    class Asked:
        def is_value(self, *arguments: Any) -> int:
            asked.append(arguments[1])
            return core.is_value(*arguments)

    flat = parsed({"type": "record", "name": "R", "fields": [{"name": "f", "type": ["null", "string"]}]})
    compile_check(flat, Asked())(b"\x02\x02x")  # type: ignore[arg-type]
    assert asked == [b"\x02\x02x"]
    compile_check(parse_schema(NODE), Asked())(b"\x02\x00")  # type: ignore[arg-type]
    assert len(asked) == 1


def test_what_the_core_refuses_the_walk_may_take() -> None:
    class Refusing:
        def is_value(self, *arguments: Any) -> int:
            return 0

    compile_check(parsed("long"), Refusing())(b"\x02")  # type: ignore[arg-type]


@pytest.fixture
def many_frames() -> Iterator[None]:
    """As some applications have it, which leaves the walk without the bound that Python gives."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("many_frames")
def test_recursion_has_an_end() -> None:
    for its_check in both(parse_schema(NODE)):
        its_check(b"\x02" * DEPTH_MAX + b"\0")
        for levels in (DEPTH_MAX + 1, 100_000):
            with pytest.raises(BadBody, match=r"\b96\b"):
                its_check(b"\x02" * levels + b"\0")
        its_check(b"\x02\0")  # nothing is left of those before


@pytest.mark.usefixtures("many_frames")
def test_a_type_that_is_deep_by_itself_may_recur_less() -> None:
    kind: Any = ["null", "Node"]
    for _ in range(97):
        kind = {"type": "array", "items": kind}
    schema = parsed({"type": "record", "name": "Node", "fields": [{"name": "f", "type": kind}]})
    assert check.deepest_nesting(schema) == 100
    level = b"\x02" * 98  # of one item each, and the branch
    for its_check in both(schema):
        its_check(level * 9 + b"\x02" * 97 + b"\0" * (1 + 97 * 10))
        with pytest.raises(BadBody, match=r"\b9\b"):
            its_check(level * 10 + b"\x02" * 97 + b"\0" * (1 + 97 * 11))


def chain(length: int) -> Schema:
    """Of records, each in the one behind it: values nest as often as there are records, and the text hardly does."""
    records: list[dict[str, Any]] = [{"type": "record", "name": "R0", "fields": []}]
    for number in range(1, length):
        inside = {"name": "x", "type": ["null", f"R{number - 1}"]}
        records.append({"type": "record", "name": f"R{number}", "fields": [inside]})
    fields = [{"name": f"f{number}", "type": ["null", record]} for number, record in enumerate(records)]
    return parsed({"type": "record", "name": "Chain", "fields": fields})


@pytest.mark.usefixtures("many_frames")
def test_a_schema_that_is_deep_without_recursion_is_refused() -> None:
    assert check.deepest_nesting(chain(499)) == 999
    for its_check in both(chain(499)):
        its_check(b"\0" * 498 + b"\x02" * 499)
    with pytest.raises(BadBody, match=r"\b1001\b.*\b1000\b"):
        compile_check(chain(500), None)


def test_few_lines_that_say_very_much_have_no_program() -> None:
    fields: list[dict[str, Any]] = [{"name": "f0", "type": {"type": "fixed", "name": "R0", "size": 1}}]
    for number in range(1, 40):
        twice = [{"name": name, "type": f"R{number - 1}"} for name in "ab"]
        fields.append({"name": f"f{number}", "type": {"type": "record", "name": f"R{number}", "fields": twice}})
    schema = parsed({"type": "record", "name": "Top", "fields": fields})
    assert check.walk_program(schema) is None
    with pytest.raises(BadBody):
        compile_check(parsed({"type": "record", "name": "Top", "fields": fields[:12]}), core_if_any())(b"x")


def test_items_of_no_bytes_are_counted_anew_for_each_body() -> None:
    for its_check in both(parsed({"type": "array", "items": "null"})):
        for _ in range(3):
            its_check(encode_long(65_536) + b"\0")
