"""What each engine says of every type, and of every row after every change: the tables of docs/hive.md.

The golden file of an engine holds what it said; `HEADRACE_REWRITE_GOLDEN=1` writes it anew, and `tools/hive_page.py`
makes the tables of the page from all of them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from checkout import GOLDEN
from headrace.avro_schema import Record
from hive_cases import (
    HISTORIES,
    TYPES,
    VERSIONS,
    column_of,
    histories_message,
    histories_schema,
    types_message,
    types_schema,
)
from hive_engines import HIVE, SPARK, THRIFT_SERVER, Engine
from hive_topics import DATABASE, FoldedTopic, expression
from hive_values import found, is_nested

REWRITE = os.environ.get("HEADRACE_REWRITE_GOLDEN") == "1"
FILES = {SPARK: "spark_sql", THRIFT_SERVER: "spark_thrift_server", HIVE: "hiveserver2"}


def check_golden(engine: Engine, part: str, said: dict[str, Any]) -> None:
    path = GOLDEN / "hive_readers" / f"{FILES[engine.name]}.{part}.json"
    if REWRITE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8")) == said


def test_every_type_alone_and_nested(engine: Engine, tmp_path: Path) -> None:
    topic = FoldedTopic(f"types_{FILES[engine.name]}", tmp_path / "types", [engine])
    topic.evolve(types_schema(TYPES), types_message(TYPES))
    assert topic.mismatches(engine) == []
    table = f"{DATABASE}.{topic.table}"
    described = {row[0]: row[1] for row in engine.ask(f"DESCRIBE {table}")}
    said = {}
    root = topic.load_schema.root
    assert isinstance(root, Record)
    for number, case in enumerate(TYPES):
        kind = root.fields[4 * number].type
        places = (f"c{number}", f"in_array{number}[0]", f"in_map{number}['k']", f"in_record{number}.c")
        asked = map(engine.nested, places) if is_nested(topic.load_schema, kind) else places
        (values,) = engine.ask(f"SELECT {', '.join(asked)} FROM {table}")
        shown = [found(topic.load_schema, kind, value, engine.nested_bytes) for value in values]
        is_same = all(one == shown[0] for one in shown)
        said[case.name] = {"type": described[f"c{number}"], "value": shown[0], "nested": is_same}
    check_golden(engine, "types", said)


def test_every_change_leaves_old_partitions_and_new_readable(engine: Engine, tmp_path: Path) -> None:
    topic = FoldedTopic(f"histories_{FILES[engine.name]}", tmp_path / "histories", [engine])
    for version in range(VERSIONS):
        topic.evolve(histories_schema(version), histories_message(version))
        assert topic.mismatches(engine) == [], f"after version {version + 1}"
    root = topic.load_schema.root
    assert isinstance(root, Record)
    names = ", ".join(expression(engine, topic.load_schema, field) for field in root.fields)
    rows = sorted(engine.ask(f"SELECT {names} FROM {DATABASE}.{topic.table}"), key=lambda row: int(row[0]))
    types = {column.name: column.type for column in topic.columns()}
    said = {}
    for number, history in enumerate(HISTORIES):
        own = [(at, field) for at, field in enumerate(root.fields) if column_of(field.name.lower(), number)]
        said[history.name] = {
            "columns": {str(column_of(one.name.lower(), number)): types[one.name.lower()] for _, one in own},
            "rows": [
                [found(topic.load_schema, field.type, row[at], engine.nested_bytes) for at, field in own]
                for row in rows[: len(history.versions)]
            ],
        }
    check_golden(engine, "histories", said)
