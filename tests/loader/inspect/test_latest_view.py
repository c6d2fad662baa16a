"""The statement of a table's view by its newest schema."""

from __future__ import annotations

import json
from typing import Any

from headrace.hive_ddl.render import render
from support.hive.topic_views import view_of


def view(*versions: list[dict[str, Any]]) -> str:
    return render(view_of(*(json.dumps({"type": "record", "name": "O", "fields": fields}) for fields in versions)))


def f(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def logical(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "logicalType": name}


def test_siblings_are_one_column_and_what_was_removed_is_none() -> None:
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
        ") TBLPROPERTIES ('headrace.view' = '97b10aadba010aff',\n    'headrace.view_of' = 'orders') AS SELECT\n"
        "  `id`,\n"
        "  coalesce(`note__int`, try_cast(`note` AS int)) AS `note`,\n"
        "  `tags`,\n"
        "  `kafka`,\n"
        "  `dt`,\n"
        "  `hr`\n"
        "FROM `shop`.`orders`;\n"
    )


def test_times_that_spark_shows_as_numbers_are_times() -> None:
    found = view(
        [
            f("at", logical("long", "timestamp-micros")),
            f("exact", logical("long", "timestamp-nanos")),
            f("here", logical("long", "local-timestamp-millis")),
            f("day", logical("int", "date")),
        ]
    )
    for expression in (
        "  timestamp_micros(`at`) AS `at`,",
        "  timestamp_micros(`exact` DIV 1000) AS `exact`,",
        "  timestampadd(MILLISECOND, `here`, timestamp_ntz'1970-01-01 00:00:00') AS `here`,",
        "  `day`,",
    ):
        assert expression in found.splitlines()


def test_what_cannot_be_cast_is_not_brought_together() -> None:
    found = view([f("v", "int")], [f("v", logical("int", "date"))])
    assert "  `v__date` AS `v`,\n" in found
    assert "  `v`,\n" in found.partition("TBLPROPERTIES")[0]
    assert "coalesce" not in found


def test_names_that_differ_in_case_only_stay_apart() -> None:
    heads = view([f("a", "int"), f("A", "int")]).partition("TBLPROPERTIES")[0]
    assert "  `a`,\n  `a_2`," in heads


def test_a_default_that_other_registries_accept_is_no_matter_of_the_view() -> None:
    assert "`id`" in view([f("id", "long", default="none")])
