"""Parsing: accepted schemas, error positions and round trips."""

import json
import re

import pytest
from hypothesis import given

from headrace.avro_schema import (
    NO_DEFAULT,
    AvroSchemaError,
    Enum,
    Fixed,
    LogicalType,
    Name,
    Primitive,
    PrimitiveType,
    Record,
    Reference,
    SchemaParseError,
    Union,
    canonical_text,
    parse_schema,
    parsing_canonical_form,
    schema_to_json,
    self_contained_text,
    walk,
)
from support.golden import case_lines, golden
from support.schemas.strategies import schema_values


def error_of(text: str, **options) -> SchemaParseError:
    with pytest.raises(SchemaParseError) as caught:
        parse_schema(text, **options)
    return caught.value


def record(*fields: dict, **more) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields), **more})


def test_nodes_have_positions():
    text = (
        '{\n  "type": "record", "name": "R",\n  "fields": [\n    {"name": "a", "type": ["null",\n      "int"]}\n  ]\n}'
    )
    root = parse_schema(text).root
    assert isinstance(root, Record)
    field = root.fields[0]
    assert (field.position.line, field.position.column, field.position.pointer) == (4, 5, "/fields/0")
    assert isinstance(field.type, Union)
    branch = field.type.branches[1]
    assert (branch.position.line, branch.position.column, branch.position.pointer) == (5, 7, "/fields/0/type/1")


def test_equality_ignores_layout():
    assert parse_schema('{"type": "map",\n "values": "int"}') == parse_schema('{"values":"int","type":"map"}')


def test_error_text_begins_with_source_line_and_column():
    text = '{"type": "record", "name": "R", "fields": [\n  {"name": "a", "type": "strin"}]}'
    error = error_of(text, source="r.avsc")
    assert str(error).startswith("r.avsc:2:25: ")
    assert "strin" in error.message
    assert (error.position.pointer, error.source) == ("/fields/0/type", "r.avsc")
    assert isinstance(error, AvroSchemaError)
    assert str(error_of(text)).startswith("2:25: ")


NOT_JSON = [
    ("", 1, 1),
    ('{"type": "int"', 1, 15),
    ('{"type": "int",}', 1, 16),
    ('["int", ]', 1, 9),
    ('{"type" "int"}', 1, 9),
    ("{type: 1}", 1, 2),
    ('"int" x', 1, 7),
    ('{"type": "int", "type": "int"}', 1, 17),
    ('{"type": "int", "x": NaN}', 1, 22),
    ('{"type": "int", "x": 01}', 1, 22),
    ('{"type": "int", "x": 1e999}', 1, 22),
    ('{"type": "int", "x": "\\q"}', 1, 23),
    ('{"type": "int", "x": "a\nb"}', 1, 24),
    ('{"type": "int", "x": "a', 1, 22),
    ('{"type": "int", "x": "\\ud800"}', 1, 22),
    ('"\ud800"', 1, 2),
    ("\ufeff42", 1, 1),
    ("[" * 201, 1, 201),
    ('{"type": "int", "x": ' + "9" * 401 + "}", 1, 22),
]
"""A text, and line and column of its error."""

NOT_A_SCHEMA = [
    ("5", ""),
    ("{}", ""),
    ('{"type": {"type": "int"}}', ""),
    ('"record"', ""),
    ('{"type": "array"}', ""),
    ('{"type": "map", "values": 1}', "/values"),
    ('{"type": "record", "name": "a-b", "fields": []}', "/name"),
    ('{"type": "record", "name": "é", "fields": []}', "/name"),
    ('{"type": "record", "name": "a..B", "fields": []}', "/name"),
    ('{"type": "record", "name": "int", "fields": []}', "/name"),
    ('{"type": "record", "name": "R", "aliases": ["n..m", "x-"], "fields": []}', "/aliases/1"),
    ('{"type": "record", "name": "R"}', ""),
    (record({"type": "int"}), "/fields/0"),
    (record({"name": "a"}), "/fields/0"),
    (record({"name": "1", "type": "int"}), "/fields/0/name"),
    (record({"name": "a", "type": "int"}, {"name": "a", "type": "int"}), "/fields/1/name"),
    (record({"name": "a", "type": "int", "order": "up"}), "/fields/0/order"),
    (record({"name": "a", "type": "int", "default": "x"}), "/fields/0/default"),
    (record({"name": "a", "type": "int", "default": 2**31}), "/fields/0/default"),
    (record({"name": "a", "type": ["null", "int"], "default": "null"}), "/fields/0/default"),
    (record({"name": "a", "type": "R", "default": {}}), "/fields/0/default"),
    (record({"name": "a", "type": ["R", "null"], "default": {}}), "/fields/0/default"),
    ('{"type": "enum", "name": "E"}', ""),
    ('{"type": "enum", "name": "E", "symbols": ["A", "A"]}', "/symbols/1"),
    ('{"type": "enum", "name": "E", "symbols": ["a b"]}', "/symbols/0"),
    ('{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}', "/default"),
    ('{"type": "fixed", "name": "F", "size": -1}', ""),
    ('["int", ["null"]]', "/1"),
    ('["int", {"type": "int"}]', "/1"),
]
"""A JSON text, and the JSON pointer of its error."""


def test_error_in_json_has_line_and_column():
    errors = [(text, error_of(text).position) for text, _, _ in NOT_JSON]
    assert [(text, position.line, position.column) for text, position in errors] == NOT_JSON


def test_error_in_a_schema_has_the_pointer_of_the_invalid_node():
    assert [(text, error_of(text).position.pointer) for text, _ in NOT_A_SCHEMA] == NOT_A_SCHEMA


def test_error_messages_match_golden_file():
    texts = [text for text, *_ in (*NOT_JSON, *NOT_A_SCHEMA)]
    lines = case_lines((ascii(text[:200]), error_of(text)) for text in texts)
    assert lines == golden("avro_schema/parse_errors.txt", lines)


def test_error_suggests_the_name_in_another_case():
    text = record({"name": "a", "type": {"type": "fixed", "name": "Hash", "size": 1}}, {"name": "b", "type": "hash"})
    assert "Hash" in error_of(text).message


def test_lenient_parsing_accepts_bad_defaults_and_namespaces_but_not_names():
    text = record({"name": "a", "type": "int", "default": "x"}, namespace="a-b")
    error_of(text)
    assert parse_schema(text, strict=False).root.fields[0].default == "x"
    error_of(record(name="a-b"), strict=False)


def test_mutually_dependent_defaults_are_validated_quickly():
    kinds = [f"T{n}" for n in range(40)]
    records = [
        {"type": "record", "name": kind, "fields": [{"name": "a", "type": kinds, "default": {}}]} for kind in kinds
    ]
    assert error_of(json.dumps(records)).position.pointer.endswith("/default")


def test_forward_references_respect_nesting_limit():
    for count in (100, 5_000):
        records = [
            {"type": "record", "name": f"T{n}", "fields": [{"name": "a", "type": f"T{(n + 1) % count}"}]}
            for n in range(count)
        ]
        error_of(json.dumps(records))


def test_names_are_full_and_namespaces_are_inherited():
    text = record(
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A"], "aliases": ["Old", "x.Other"]}},
        {"name": "f", "type": {"type": "fixed", "name": "p.F", "size": 2}},
        {"name": "g", "type": "E"},
        {"name": "h", "type": {"type": "fixed", "name": "N", "namespace": "", "size": 1}},
        {"name": "i", "type": "N"},
        namespace="n.m",
    )
    schema = parse_schema(text)
    fields = schema.root.fields
    assert fields[0].type.name == Name("E", "n.m")
    assert fields[0].type.aliases == (Name("Old", "n.m"), Name("Other", "x"))
    assert fields[1].type.name.full == "p.F"
    assert fields[2].type == Reference(Name("E", "n.m"))
    assert fields[4].type == Reference(Name("N"))
    assert {name.full for name in schema.names} == {"n.m.R", "n.m.E", "p.F", "N"}


def test_a_type_may_be_used_before_its_definition():
    text = record({"name": "a", "type": "F"}, {"name": "b", "type": {"type": "fixed", "name": "F", "size": 1}})
    assert json.loads(canonical_text(parse_schema(text)))["fields"] == [
        {"name": "a", "type": {"type": "fixed", "name": "F", "size": 1}},
        {"name": "b", "type": "F"},
    ]


def test_equal_definitions_are_one_type_and_different_ones_an_error():
    fixed = {"type": "fixed", "name": "F", "size": 1}
    schema = parse_schema(record({"name": "a", "type": fixed}, {"name": "b", "type": fixed}))
    assert schema.root.fields[1].type == Reference(Name("F"))
    text = record({"name": "a", "type": fixed}, {"name": "b", "type": {**fixed, "size": 2}})
    assert error_of(text).position.pointer == "/fields/1/type/name"


def test_canonical_text_keeps_referenced_types_by_name():
    sub = parse_schema('{"type": "record", "name": "Sub", "namespace": "o", "fields": []}')
    text = '{"type":"record","name":"My","namespace":"ns","fields":[{"name":"f","type":"o.Sub"}]}'
    assert "o.Sub" in error_of(text).message
    schema = parse_schema(text, references=[sub])
    assert schema.resolve(schema.root.fields[0].type) == sub.root
    assert canonical_text(schema) == text
    assert json.loads(self_contained_text(schema))["fields"][0]["type"]["name"] == "Sub"
    assert parse_schema(self_contained_text(schema)).names.keys() == schema.names.keys()


def test_two_references_must_agree_on_a_type():
    one, two = (parse_schema(f'{{"type":"fixed","name":"F","size":{n}}}') for n in (1, 2))
    parse_schema('"F"', references=[one, one])
    assert re.search(r"\bF\b", error_of('"F"', references=[one, two]).message)


def test_null_default_differs_from_no_default():
    fields = parse_schema(
        record({"name": "a", "type": "null", "default": None}, {"name": "b", "type": "null"})
    ).root.fields
    assert fields[0].default is None
    assert fields[0].has_default
    assert fields[1].default is NO_DEFAULT


def test_string_default_of_double_is_a_number():
    fields = parse_schema(record({"name": "a", "type": "double", "default": "1.50"})).root.fields
    assert fields[0].default == 1.5


@pytest.mark.parametrize(
    ("value", "logical"),
    [
        ({"type": "int", "logicalType": "date"}, LogicalType("date")),
        ({"type": "long", "logicalType": "date"}, None),
        ({"type": "long", "logicalType": "timestamp-nanos"}, LogicalType("timestamp-nanos")),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, LogicalType("decimal", 4, 0)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 8}, None),
        ({"type": "bytes", "logicalType": "decimal"}, None),
        (
            {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 4},
            LogicalType("decimal", 4, 0),
        ),
        ({"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 5}, None),
        ({"type": "fixed", "name": "F", "size": 12, "logicalType": "duration"}, LogicalType("duration")),
        ({"type": "fixed", "name": "F", "size": 11, "logicalType": "duration"}, None),
        ({"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"}, LogicalType("uuid")),
        ({"type": "string", "logicalType": "made-up"}, None),
    ],
)
def test_logical_type_needs_valid_underlying_type(value, logical):
    root = parse_schema(json.dumps(value)).root
    assert isinstance(root, Primitive | Fixed)
    assert root.logical == logical
    assert dict(root.props)["logicalType"] == value["logicalType"]


def test_strict_accepts_what_avro_java_accepts():
    assert isinstance(parse_schema('{"type": "enum", "name": "E", "symbols": []}').root, Enum)
    assert isinstance(parse_schema('{"type": "fixed", "name": "F", "size": 0}').root, Fixed)
    assert parse_schema("[]").root == Union(())
    parse_schema(record({"name": "a", "type": ["null", "int"], "default": 5}))


def test_walk_yields_each_node_once_outer_before_inner():
    schema = parse_schema('["null", {"type": "array", "items": {"type": "map", "values": "int"}}]')
    assert [type(node).__name__ for node in walk(schema)] == ["Union", "Primitive", "Array", "Map", "Primitive"]


def test_deep_schemas_within_the_limit_are_parsed_and_written():
    text = '{"type":"array","items":' * 190 + '"int"' + "}" * 190
    schema = parse_schema(text)
    assert canonical_text(schema) == text
    assert parsing_canonical_form(schema) == text


def test_a_primitive_may_be_written_as_an_object():
    assert parse_schema('{"type": "string"}').root == Primitive(PrimitiveType.STRING)


@given(schema_values())
def test_schema_text_round_trip(value):
    schema = parse_schema(json.dumps(value))
    assert parse_schema(canonical_text(schema)) == schema
    assert parse_schema(json.dumps(schema_to_json(schema))) == schema
    assert canonical_text(parse_schema(canonical_text(schema))) == canonical_text(schema)
