"""The fold of versions into the load schema: one case per rule, and properties of every history."""

import io
import itertools
import json
import re
import time
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.avro_schema import Record, Schema, parse_schema
from headrace.compat.resolution import check_reader_writer
from headrace.hive_ddl.types import Column, table_columns
from headrace.loader.load_schema import (
    EMPTY,
    RULES,
    LoadState,
    explain,
    fold,
    load_schema_with_kafka,
    merge,
    root_record,
    route_by_stored,
    route_entries,
    route_fields,
    split,
    table_schema,
    types,
)
from headrace.loader.load_schema.merge import LoadSchemaTooLarge
from support.examples import examples
from support.schemas.strategies import data_for, growing_histories, histories, schemas

DECIMAL = {"type": "bytes", "logicalType": "decimal"}


def record(*fields: Any, name: str = "Event", **more: Any) -> Schema:
    return parse_schema(json.dumps({"type": "record", "name": name, "fields": list(fields), **more}))


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def folded(*versions: Schema) -> LoadState:
    state = EMPTY
    for number, schema in enumerate(versions, 1):
        state = fold(state, number, schema)
    return state


def columns(state: LoadState) -> dict[str, Any]:
    return {item["name"]: item["type"] for item in json.loads(state.text)["fields"]}


def rules(state: LoadState) -> list[tuple[str, str]]:
    return [(rule.column, rule.rule) for rule in state.applied]


def sources_by_column(state: LoadState, schema: Schema) -> dict[str, str | None]:
    route = route_fields(load_root(state), schema, root_record(schema))
    assert not route.unmatched
    return {routed.column.name: routed.source.name if routed.source else None for routed in route.columns}


def load_root(state: LoadState) -> Record:
    root = parse_schema(state.text).root
    assert isinstance(root, Record)
    return root


def test_the_first_version_is_the_load_schema_without_doc():
    schema = record(field("a", "int", doc="d"), field("b", ["null", "string"], default=None), doc="d")
    state = folded(schema)
    assert columns(state) == {"a": "int", "b": ["null", "string"]}
    assert "doc" not in state.text
    assert state.versions == (1,)
    assert state.applied == ()


def test_a_version_is_folded_once():
    schema = record(field("a", "int"))
    state = folded(schema)
    assert fold(state, 1, record(field("b", "int"))) is state


def test_a_field_with_a_plain_default_keeps_it_so_that_old_rows_read_it():
    state = folded(record(field("a", "int")), record(field("b", "int", default=5), field("a", "int")))
    assert list(columns(state)) == ["a", "b"]
    assert json.loads(state.text)["fields"][1] == {"name": "b", "type": "int", "default": 5}
    assert rules(state) == [("b", "added")]


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ({"type": "record", "name": "P", "fields": [field("x", "int")]}, {"x": 1}),
        ({**DECIMAL, "precision": 5, "scale": 2}, "\u0001"),
        ({"type": "array", "items": {"type": "record", "name": "P", "fields": []}}, [{}]),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
        ({"type": "fixed", "name": "F", "size": 2}, "x"),
        (["int", "string"], 3),
    ],
)
def test_a_default_that_hive_cannot_apply_becomes_null(kind, default):
    state = folded(record(), record(field("b", kind, default=default)))
    column = json.loads(state.text)["fields"][0]
    assert column["default"] is None
    assert column["type"][0] == "null"
    assert ("b", "default-dropped") in rules(state)


def test_an_added_field_without_default_is_nullable():
    state = folded(record(), record(field("b", "int")))
    assert json.loads(state.text)["fields"] == [{"name": "b", "type": ["null", "int"], "default": None}]


def test_a_default_of_a_later_branch_comes_first_in_the_load_schema():
    state = folded(record(), record(field("b", ["null", "int"], default=5)))
    assert json.loads(state.text)["fields"] == [{"name": "b", "type": ["int", "null"], "default": 5}]


def test_a_removed_field_stays_and_is_null_in_new_rows():
    first, second = record(field("a", "int"), field("b", "int", default=7)), record(field("a", "int"))
    state = folded(first, second)
    assert columns(state) == {"a": "int", "b": ["int", "null"]}
    route = route_fields(load_root(state), second, root_record(second))
    assert [(routed.column.name, routed.absent_value) for routed in route.columns if routed.source is None] == [
        ("b", None)
    ]
    assert rules(state) == [("b", "removed")]


def test_a_list_that_becomes_nullable_loses_its_default_on_which_avro_java_fails():
    first, second = record(), record(field("b", {"type": "array", "items": "int"}, default=[]))
    third = record(field("b", ["null", {"type": "array", "items": "int"}], default=None))
    assert json.loads(folded(first, second).text)["fields"][0]["default"] == []
    for last in (first, third):
        column = json.loads(folded(first, second, last).text)["fields"][0]
        assert column == {"name": "b", "type": ["null", {"type": "array", "items": "int"}], "default": None}


@pytest.mark.parametrize(
    ("old", "new"),
    [("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"), ("float", "double")],
)
def test_promotions_widen_the_column_and_old_messages_still_go_to_it(old, new):
    first, second = record(field("a", old)), record(field("a", new))
    state = folded(first, second)
    kind = columns(state)["a"]
    assert (kind if isinstance(kind, str) else kind["type"]) == new
    assert sources_by_column(state, first) == sources_by_column(state, second) == {"a": "a"}


WIDENED_DEFAULTS = [
    ("int", "double", 0, "0.0"),
    ("long", "float", -5, "-5.0"),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "double"}, [1, 2], "[1.0,2.0]"),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "float"}, {"a": 1}, '{"a":1.0}'),
]


@pytest.mark.parametrize(("old", "new", "default", "spelled"), WIDENED_DEFAULTS)
def test_the_default_of_a_widened_column_has_a_fraction_without_which_fastavro_refuses_it(old, new, default, spelled):
    first, second = record(field("a", old, default=default)), record(field("a", new, default=default))
    inner = [nested("In", field("a", kind, default=default)) for kind in (old, new)]
    histories = [(first, second), (second,), (first, second, record())]
    histories += [(record(field("r", inner[0])), record(field("r", inner[1])))]
    for versions in histories:
        text = folded(*versions).text
        fastavro.parse_schema(json.loads(text))
        if "null" not in text:
            assert f'"default":{spelled}' in text


def nested(name, *fields):
    return {"type": "record", "name": name, "fields": list(fields)}


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, 2**63 - 1),
        ("float", 1e300),
        ({"type": "array", "items": "float"}, [1e39]),
    ],
)
def test_a_default_that_queries_or_files_cannot_represent_is_dropped(kind, default):
    state = folded(record(), record(field("b", kind, default=default)))
    assert ("b", "default-dropped") in rules(state)
    assert json.loads(folded(record(field("b", kind, default=default))).text)["fields"] == [field("b", kind)]


INVALID = ("null", '"x"', '"NaN"', "1", "1.5", "1e39", "true", "[]", '["x"]', "[1]", "{}", '{"x":"y"}', '"\u0100"')
"""Default values, each invalid for most types."""


@pytest.mark.parametrize(
    "kind",
    [
        *("int", "long", "float", "double", "string", "bytes", "boolean", "null"),
        {"type": "long", "logicalType": "timestamp-millis"},
        {**DECIMAL, "precision": 4, "scale": 2},
        {"type": "enum", "name": "E", "symbols": ["A"]},
        {"type": "fixed", "name": "F", "size": 2},
        {"type": "array", "items": "int"},
        {"type": "map", "values": "double"},
        {"type": "record", "name": "R", "fields": [field("x", "int", default="none")]},
        ["null", "int"],
        ["string", "int"],
    ],
)
def test_invalid_defaults_are_dropped_from_load_schemas(kind):
    """Other registries accept such defaults. Avro Java refuses a table with one, therefore load schemas are parsed
    strictly."""
    for default in INVALID:
        one = f'{{"name":"a","type":{json.dumps(kind)},"default":{default}}}'
        schema = parse_schema(f'{{"type":"record","name":"Event","fields":[{one}]}}', strict=False)
        for before in ((), (record(field("z", "int")),)):
            state = folded(*before, schema, record(field("z", "int")), schema)
            table_columns(parse_schema(table_schema(state.text, "position")))


@pytest.mark.parametrize(("old", "new"), [("long", "int"), ("double", "int"), ("double", "float"), ("bytes", "string")])
def test_a_narrower_type_is_stored_in_the_existing_column(old, new):
    state = folded(record(field("a", old)), record(field("a", new)))
    assert columns(state) == {"a": old}


@pytest.mark.parametrize(
    ("old", "new", "sibling", "rule"),
    [
        ("int", "string", "a__string", "type-changed"),
        ("string", "bytes", "a__bytes", "type-changed"),
        ("float", "long", "a__long", "type-changed"),
        ("int", {"type": "int", "logicalType": "date"}, "a__date", "logical-changed"),
        ("long", {"type": "long", "logicalType": "timestamp-millis"}, "a__timestamp_millis", "logical-changed"),
        ({**DECIMAL, "precision": 5}, {**DECIMAL, "precision": 5, "scale": 2}, "a__decimal_5_2", "decimal-changed"),
        ("bytes", {**DECIMAL, "precision": 5, "scale": 2}, "a__decimal_5_2", "decimal-changed"),
        ({**DECIMAL, "precision": 10}, {**DECIMAL, "precision": 40}, "a__bytes", "decimal-changed"),
        ("int", ["int", "string"], "a__union", "branches-gained"),
        (["null", "string"], ["null", "string", "int"], "a__union", "branches-gained"),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "string"}, "a__array", "element-changed"),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, "a__map", "element-changed"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string", "a__string", "type-changed"),
        (
            {"type": "fixed", "name": "F", "size": 2},
            {"type": "fixed", "name": "F", "size": 3},
            "a__fixed",
            "type-changed",
        ),
    ],
)
def test_a_type_that_does_not_fit_the_column_creates_a_sibling(old, new, sibling, rule):
    first, second = record(field("a", old)), record(field("a", new))
    state = folded(first, second)
    assert list(columns(state)) == ["a", sibling]
    assert (sibling, rule) in rules(state)
    assert sources_by_column(state, first) == {"a": "a", sibling: None}
    assert sources_by_column(state, second) == {"a": None, sibling: "a"}
    assert all(split(column.type)[1] and column.default is None for column in load_root(state).fields)


@pytest.mark.parametrize(
    ("size", "precision", "is_number"), [(1_024, 38, True), (1_025, 9, False), (1_000_000, 9, False), (17, 39, False)]
)
def test_a_fixed_decimal_unreadable_for_readers_is_plain_bytes(size, precision, is_number):
    kind = {"type": "fixed", "name": "F", "size": size, "logicalType": "decimal", "precision": precision, "scale": 2}
    schema = record(field("a", kind), field("b", ["null", "F"], default=None))
    state = folded(schema)
    number = kind if is_number else {"type": "fixed", "name": "F", "size": size}
    assert columns(state) == {"a": number, "b": ["null", {**number, "name": "F_2", "headrace.names": ["F"]}]}
    assert fold(state, 2, schema).text == state.text
    assert table_columns(parse_schema(state.text)) == (Column("a", "binary"), Column("b", "binary"))
    assert sources_by_column(state, schema) == {"a": "a", "b": "b"}


def test_a_fixed_decimal_stays_in_its_existing_column(monkeypatch):
    kind = {"type": "fixed", "name": "F", "size": 2_000, "logicalType": "decimal", "precision": 9, "scale": 2}
    schema = record(field("a", kind))
    with monkeypatch.context() as before:
        before.setattr(types, "DECIMAL_BYTES_MAX", 2_000)
        state = folded(schema)
    assert columns(state) == {"a": kind}
    assert fold(state, 2, schema).text == state.text
    assert sources_by_column(state, schema) == {"a": "a"}


def test_a_third_type_creates_another_sibling_and_returning_types_use_theirs():
    kinds = ["int", "string", "boolean", "long", "string"]
    state = folded(*(record(field("a", kind)) for kind in kinds))
    assert columns(state) == {
        "a": ["null", "long"],
        "a__string": ["null", "string"],
        "a__boolean": ["null", "boolean"],
    }


def test_a_decimal_with_more_digits_of_one_scale_stays_one_column():
    state = folded(*(record(field("a", {**DECIMAL, "precision": p, "scale": 2})) for p in (5, 7, 6)))
    assert columns(state) == {"a": {**DECIMAL, "precision": 7, "scale": 2}}


def test_a_decimal_too_wide_for_hive_is_its_unscaled_bytes_and_keeps_its_scale():
    state = folded(
        record(field("a", {**DECIMAL, "precision": 40, "scale": 2})),
        record(field("a", {**DECIMAL, "precision": 44, "scale": 2})),
        record(field("a", {**DECIMAL, "precision": 44, "scale": 3})),
    )
    assert columns(state)["a"][1] == {"type": "bytes", "headrace.kind": "unscaled", "headrace.decimal": "44,2"}
    assert list(columns(state)) == ["a", "a__bytes"]


def test_a_plain_alias_renames_the_column_for_old_files_and_messages():
    first, second = record(field("a", "int")), record(field("b", "long", aliases=["a"]))
    state = folded(first, second)
    assert json.loads(state.text)["fields"] == [
        {"name": "b", "type": "long", "aliases": ["a"], "headrace.source": ["b", "a"]}
    ]
    assert sources_by_column(state, first) == {"b": "a"}
    third = folded(first, second, record(field("b", "long")))
    assert third.text == state.text


def test_an_aliased_record_gets_a_column_under_its_new_name():
    point = {"type": "record", "name": "P", "fields": [field("x", "int")]}
    first, second = record(field("a", point)), record(field("b", point, aliases=["a"]))
    state = folded(first, second)
    assert list(columns(state)) == ["a", "b"]
    assert ("b", "renamed-beside") in rules(state)
    assert sources_by_column(state, second) == {"a": None, "b": "b"}


def test_the_old_name_of_a_renamed_field_may_come_back_as_another_field():
    first = record(field("a", "int"))
    second = record(field("b", "int", aliases=["a"]))
    third = record(field("b", "int"), field("a", "string"))
    fourth = record(field("a", "string"))
    state = folded(first, second, third, fourth)
    assert list(columns(state)) == ["b", "a_2"]
    assert sources_by_column(state, first) == {"b": "a", "a_2": None}
    assert sources_by_column(state, third) == {"b": "b", "a_2": "a"}
    assert sources_by_column(state, fourth) == {"b": None, "a_2": "a"}


def test_a_third_field_with_a_reused_name_gets_a_new_column():
    first = record(field("a", "int"))
    second = record(field("b", "int", aliases=["a"]))
    third = record(field("b", "int"), field("a", "int"))
    fourth = record(field("b", "int"), field("c", "int", aliases=["a"]))
    fifth = record(field("c", "int"), field("a", "int"))
    state = folded(first, second, third, fourth, fifth)
    assert list(columns(state)) == ["b", "c", "a_3"]
    assert sources_by_column(state, fifth) == {"b": None, "c": "c", "a_3": "a"}


def test_a_field_added_to_a_nested_record_is_readable():
    def nested(*fields: Any) -> Any:
        return record(field("h", {"type": "record", "name": "H", "fields": list(fields)}))

    inner = {"type": "record", "name": "I", "fields": []}
    state = folded(
        nested(field("x", "int")),
        nested(field("x", "long"), field("y", "int", default=1), field("r", inner, default={}), field("x2", "string")),
    )
    assert columns(state)["h"]["fields"] == [
        {"name": "x", "type": "long"},
        {"name": "y", "type": "int", "default": 1},
        {"name": "r", "type": ["null", inner], "default": None},
        {"name": "x2", "type": ["null", "string"], "default": None},
    ]


def test_a_changed_field_inside_a_record_has_its_sibling_inside_the_record():
    def nested(kind: Any) -> Any:
        rec = {"type": "record", "name": "H", "fields": [field("x", kind)]}
        return record(field("h", {"type": "array", "items": rec}))

    state = folded(nested("int"), nested("string"))
    assert [item["name"] for item in columns(state)["h"]["items"]["fields"]] == ["x", "x__string"]


def test_a_record_under_another_name_is_another_type_unless_an_alias_says_so():
    def car(name: str, *fields: Any, **more: Any) -> Schema:
        return record(field("v", {"type": "record", "name": name, "fields": list(fields), **more}))

    first = car("Car", field("x", "int"))
    state = folded(first, car("Auto", field("x", "int"), aliases=["Car"]), car("Boat", field("x", "int")))
    assert list(columns(state)) == ["v", "v__record"]
    assert sources_by_column(state, first) == {"v": "v", "v__record": None}


def test_an_enum_keeps_every_symbol():
    def enum(*symbols: str) -> Any:
        return record(field("e", {"type": "enum", "name": "E", "symbols": list(symbols)}))

    state = folded(enum("A", "B"), enum("C", "A"))
    assert columns(state)["e"]["symbols"] == ["A", "B", "C"]


def test_a_union_is_a_record_of_nullable_members_and_gains_members():
    first = record(field("u", ["int", "string"]))
    second = record(field("u", ["null", "string", "long", {"type": "array", "items": "int"}]))
    state = folded(first, second)
    members = columns(state)["u"][1]
    assert members["headrace.kind"] == "members"
    assert [(m["name"], m["headrace.branch"]) for m in members["fields"]] == [
        ("int", ["int"]),
        ("string", ["string"]),
        ("long", ["long"]),
        ("array", ["array"]),
    ]
    assert split(load_root(state).fields[0].type)[1]
    (routed,) = route_fields(load_root(state), second, root_record(second)).columns
    assert [entry.column for entry in route_entries(routed.nested, 3)] == [1, 2, 3]


def test_a_plain_writer_of_a_union_column_is_one_of_its_members():
    state = folded(record(field("u", ["int", "string"])), record(field("u", "string")))
    assert list(columns(state)) == ["u"]


def test_a_union_of_one_branch_is_that_branch():
    assert columns(folded(record(field("u", ["int"]), field("n", ["null"])))) == {"u": "int", "n": "null"}


NO_TYPE = record(
    field("n", "null", default=None),
    field("u", ["null"]),
    field("a", {"type": "array", "items": "null"}),
    field("m", {"type": "map", "values": {"type": "record", "name": "R", "fields": [field("n", "null")]}}),
    field("o", ["null", "int"]),
    name="Void",
)


def test_a_field_that_is_null_in_all_versions_has_a_table_type():
    state = folded(NO_TYPE)
    table = parse_schema(table_schema(state.text, "none"))
    assert {column.name: column.type for column in table_columns(table)} == {
        "n": "string",
        "u": "string",
        "a": "array<string>",
        "m": "map<string,struct<n:string>>",
        "o": "int",
    }
    (file_row,) = [{"n": None, "u": None, "a": [None], "m": {"k": {"n": None}}, "o": None}]
    file = _file(fastavro.parse_schema(json.loads(state.text)), [file_row])
    assert list(fastavro.reader(io.BytesIO(file), reader_schema=json.loads(table.text))) == [file_row]


def test_the_first_type_of_such_a_field_is_that_of_its_column():
    state = folded(NO_TYPE, record(field("n", "long"), name="Void"))
    columns_of = {column.name: column.type for column in table_columns(parse_schema(table_schema(state.text, "none")))}
    assert (columns_of["n"], columns_of["u"]) == ("bigint", "string")


def test_a_table_whose_fields_have_types_has_the_schema_of_its_files():
    state = folded(record(field("a", ["null", "int"])))
    assert table_schema(state.text, "none") == state.text
    assert table_schema(state.text, "full") == load_schema_with_kafka(state.text, "full")


def test_a_recursive_field_is_text():
    node = record(
        field("v", "int"), field("next", ["null", "Event"]), field("kids", {"type": "array", "items": "Event"})
    )
    state = folded(node)
    text = {"type": "string", "headrace.kind": "json"}
    assert columns(state) == {"v": "int", "next": ["null", text], "kids": text}
    assert folded(node, node).text == state.text
    assert rules(state) == [("next", "recursive"), ("kids", "recursive")]


def test_a_type_that_doubles_at_every_level_is_text():
    kind: Any = {"type": "record", "name": "T0", "fields": [field("x", "int")]}
    for n in range(1, 14):
        kind = {"type": "record", "name": f"T{n}", "fields": [field("a", kind), field("b", f"T{n - 1}")]}
    state = folded(record(field("big", kind), field("c", "int")))
    assert columns(state) == {"big": {"type": "string", "headrace.kind": "json"}, "c": "int"}


def uses_of_a_type(many: int) -> list[Schema]:
    money = {"type": "record", "name": "Money", "fields": [field("amount", "long")]}
    return [record(field("x0", money), *(field(f"x{n}", "Money") for n in range(1, many)))]


def plain_fields(many: int) -> list[Schema]:
    return [record(*(field(f"x{n}", "int") for n in range(many)))] * 2


def renamed_fields(many: int) -> list[Schema]:
    return [*plain_fields(many)[:1], record(*(field(f"y{n}", "int", aliases=[f"x{n}"]) for n in range(many)))]


def names_that_differ_in_case(many: int) -> list[Schema]:
    spellings = ("".join(chars) for chars in itertools.product(*((char, char.upper()) for char in "abcdefghijklmn")))
    return [record(*(field(name, "int") for name in itertools.islice(spellings, many)))]


@pytest.mark.parametrize(
    "versions", [uses_of_a_type, plain_fields, renamed_fields, names_that_differ_in_case], ids=lambda one: one.__name__
)
def test_fold_time_is_not_quadratic_in_the_schema(versions):
    many = 8_000
    schemas = versions(many)
    start_s = time.process_time()
    state = folded(*schemas)
    assert time.process_time() - start_s < 8  # it takes half a second; quadratic folds took 15 and more
    assert len(columns(state)) == many


def test_a_version_of_too_many_types_is_refused_whether_or_not_they_are_text(monkeypatch):
    monkeypatch.setattr(merge, "FOLD_TYPES_MAX", 100)
    folded(*uses_of_a_type(50))
    with pytest.raises(LoadSchemaTooLarge, match=r"\b100\b"):
        folded(*uses_of_a_type(51))
    monkeypatch.setattr(merge, "COLUMN_NODES_MAX", 1)
    assert columns(folded(*uses_of_a_type(50)))["x1"]["headrace.kind"] == "json"
    with pytest.raises(LoadSchemaTooLarge):
        folded(*uses_of_a_type(51))


def test_a_load_schema_that_could_not_be_read_again_is_refused():
    long = [record(*(field(name, "string", default=name * 1_900_000) for name in names)) for names in ("ab", "c")]
    state = folded(long[0])
    load_schema_with_kafka(state.text, "full")
    with pytest.raises(LoadSchemaTooLarge, match=r"\b3,990,000\b"):
        fold(state, 2, long[1])


def test_a_chain_of_types_is_text_below_the_depth_limit():
    chain = [{"type": "record", "name": "T0", "fields": []}]
    chain += [{"type": "record", "name": f"T{n}", "fields": [field("a", f"T{n - 1}")]} for n in range(1, 400)]
    schema = parse_schema(json.dumps([*chain, "null"]))
    state = folded(schema)
    assert ("too-deep") in {rule for _, rule in rules(state)}
    assert fold(state, 2, schema).text == state.text


def test_names_that_collide_get_a_suffix():
    state = folded(
        record(field("dt", "int"), field("HR", "int"), field("x", "int"), field("X", "int"), field("kafka", "int")),
        record(field("Kafka", "int")),
    )
    assert list(columns(state)) == ["dt_", "HR_", "x", "X_2", "kafka", "Kafka_2"]


def test_the_kafka_column_keeps_its_name_along_a_history():
    first, second = record(field("a", "int")), record(field("kafka", "int", aliases=["a"]))
    state = folded(first, second)
    assert list(columns(state)) == ["kafka_"]
    assert json.loads(load_schema_with_kafka(state.text, "position"))["fields"][-1]["name"] == "kafka"
    state = folded(record(field("kafka", "int")), record(field("b", "int", aliases=["kafka"])))
    assert json.loads(load_schema_with_kafka(state.text, "position"))["fields"][-1]["name"] == "kafka__position"


def test_messages_that_are_not_records_are_one_column():
    text, union = parse_schema('"string"'), parse_schema('["null", "int", {"type": "array", "items": "int"}]')
    assert columns(folded(text)) == {"value": "string"}
    assert list(columns(folded(union))) == ["value"]
    assert sources_by_column(folded(text), text) == {"value": ""}


def test_a_type_used_twice_is_two_types():
    point = {"type": "record", "name": "P", "namespace": "n", "fields": [field("x", "int")]}
    state = folded(record(field("a", point), field("b", "n.P")), record(field("a", {**point, "fields": []})))
    parse_schema(state.text)
    assert columns(state)["a"]["fields"] == [{"name": "x", "type": ["null", "int"], "default": None}]


@pytest.mark.parametrize(
    ("namespace", "named"),
    [
        ("com.my-company", "com.my_company"),
        ("com.acme.2024", "com.acme._2024"),
        ("a..b", "a._.b"),
        ("ünï.x y", "_n_.x_y"),
        ("com.Acme_1", "com.Acme_1"),
    ],
)
def test_an_invalid_namespace_is_made_valid(namespace, named):
    inner = {"type": "enum", "name": "K", "namespace": namespace, "symbols": ["A"]}
    text = json.dumps({"type": "record", "name": "E", "namespace": namespace, "fields": [field("k", inner)]})
    schema = parse_schema(text, strict=False)
    state = fold(fold(EMPTY, 1, schema), 2, schema)
    table = parse_schema(load_schema_with_kafka(state.text, "position")).root
    assert isinstance(table, Record)
    assert (table.name.full, table.fields[0].type.name.full) == (f"{named}.E", f"{named}.K")
    assert sources_by_column(state, schema) == {"k": "k"}


def test_types_stay_distinct_when_their_namespaces_become_equal():
    kinds = [
        {"type": "record", "name": "K", "namespace": space, "fields": [field("a", "int")]} for space in ("x-y", "x_y")
    ]
    text = json.dumps({"type": "record", "name": "E", "fields": [field("a", kinds[0]), field("b", kinds[1])]})
    load = load_root(folded(parse_schema(text, strict=False)))
    assert [column.type.name.full for column in load.fields] == ["x_y.K", "x_y.K_2"]


def test_a_foreign_writer_schema_has_no_route():
    state = folded(record(field("a", "int")))
    foreign = record(field("b", "int"))
    assert route_fields(load_root(state), foreign, root_record(foreign)).unmatched == ("a", "b")


@pytest.mark.parametrize(
    ("setting", "names", "name"),
    [
        ("none", ["a"], None),
        ("position", ["a"], "kafka"),
        ("full", ["a"], "kafka"),
        ("position", ["kafka"], "kafka__position"),
    ],
)
def test_the_kafka_column(setting, names, name):
    state = folded(record(*(field(n, "int") for n in names)))
    fields = json.loads(load_schema_with_kafka(state.text, setting))["fields"]
    if name is None:
        assert len(fields) == len(names)
        return
    assert fields[-1]["name"] == name
    assert fields[-1]["default"] is None
    inner = [item["name"] for item in fields[-1]["type"][1]["fields"]]
    assert inner == ["partition", "offset", "timestamp", *(["key", "headers"] if setting == "full" else [])]


def test_every_rule_has_a_reason():
    state = folded(record(field("a", "int")), record(field("a", "string")))
    assert [row.reason for row in explain(state)] == [RULES["type-changed"]]


@settings(max_examples=examples(0.4))
@given(histories())
def test_the_fold_is_deterministic_and_survives_json(versions):
    state = folded(*versions)
    assert folded(*versions) == state
    assert LoadState.from_json(json.loads(json.dumps(state.to_json()))) == state
    assert all(rule.rule in RULES for rule in state.applied)


@settings(max_examples=examples(0.4))
@given(histories())
def test_route_by_names_equals_the_stored_route_of_the_newest_version(versions):
    """Names and types also route writer schemas that are no versions, and versions of states without routes."""
    state = EMPTY
    for number, schema in enumerate(versions):
        state = fold(state, number, schema, number)
        load, root = load_root(state), root_record(schema)
        by_names, by_stored = route_fields(load, schema, root), route_by_stored(load, root, state.routes[number])
        assert not by_names.unmatched
        assert by_names == by_stored


def test_a_name_used_again_for_a_narrower_type_leaves_the_older_one_its_column():
    renamed = field("b", "long", aliases=["a"])
    versions = [
        record(field("c", ["null", "int"]), field("d", "int")),
        record(field("c", ["null", "int"]), field("d", "int"), field("a", "long")),
        record(field("c", ["null", "int"]), field("d", "int"), renamed),
        record(field("a", ["null", "int"], aliases=["c"]), field("d", "int"), renamed),
    ]
    load = load_root(folded(*versions))
    route = route_fields(load, versions[1], root_record(versions[1]))
    assert {routed.column.name: routed.source and routed.source.name for routed in route.columns} == {
        "c": "c",
        "d": "d",
        "b": "a",
        "a_2": None,
    }
    assert not route.unmatched


@given(schemas(root="record"))
def test_every_schema_folds_into_plain_types_that_hold_it(schema):
    state = folded(schema)
    assert fold(EMPTY, 1, schema) == state
    assert not route_fields(load_root(state), schema, root_record(schema)).unmatched
    assert fold(state, 2, schema).text == state.text


@given(growing_histories())
def test_load_schema_of_a_history_that_only_adds_is_its_latest_version(versions):
    load = {item.name: (item.type, item.default) for item in load_root(folded(*versions)).fields}
    latest = {item.name: (item.type, item.default) for item in root_record(versions[-1]).fields}
    assert load == latest
    first = [item.name for item in root_record(versions[0]).fields]
    assert list(load)[: len(first)] == first


@settings(max_examples=examples(0.25))
@given(histories(), st.data())
def test_every_load_schema_reads_the_files_of_those_before_it(versions, data):
    state, files = EMPTY, []
    for number, schema in enumerate(versions):
        state = fold(state, number, schema)
        text = load_schema_with_kafka(state.text, "position")
        load = parse_schema(text)
        reader = fastavro.parse_schema(without_logical_types(json.loads(text)))
        for earlier, file in files:
            assert not check_reader_writer(load, earlier)
            rows = list(fastavro.reader(io.BytesIO(file), reader_schema=reader))
            assert len(rows) == 1
        files.append((load, _file(reader, [data.draw(data_for(load))])))
        table = parse_schema(table_schema(state.text, "position"))
        assert not any(check_reader_writer(table, earlier) for earlier, _ in files)
        assert not any(re.search(r"(^|[<:,])void($|[>,])", column.type) for column in table_columns(table))


def without_logical_types(value: Any) -> Any:
    """Schema resolution ignores logical types, and fastavro would convert numbers to dates that Python cannot
    represent."""
    if isinstance(value, dict):
        return {key: without_logical_types(item) for key, item in value.items() if key != "logicalType"}
    return [without_logical_types(item) for item in value] if isinstance(value, list) else value


def _file(schema: Any, rows: list[Any]) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, schema, rows)
    return out.getvalue()
