"""Differences between two schemas."""

from __future__ import annotations

from hypothesis import given

from headrace.avro_schema import Schema, parse_schema, self_contained_text
from headrace.compat.diff import SchemaChangeKind, diff_schemas
from support.golden import case_lines, golden
from support.schemas.strategies import schemas

ORDER = '{"type": "record", "name": "Order", "namespace": "shop", "fields": [%s]}'
ID = '{"name": "id", "type": "long"}'
STATUS = '{"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["NEW"%s]}}'

NOTE = '{"name": "%s", "type": "string"%s}'
ALIAS = ', "aliases": ["%s"]'
LINE = (
    '{"name": "line", "type": {"type": "record", "name": "%s"%s, "fields": ['
    '{"name": "%s", "type": "int", "doc": "d"%s}]}}'
)


def describe_changes(earlier: str, candidate: str) -> list[str]:
    return [change.describe() for change in diff_schemas(parse_schema(earlier), parse_schema(candidate))]


CASES = [
    (ID, ID, []),
    (ID, ID.replace("long", "int"), ["~ shop.Order.id"]),
    (ID, ID.replace("}", ', "default": 1, "doc": "n"}'), ["~ shop.Order.id", "~ shop.Order.id"]),
    (ID, f'{ID}, {{"name": "n", "type": ["null", "string"], "default": null}}', ["+ shop.Order.n"]),
    (f"{ID}, {STATUS % ''}", ID, ["- shop.Order.status", "- shop.Status"]),
    (STATUS % "", STATUS % ', "PAID"', ["~ shop.Status"]),
    (
        f"{ID}, {NOTE % ('note', '')}",
        f"{ID}, {NOTE % ('remark', ALIAS % 'note')}",
        ["~ shop.Order.remark", "~ shop.Order.remark"],
    ),
    (
        STATUS % "",
        STATUS.replace('"name": "Status"', '"name": "State", "aliases": ["Status"]') % "",
        ["~ shop.Order.status", "~ shop.State", "~ shop.State"],
    ),
    (
        LINE % ("Line", "", "n", ""),
        LINE % ("Item", ALIAS % "Line", "count", ALIAS % "n"),
        ["~ shop.Order.line", "~ shop.Item", "~ shop.Item", "~ shop.Item.count", "~ shop.Item.count"],
    ),
    (ID, f"{ID}, {NOTE % ('note', ALIAS % 'id')}", ["+ shop.Order.note"]),
    (ID.replace('"long"', '{"type": "long", "logicalType": "timestamp-millis"}'), ID, ["~ shop.Order.id"]),
]
"""Fields of an earlier schema and of a candidate, and the start of the line of each change."""


def test_diff_lists_changes() -> None:
    found = [
        (earlier, candidate, describe_changes(ORDER % earlier, ORDER % candidate)) for earlier, candidate, _ in CASES
    ]
    assert [(*fields, [line.partition(":")[0] for line in lines]) for *fields, lines in found] == CASES
    text = case_lines((f"{earlier} -> {candidate}", "\n".join(lines)) for earlier, candidate, lines in found)
    assert text == golden("compat/changes.txt", text)


def test_renamed_record_is_a_name_change() -> None:
    renamed = (ORDER % ID).replace('"Order"', '"Purchase"').replace('"fields"', '"aliases": ["Order"], "fields"')
    assert describe_changes(ORDER % ID, renamed) == [
        "~ shop.Purchase: renamed shop.Order -> shop.Purchase",
        "~ shop.Purchase: aliases none -> shop.Order",
    ]


def test_moved_definition_is_not_a_change() -> None:
    first = '{"name": "a", "type": {"type": "fixed", "name": "F", "size": 2}}, {"name": "b", "type": "F"}'
    second = '{"name": "b", "type": {"type": "fixed", "name": "F", "size": 2}}, {"name": "a", "type": "F"}'
    assert describe_changes(ORDER % first, ORDER % second) == []


def test_diff_of_non_record_schemas() -> None:
    for earlier, candidate in (('"int"', '"long"'), ('["null", "int"]', '["null"]')):
        (line,) = describe_changes(earlier, candidate)
        assert line.startswith("~ ") and line.endswith(f"{earlier} -> {candidate}")


def test_position_of_added_field_is_in_candidate_text() -> None:
    (added, *_) = diff_schemas(parse_schema(ORDER % ID), parse_schema(ORDER % f"{ID},\n  {STATUS % ''}"))
    assert (added.position.line, added.position.column) == (2, 3)


@given(schemas())
def test_schema_has_no_changes_to_itself(schema: Schema) -> None:
    assert diff_schemas(schema, parse_schema(self_contained_text(schema))) == ()


@given(schemas(), schemas())
def test_added_names_are_removed_in_reverse_diff(earlier: Schema, candidate: Schema) -> None:
    forward, backward = diff_schemas(earlier, candidate), diff_schemas(candidate, earlier)
    added = sorted(change.name for change in forward if change.kind is SchemaChangeKind.ADDED)
    assert added == sorted(change.name for change in backward if change.kind is SchemaChangeKind.REMOVED)
