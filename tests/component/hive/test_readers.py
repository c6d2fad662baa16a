"""Results of each engine for every type, and for every row after every change: the source of the tables in
docs/hive.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.avro_schema import Field, parse_schema
from support.hive.golden_results import check_golden_results
from support.hive.hive_cases import (
    EDGES,
    HISTORIES,
    RECORDS,
    TYPES,
    VERSIONS,
    columns_of,
    histories_message,
    histories_schema,
    types_message,
    types_schema,
)
from support.hive.hive_engines import HIVE, SPARK, THRIFT_SERVER, Engine
from support.hive.hive_topics import DATABASE, FoldedTopic, expression
from support.hive.hive_values import is_nested, normalize_value

pytestmark = pytest.mark.xdist_group("shared_spark")

FILES = {SPARK: "spark_sql", THRIFT_SERVER: "spark_thrift_server", HIVE: "hiveserver2"}


def test_every_type_plain_and_nested(engine: Engine, tmp_path: Path) -> None:
    topic = FoldedTopic(f"types_{FILES[engine.name]}", tmp_path / "types", [engine])
    topic.evolve(types_schema(TYPES), types_message(TYPES))
    assert topic.mismatches(engine) == []
    table = f"{DATABASE}.{topic.table}"
    described = {row[0]: row[1] for row in engine.query(f"DESCRIBE {table}")}
    kinds = [topic.fields[4 * number].type for number in range(len(TYPES))]
    expressions: list[str] = []
    for number, kind in enumerate(kinds):
        places = (f"c{number}", f"in_array{number}[0]", f"in_map{number}['k']", f"in_record{number}.c")
        expressions += map(engine.nested, places) if is_nested(topic.load_schema, kind) else places
    (values,) = engine.query(f"SELECT {', '.join(expressions)} FROM {table}")
    results = {}
    for number, (case, kind) in enumerate(zip(TYPES, kinds, strict=True)):
        shown = [
            normalize_value(topic.load_schema, kind, value, engine.nested_bytes)
            for value in values[4 * number : 4 * number + 4]
        ]
        is_same = all(one == shown[0] for one in shown)
        results[case.name] = {"type": described[f"c{number}"], "value": shown[0], "nested": is_same}
    check_golden_results(FILES[engine.name], "types", results)


def test_first_and_last_values_of_every_logical_type_are_shown_as_sent(engine: Engine, tmp_path: Path) -> None:
    """Plain and inside an array. Spark shows days before 1582-10-15 in the Julian calendar, which `mismatches` expects;
    its view shows them as sent (tests/component/spark/test_latest_view.py)."""
    topic = FoldedTopic(f"edges_{FILES[engine.name]}", tmp_path / "edges", [engine])
    fields = [(f"c{number}", kind) for number, (kind, _) in enumerate(EDGES)]
    listed = [(f"in_{name}", {"type": "array", "items": _reference(kind)}) for name, kind in fields]
    rows = [
        {f"c{number}": values[row % len(values)] for number, (_, values) in enumerate(EDGES)}
        for row in range(max(len(values) for _, values in EDGES))
    ]
    text = {"type": "record", "name": "O", "fields": [{"name": n, "type": kind} for n, kind in (*fields, *listed)]}
    messages = [{**row, **{f"in_{name}": [value] for name, value in row.items()}} for row in rows]
    topic.evolve(parse_schema(json.dumps(text)), *messages)
    assert topic.mismatches(engine) == []


def _reference(kind: dict[str, Any]) -> Any:
    """Returns a type for its second use in a schema, by name if it has one."""
    return kind.get("name", kind)


def test_old_and_new_partitions_are_readable_after_every_change(engine: Engine, tmp_path: Path) -> None:
    topic = FoldedTopic(f"histories_{FILES[engine.name]}", tmp_path / "histories", [engine])
    for version in range(VERSIONS):
        topic.evolve(histories_schema(version), histories_message(version))
        assert topic.mismatches(engine) == [], f"after version {version + 1}"
    columns, rows = read_table(topic, engine)
    results = {}
    for number, history in enumerate(HISTORIES):
        own = columns_of(topic.fields, number)
        results[history.name] = {
            "columns": {name: columns[at] for at, name in own.items()},
            "rows": [[row[at] for at in own] for row in rows[: len(history.versions)]],
        }
    for number, record in enumerate(RECORDS):
        topic = FoldedTopic(f"record_{number}_{FILES[engine.name]}", tmp_path / f"record{number}", [engine])
        for version in range(len(record.versions)):
            topic.evolve(record.schema(version), {"c": f"v{version + 1}"})
            assert topic.mismatches(engine) == [], f"{record.name}, after version {version + 1}"
        columns, rows = read_table(topic, engine)
        results[record.name] = {"columns": {"c": columns[0]}, "rows": rows}
    check_golden_results(FILES[engine.name], "histories", results)


def read_table(topic: FoldedTopic, engine: Engine) -> tuple[list[str], list[list[Any]]]:
    """Returns the types of a topic's columns, and its rows ordered by the first column."""
    names = ", ".join(expression(engine, topic.load_schema, field) for field in topic.fields)
    result_rows = engine.query(f"SELECT {names} FROM {DATABASE}.{topic.table}")

    def normalize(field: Field, value: Any) -> Any:
        return normalize_value(topic.load_schema, field.type, value, engine.nested_bytes)

    rows = sorted((list(map(normalize, topic.fields, row)) for row in result_rows), key=lambda row: row[0])
    return [column.type for column in topic.columns()], rows
