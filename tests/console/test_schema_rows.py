"""Fields of two versions side by side, and since when each is there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.avro_schema import Schema, parse_schema
from headrace.compat.finding import Direction
from headrace.console.pages.schemas import IndexedSubject, ListedSubject, search_subjects
from headrace.console.registry_reader import IndexedField, ShownVersion
from headrace.console.schema_changes import ChangesUnknown, check_candidate, compare_versions, table_changes, topic_of
from headrace.console.schema_rows import (
    CELL_CHARS_MAX,
    FIELDS_MAX,
    RowMark,
    TextTooLong,
    blame_fields,
    field_row,
    list_fields,
    pair_fields,
    text_rows,
)
from headrace.settings import LoaderSettings


def field(name: str, of: Any = "string", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": of, **more}


def record(name: str, *fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def schema(*fields: dict[str, Any]) -> Schema:
    return parse_schema(json.dumps(record("R", *fields)))


def marks(before: Schema, after: Schema) -> list[tuple[str, str]]:
    return [(one.after_path or one.before_path, one.mark.value) for one in pair_fields(before, after)]


def test_removed_field_stays_in_its_place() -> None:
    assert marks(schema(field("a"), field("b"), field("c")), schema(field("a"), field("c"), field("d"))) == [
        ("a", "same"),
        ("b", "removed"),
        ("c", "same"),
        ("d", "added"),
    ]


def test_alias_of_a_field_that_stays_is_no_rename() -> None:
    before = schema(field("a"))
    assert marks(before, schema(field("a"), field("b", aliases=["a"]))) == [("a", "same"), ("b", "added")]
    assert marks(before, schema(field("b", aliases=["a"]), field("c", aliases=["a"]))) == [
        ("b", "renamed"),
        ("c", "added"),
    ]


@pytest.mark.parametrize(
    "changed",
    [
        field("a", "int"),
        field("a", doc="new"),
        field("a", default="x"),
        field("a", aliases=["z"]),
        field("a", order="ignore"),
        field("a", pii=True),
        field("a", {"type": "string", "avro.java.string": "String"}),
        field("a", ["null", "string"]),
    ],
)
def test_every_attribute_of_a_field_counts_as_a_change(changed: dict[str, Any]) -> None:
    assert marks(schema(field("a")), schema(changed)) == [("a", "changed")]
    row = field_row(pair_fields(schema(field("a")), schema(changed))[0])
    assert row.before is not None
    assert row.after is not None
    cell = row.after
    assert any(differs for part in (cell.type, cell.default, cell.doc, cell.details) for _, differs in part)


def test_order_of_union_branches_is_a_change() -> None:
    before, after = schema(field("a", ["null", "int"])), schema(field("a", ["int", "null"]))
    assert marks(before, after) == [("a", "changed")]


def test_fields_of_items_and_branches_have_rows() -> None:
    one, other = record("One", field("x")), record("Other", field("y"))
    before = schema(field("list", {"type": "array", "items": one}), field("either", ["null", other]))
    after = schema(
        field("list", {"type": "array", "items": record("One", field("x", "int"))}),
        field("either", ["null", other, record("Third", field("z"))]),
    )
    assert marks(before, after) == [
        ("list", "same"),
        ("list.x", "changed"),
        ("either", "changed"),
        ("either.Other.y", "same"),
        ("either.Third.z", "added"),
    ]


def test_only_differing_words_of_a_doc_are_marked() -> None:
    row = field_row(pair_fields(schema(field("a", doc="in whole cents")), schema(field("a", doc="in whole euros")))[0])
    assert row.after is not None
    assert row.after.doc == (("in whole", False), ("euros", True))
    long = field_row(pair_fields(schema(field("a", doc="x " * 5000)), schema(field("a", doc="y " * 5000)))[0])
    assert long.after is not None
    assert len(long.after.doc[0][0]) <= CELL_CHARS_MAX + 1


def test_blame_follows_renames_and_removals() -> None:
    versions = [
        (1, schema(field("a"), field("b"))),
        (3, schema(field("a"))),
        (4, schema(field("c", aliases=["a"]), field("b"))),
    ]
    found = {one.path: (one.since, one.changed, one.former) for one in blame_fields(versions)}
    assert found == {"c": (1, 4, ("a",)), "b": (4, 4, ())}
    cut = {one.path: (one.since, one.changed) for one in blame_fields(versions, is_whole=False)}
    assert cut == {"c": (None, 4), "b": (4, 4)}


@given(st.lists(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1), min_size=1, max_size=6))
def test_field_is_there_since_the_start_of_its_last_uninterrupted_run(names: list[list[str]]) -> None:
    versions = [(number, schema(*map(field, fields))) for number, fields in enumerate(names, 1)]
    for one in blame_fields(versions):
        assert one.since is not None
        assert all(one.path in names[number - 1] for number in range(one.since, len(names) + 1))
        assert one.since == 1 or one.path not in names[one.since - 2]
        assert one.changed == one.since


def test_number_of_fields_is_limited() -> None:
    large = schema(*(field(f"f{number}") for number in range(FIELDS_MAX + 50)))
    assert len(list_fields(large)) == FIELDS_MAX
    assert compare_versions(1, large, large).is_cut
    assert len(blame_fields([(1, large), (2, schema(*(field(f"g{n}") for n in range(FIELDS_MAX))))])) == FIELDS_MAX


def test_findings_are_under_their_field_in_texts_of_one_line() -> None:
    before = schema(field("a", record("Inner", field("x", "long"), field("gone"))), field("b"))
    after = schema(field("a", record("Inner", field("x", "int"))), field("b"), field("new"))
    found = {one.row.path: [(f.direction, f.rule.value) for f in one.findings]
             for one in compare_versions(1, before, after).fields}  # fmt: skip
    assert found == {
        "a": [],
        "a.x": [(Direction.BACKWARD, "TYPE_MISMATCH")],
        "a.gone": [(Direction.FORWARD, "READER_FIELD_MISSING_DEFAULT_VALUE")],
        "b": [],
        "new": [(Direction.BACKWARD, "READER_FIELD_MISSING_DEFAULT_VALUE")],
    }


def test_finding_about_the_whole_schema_is_general() -> None:
    found = compare_versions(1, parse_schema('"int"'), parse_schema('"string"'))
    assert found.fields == ()
    assert {one.direction for one in found.general} == set(Direction)


def test_long_runs_of_unchanged_fields_are_folded() -> None:
    same = [field(f"f{number}") for number in range(9)]
    found = compare_versions(1, schema(*same, field("z")), schema(*same, field("z", "int")))
    assert [len(group) for group in found.groups()] == [9, 1]


@pytest.mark.parametrize(("level", "compared"), [("BACKWARD", (2,)), ("BACKWARD_TRANSITIVE", (2, 1)), ("NONE", ())])
def test_candidate_is_compared_with_the_versions_that_the_level_requires(level: str, compared: tuple[int, ...]) -> None:
    check = check_candidate(schema(field("a")), [(1, schema(field("a"))), (2, schema(field("a")))], level)
    assert check.is_compatible
    assert check.compared == compared


def test_table_has_the_columns_of_all_versions_before() -> None:
    versions = [
        shown(number, schema(*map(field, names))) for number, names in ((1, "a"), (2, "ab"), (3, "a"), (4, "abc"))
    ]
    assert table_changes(versions, 3, 4).changes == ("+ c string",)
    assert [rule.rule for rule, _ in table_changes(versions, 1, 2).rules] == ["added"]
    broken = ShownVersion(5, 5, "?", "AVRO", (), None, None, "no schema")
    with pytest.raises(ChangesUnknown, match="version 5 cannot be read: no schema"):
        table_changes([*versions, broken], 4, 5)


def shown(number: int, of: Schema) -> ShownVersion:
    return ShownVersion(number, number, of.text, "AVRO", (), None, of, "")


def test_texts_are_compared_line_by_line() -> None:
    found = text_rows('{"type":"string"}', '{"type":"int"}')
    assert [(one.mark, one.before_number, one.after) for one in found if one.mark is not RowMark.SAME] == [
        (RowMark.CHANGED, 2, '  "type": "int"')
    ]
    with pytest.raises(TextTooLong):
        text_rows("\n" * 10_001, "")
    assert text_rows("{", "{") == []


@pytest.mark.parametrize(
    ("pattern", "subject", "topic"),
    [
        ("{topic}-value", "orders-value", "orders"),
        ("{topic}-value", "orders-key", None),
        ("{topic}-value", "-value", None),
        (":.eu:{topic}", ":.eu:orders", "orders"),
        ("fixed", "fixed", None),
    ],
)
def test_topic_of_a_subject_follows_the_setting(pattern: str, subject: str, topic: str | None) -> None:
    assert topic_of(LoaderSettings(subject=pattern), subject) == topic


def test_search_names_where_it_found_the_text() -> None:
    fields = (IndexedField("total.cents", "in Euro cents"), *(IndexedField(f"cents_{n}", "") for n in range(5)))
    text = "\n".join(f"{one.path}\n{one.doc}" for one in fields).lower()
    newest = IndexedSubject(2, 17, None, fields, text)
    rows = [ListedSubject("a-cents", None), ListedSubject("orders", newest)]
    assert [one.subject for one in search_subjects(rows, "CENTS")] == ["a-cents", "orders"]
    assert search_subjects(rows, "cents")[1].found == "field total.cents; field cents_0; field cents_1; 3 more"
    assert search_subjects(rows, "euro")[0].found == "doc of total.cents: in Euro cents"
    assert search_subjects(rows, "17")[0].found == "the schema id"
    assert search_subjects(rows, "nothing") == []
