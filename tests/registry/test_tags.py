"""Tags in the text of a schema: search, addition and removal."""

from __future__ import annotations

import json

import pytest

from headrace.avro_schema import canonical_text, parse_schema
from headrace.registry.tags import (
    EntityKind,
    TaggedEntity,
    UnknownEntity,
    entities_with,
    known_entities,
    tagged_entities,
    with_tags,
)
from support.cases import all_cases

RECORD, FIELD = EntityKind.RECORD, EntityKind.FIELD
ORDER = """
{"type":"record","name":"Order","namespace":"shop","confluent:tags":["A"],"fields":[
  {"name":"id","type":"long","confluent:tags":["PII","ID"]},
  {"name":"lines","type":{"type":"array","items":
    {"type":"record","name":"Line","fields":[{"name":"sku","type":"string","confluent:tags":["SKU"]},
                                             {"name":"of","type":["null","Order"]}]}}},
  {"name":"by","type":["null",{"type":"map","values":{"type":"record","name":"Person","namespace":"hr","fields":[
    {"name":"name","type":"string"}]}}]},
  {"name":"first","type":"Line","confluent:tags":"no list"}
]}
"""
TEXT = canonical_text(parse_schema(ORDER))
FOUND = [
    TaggedEntity("shop.Order", RECORD, ("A",)),
    TaggedEntity("shop.Order.id", FIELD, ("PII", "ID")),
    TaggedEntity("shop.Line.sku", FIELD, ("SKU",)),
]


def test_tagged_entities_follow_the_order_of_the_schema():
    assert tagged_entities(parse_schema(ORDER)) == FOUND
    assert tagged_entities(parse_schema('"string"')) == []


def test_tagged_entities_include_referenced_types():
    line = '{"type":"record","name":"n.L","fields":[{"name":"a","type":"int","confluent:tags":["T"]}]}'
    user = parse_schema('{"type":"array","items":"n.L"}', references=[parse_schema(line)])
    assert tagged_entities(user) == [TaggedEntity("n.L.a", FIELD, ("T",))]


@pytest.mark.parametrize(
    ("tags", "found"),
    [(["*"], FOUND), (["ID"], FOUND[1:2]), (["SKU", "A"], [FOUND[0], FOUND[2]]), (["x"], []), ([], [])],
)
def test_entities_with_filters_by_tag(tags, found):
    assert entities_with(parse_schema(ORDER), tags) == found


@pytest.mark.parametrize(
    ("add", "remove", "found"),
    [
        # New tags are appended; each tag occurs once.
        ([TaggedEntity("shop.Order.id", FIELD, ("B", "PII"))], [], {"shop.Order.id": ("PII", "ID", "B")}),
        ([], [TaggedEntity("shop.Order.id", FIELD, ("PII", "x"))], {"shop.Order.id": ("ID",)}),
        # A tag that is added and removed is removed.
        ([TaggedEntity("shop.Line", RECORD, ("B",))], [TaggedEntity("shop.Line", RECORD, ("B",))], {"shop.Line": None}),
        # Removing the last tag removes the property.
        ([], [TaggedEntity("shop.Order", RECORD, ("A",))], {"shop.Order": None}),
        # A path without namespace matches any; a nested record has the namespace of its parent or its own.
        ([TaggedEntity("Person.name", FIELD, ("N",))], [], {"hr.Person.name": ("N",)}),
        ([TaggedEntity("hr.Person", RECORD, ("P",))], [], {"hr.Person": ("P",)}),
        ([TaggedEntity("shop.Line.of", FIELD, ("O",))], [], {"shop.Line.of": ("O",)}),
        # A property that is not a list is replaced.
        ([TaggedEntity("shop.Order.first", FIELD, ("F",))], [], {"shop.Order.first": ("F",)}),
    ],
)
def test_with_tags_adds_and_removes_tags(add, remove, found):
    changed = {item.path: item.tags for item in tagged_entities(parse_schema(with_tags(TEXT, add, remove)))}
    assert {path: changed.get(path) for path in found} == found
    untouched = {item.path: item.tags for item in FOUND if item.path not in found}
    assert {path: changed.get(path) for path in untouched} == untouched


def test_unknown_path_raises_unknown_entity():
    with all_cases() as case:
        for path, kind in [
            ("shop.Order.nothing", FIELD),
            ("shop.Person", RECORD),
            ("Order", FIELD),
            ("", RECORD),
            ("", FIELD),
            ("shop.Order.id", RECORD),
        ]:
            with case((path, kind)):
                with pytest.raises(UnknownEntity) as raised:
                    with_tags(TEXT, [TaggedEntity(path, kind, ("T",))], [])
                assert str(raised.value) == f"No matching path '{path}' found in the schema"
                assert known_entities(TEXT, [TaggedEntity(path, kind, ("T",)), FOUND[0]]) == FOUND[:1]


def test_properties_that_resemble_types_are_ignored():
    text = json.dumps({"type": "enum", "name": "E", "symbols": [], "items": {"fields": []}, "fields": [1]})
    with pytest.raises(UnknownEntity):
        with_tags(text, [TaggedEntity("R", RECORD, ("T",))], [])


def test_path_without_namespace_means_the_outermost_record():
    text = canonical_text(
        parse_schema(
            '{"type":"record","name":"a.R","fields":[{"name":"x","type":{"type":"record","name":"b.R","fields":['
            '{"name":"y","type":"int"}]}}]}'
        )
    )
    added = [TaggedEntity("R", RECORD, ("T",)), TaggedEntity("R.y", FIELD, ("U",))]
    assert [(item.path, item.tags) for item in tagged_entities(parse_schema(with_tags(text, added, [])))] == [
        ("a.R", ("T",)),
        ("b.R.y", ("U",)),
    ]
