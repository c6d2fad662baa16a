"""The statement that creates a table's view with its newest schema."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from headrace.hive_ddl.render import render, view_revision
from support.hive.topic_views import view_of


def view(*versions: list[dict[str, Any]]) -> str:
    return render(view_of(*(json.dumps({"type": "record", "name": "O", "fields": fields}) for fields in versions)))


def f(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def logical(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "logicalType": name}


def test_view_joins_sibling_columns_and_omits_removed_fields() -> None:
    found = view(
        [f("id", "long"), f("note", "string"), f("gone", "int")],
        [
            f("id", "long", doc="the order's  number"),
            f("note", "int", doc="it's ${x}"),
            f("tags", {"type": "array", "items": "string"}),
        ],
    )
    assert found == (
        "CREATE OR REPLACE VIEW `shop`.`orders_latest` (\n"
        "  `id` COMMENT 'the order\\'s number',\n"
        "  `note` COMMENT 'it\\'s \\u0024{x}',\n"
        "  `tags`,\n"
        "  `kafka` COMMENT 'partition, offset and timestamp of the message',\n"
        "  `dt`,\n"
        "  `hr`\n"
        ") TBLPROPERTIES ('headrace.view' = '2b063d8dae61f76c',\n    'headrace.view_of' = 'orders') AS SELECT\n"
        "  `id`,\n"
        "  coalesce(`note__int`, try_cast(`note` AS int)) AS `note`,\n"
        "  `tags`,\n"
        "  `kafka`,\n"
        "  `dt`,\n"
        "  `hr`\n"
        "FROM `shop`.`orders`;\n"
    )


def test_view_does_not_join_columns_without_a_common_meaning() -> None:
    found = view([f("v", "int")], [f("v", {"type": "array", "items": "int"})])
    assert "  `v__array` AS `v`,\n" in found
    assert "  `v`,\n" in found.partition("TBLPROPERTIES")[0]
    assert "coalesce" not in found


def created(name: str) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [f("p", "int")]}


@pytest.mark.parametrize(
    ("kinds", "expression"),
    [
        ([["orders.C", "users.C"], "users.C"], "`v`.`c_2`"),
        ([["orders.C", "users.C"], ["users.C", "orders.C"]], "`v`"),
        ([["orders.C", "int", "users.C"], ["null", "users.C"]], "`v`.`c_2`"),
        ([["orders.C", "orders.D"], "orders.D"], "`v`.`d`"),
        (
            ["users.C", ["orders.C", "users.C"]],
            "coalesce(`v__union`, IF(`v` IS NULL, NULL, named_struct('c', CAST(NULL AS struct<p:int>), 'c_2', `v`)))",
        ),
    ],
)
def test_branch_of_a_union_is_not_shown_as_another_type_with_the_same_members(
    kinds: list[Any], expression: str
) -> None:
    def node(kind: Any) -> Any:
        if isinstance(kind, list):
            return [node(one) for one in kind]
        return created(kind) if "." in kind else kind

    (shown, *_) = view_of(*(event_text(f("v", node(kind))) for kind in kinds)).columns
    assert shown.expression == expression


def event_text(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "O", "fields": fields})


def test_value_of_a_reused_name_belongs_to_the_renamed_field() -> None:
    """`a` became `b` and another field has the name `a` now: earlier values of `a` are shown as `b` only."""
    found = view(
        [f("a", "int")],
        [f("b", "int", aliases=["a"])],
        [f("b", "string", aliases=["a"]), f("a", "string")],
    )
    lines = [line.strip(" ,") for line in found.partition(" AS SELECT\n")[2].splitlines()]
    assert lines[:2] == ["coalesce(`b__string`, try_cast(`b` AS string)) AS `b`", "`a__string` AS `a`"]


def test_view_keeps_names_apart_that_differ_only_in_case() -> None:
    heads = view([f("a", "int"), f("A", "int")]).partition("TBLPROPERTIES")[0]
    assert "  `a`,\n  `a_2`," in heads


def test_view_names_no_column_like_a_partition_or_another_column() -> None:
    fields = [f(name, "int") for name in ("dt", "HR", "dt_", "kafka", "b" * 200)]
    heads = view(fields, [*fields, f("KAFKA", "int")]).partition(" (\n")[2].partition(")")[0]
    names = re.findall("`(.*)`", heads)
    assert names[:4] == ["dt_", "hr_", "dt__2", "kafka"]
    assert names[4].startswith("bbbb")
    assert len(names[4]) == 120
    assert names[5:] == ["kafka_2", "kafka__position", "dt", "hr"]


def test_revision_changes_with_the_type_of_a_column() -> None:
    """Spark stores the types of a view's columns, so the view must be replaced when the table's column gets another
    type, although the statement stays the same."""
    revisions = {
        view_revision(
            view_of(*(json.dumps({"type": "record", "name": "O", "fields": [f("n", kind)]}) for kind in kinds))
        )
        for kinds in (["int"], ["int", "long"], ["long"])
    }
    assert len(revisions) == 2


def test_view_ignores_invalid_defaults() -> None:
    assert "`id`" in view([f("id", "long", default="none")])


def test_removed_field_is_not_taken_for_the_kafka_column() -> None:
    versions = [[f("a", "int"), f("kafka_note", "string")], [f("a", "int")]]
    texts = (json.dumps({"type": "record", "name": "O", "fields": fields}) for fields in versions)
    found = view_of(*texts, kafka_column="none")
    assert [column.name for column in found.columns] == ["a", "dt", "hr"]
