"""The statement that creates a table's view with its newest schema."""

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
        ") TBLPROPERTIES ('headrace.view' = '97b10aadba010aff',\n    'headrace.view_of' = 'orders') AS SELECT\n"
        "  `id`,\n"
        "  coalesce(`note__int`, try_cast(`note` AS int)) AS `note`,\n"
        "  `tags`,\n"
        "  `kafka`,\n"
        "  `dt`,\n"
        "  `hr`\n"
        "FROM `shop`.`orders`;\n"
    )


def test_view_converts_times_that_spark_reads_as_numbers() -> None:
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


def test_view_does_not_join_columns_without_a_cast() -> None:
    found = view([f("v", "int")], [f("v", logical("int", "date"))])
    assert "  `v__date` AS `v`,\n" in found
    assert "  `v`,\n" in found.partition("TBLPROPERTIES")[0]
    assert "coalesce" not in found


def test_view_keeps_names_apart_that_differ_only_in_case() -> None:
    heads = view([f("a", "int"), f("A", "int")]).partition("TBLPROPERTIES")[0]
    assert "  `a`,\n  `a_2`," in heads


def test_view_ignores_invalid_defaults() -> None:
    assert "`id`" in view([f("id", "long", default="none")])


def test_removed_field_is_not_taken_for_the_kafka_column() -> None:
    versions = [[f("a", "int"), f("kafka_note", "string")], [f("a", "int")]]
    texts = (json.dumps({"type": "record", "name": "O", "fields": fields}) for fields in versions)
    found = view_of(*texts, kafka_column="none")
    assert [name for name, _, _ in found.columns] == ["a", "dt", "hr"]
