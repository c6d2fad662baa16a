"""The parser without positions yields the same schemas, positions and errors as the one with positions."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.avro_schema import Enum, Field, Fixed, Position, Record, SchemaParseError, parse_schema, walk
from headrace.avro_schema import parse as parse_module
from headrace.avro_schema.json_reader import DEPTH_MAX, NUMBER_CHARS_MAX, read_json, to_plain
from headrace.avro_schema.quick_json import LazyPosition, read_without_positions
from support.schemas.strategies import schema_values


def parse_with_positions(text: str) -> Any:
    """As `parse_result`, with only the parser with positions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parse_module, "read_without_positions", lambda text, source: None)
        return parse_result(text)


def parse_result(text: str) -> Any:
    """Returns the schema with all its positions, or the error with its position."""
    try:
        schema = parse_schema(text, source="s")
    except SchemaParseError as error:
        return error.message, error.position, error.source
    return schema, schema.names, [position_tuple(node.position) for node in nodes(schema.root)]


def nodes(root: Any) -> Any:
    for node in walk(parse_module.Schema(root)):
        yield node
        if isinstance(node, Record):
            yield from node.fields


def position_tuple(position: Position) -> tuple[str, int, int]:
    return position.pointer, position.line, position.column


@given(schema_values(), st.sampled_from([None, 1]), st.data())
def test_both_parsers_agree_on_valid_and_broken_schemas(value: Any, indent: int | None, data: st.DataObject) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    assert parse_result(text) == parse_with_positions(text)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 6)))
    piece = data.draw(st.sampled_from(('"', "{", "}", "[", "]", ",", ":", "\\", "\n", " ", "1e999", "é", "null", "")))
    broken = text[:start] + piece + text[end:]
    assert parse_result(broken) == parse_with_positions(broken)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        '"int" x',
        '\ufeff"int"',
        '{"type": "int", "type": "long"}',
        '{"type": "int", "a": NaN}',
        '{"type": "int", "a": -Infinity}',
        '{"type": "int", "a": 1e999}',
        '{"type": "int", "a": %s}' % ("1" * (NUMBER_CHARS_MAX + 1)),
        '{"type": "int", "a": 0.%s}' % ("1" * NUMBER_CHARS_MAX),
        '{"type": "int", "a": "\\ud800"}',
        '{"type": "int", "a": "\ud800"}',
        '{"type": "int", "a": "\t"}',
        '{"type": "int", "a": %s}' % ("[" * DEPTH_MAX + "]" * DEPTH_MAX),
        '{"type": "int", "a": %s}' % ("[" * 100_000 + "]" * 100_000),
    ],
    ids=lambda text: ascii(text[:30]),
)
def test_invalid_json_is_left_to_parser_with_positions(text: str) -> None:
    assert read_without_positions(text, "") is None
    with pytest.raises(SchemaParseError) as error:
        parse_schema(text)
    assert error.value.position.line == 1


@pytest.mark.parametrize("depth", [DEPTH_MAX - 1, DEPTH_MAX])
def test_both_parsers_accept_deepest_nesting(depth: int) -> None:
    text = '{"type": "int", "a": %s}' % ("[" * (depth - 1) + "]" * (depth - 1))
    quick = read_without_positions(text, "")
    assert quick is not None
    assert to_plain(quick.root) == to_plain(read_json(text).root)


def test_many_shallow_values_are_not_too_deep() -> None:
    assert read_without_positions(json.dumps([[]] * 1000), "") is not None


def test_position_is_computed_on_access() -> None:
    text = '{"type": "record", "name": "é",\n  "fields": []}'.replace("é", "R")
    schema = parse_schema('{"type": "record", "name": "R", "doc": "é",\n "fields": [\n  {"name": "a", "type": "int"}]}')
    assert isinstance(schema.root, Record)
    (field,) = schema.root.fields
    assert isinstance(field.position, LazyPosition)
    assert field.position == Position("/fields/0", 3, 3)
    assert field.type.position == Position("/fields/0/type", 3, 25)
    assert hash(field.position) == hash(Position("/fields/0", 3, 3))
    assert parse_schema(text).root.position != field.position


def test_positions_can_be_sent_and_copied() -> None:
    position = parse_schema('\n["null",\n "int"]').root.branches[1].position  # type: ignore[union-attr]
    assert pickle.loads(pickle.dumps(position)) == Position("/1", 3, 2)
    assert copy.deepcopy(position) == position
    assert repr(pickle.loads(pickle.dumps(position))) == "Position(pointer='/1', line=3, column=2)"


def test_named_types_have_positions() -> None:
    text = (
        '[{"type": "enum", "name": "E", "symbols": ["A"]},\n {"type": "fixed", "name": "F", "size": 2},\n'
        ' {"type": "map", "values": {"type": "array", "items": "E"}}, {"type": "F"}]'
    )
    refused = parse_with_positions(text)
    assert parse_result(text) == refused
    allowed = text.replace(', {"type": "F"}', "")
    schema, _, places = parse_result(allowed)
    assert [type(node) for node in schema.root.branches[:2]] == [Enum, Fixed]
    assert parse_result(allowed) == parse_with_positions(allowed)
    assert ("/2/values/items", 3, 55) in places
    assert Field not in map(type, schema.root.branches)
