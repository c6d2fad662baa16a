"""Plans from the current to the desired table."""

from __future__ import annotations

import dataclasses
import io
import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.hive_ddl.errors import ForeignTable, UnusableLocation
from headrace.hive_ddl.executors.base import Executor, check_creation
from headrace.hive_ddl.executors.printing import PrintingExecutor
from headrace.hive_ddl.ops import (
    AddPartitions,
    ColumnChange,
    ColumnChangeKind,
    CreateTable,
    DropPartitions,
    DropTable,
    Op,
    PublishSchema,
    RenameTable,
    SetPartitionLocation,
    SetProperties,
)
from headrace.hive_ddl.plan import PARTITIONS_PER_CALL_MAX, STORED_TYPE_CHARS_MAX, plan_partitions, plan_table
from headrace.hive_ddl.table import (
    COMPLETE_UNTIL,
    REVISION,
    SCHEMA_LITERAL,
    SCHEMA_URL,
    TOPIC,
    Column,
    TableState,
    desired_table,
    is_same_location,
    literal_columns,
    local_location,
)
from support.golden import case_lines, golden

AVRO_TYPES = ("int", "long", "string", "bytes", "double")


def schema_text(*fields: tuple[str, Any]) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    )


def desired(text: str, revision: str = "1-a", **changes: Any) -> TableState:
    arguments: dict[str, Any] = {
        "database": "headrace",
        "name": "clicks",
        "location": "file:///wh/clicks",
        "topic": "clicks",
        "subject": "clicks-value",
        "version": 1,
        "schema_text": text,
        "revision": revision,
    }
    return desired_table(**arguments | changes)


def apply_ops(current: TableState | None, ops: tuple[Op, ...]) -> TableState:
    """Returns the table after the operations; the metastore adds properties and spells locations differently."""
    for op in ops:
        if isinstance(op, CreateTable):
            assert current is None
            properties = {**op.table.properties, "EXTERNAL": "TRUE", "transient_lastDdlTime": "1"}
            location = op.table.location.replace("file:///", "file:/")
            current = dataclasses.replace(op.table, location=location, properties=properties)
        elif isinstance(op, SetProperties):
            assert current is not None
            assert op.expected_revision == current.revision
            properties = {**current.properties, **dict(op.properties)}
            for name in op.removed:
                del properties[name]
            current = dataclasses.replace(current, properties=properties)
    assert current is not None
    return current


TEXTS = st.dictionaries(
    st.text(string.ascii_lowercase, min_size=1, max_size=3).filter(lambda name: name not in ("dt", "hr")),
    st.sampled_from(AVRO_TYPES),
    min_size=1,
    max_size=5,
).map(lambda fields: schema_text(*fields.items()))


@given(TEXTS, TEXTS, st.sampled_from([10, 30_000]), st.sampled_from([10, 30_000]))
def test_plan_is_idempotent(first: str, second: str, first_max: int, second_max: int) -> None:
    current = None
    for slot, (text, chars_max) in enumerate([(first, first_max), (second, second_max)]):
        table = desired(text, f"{slot}-x", literal_chars_max=chars_max)
        current = apply_ops(current, plan_table(current, table))
        assert plan_table(current, dataclasses.replace(table, properties={**table.properties, REVISION: "9-z"})) == ()
        assert (SCHEMA_LITERAL in current.properties) != (SCHEMA_URL in current.properties)


def test_a_new_schema_is_one_conditional_change() -> None:
    old = desired(schema_text(("a", "int"), ("b", "string"), ("gone", "int")))
    (op,) = plan_table(old, desired(schema_text(("new", "string"), ("a", "long"), ("b", "string")), "2-b", version=2))
    assert isinstance(op, SetProperties)
    assert op.expected_revision == "1-a"
    assert dict(op.properties).keys() == {SCHEMA_LITERAL, "headrace.version", REVISION}
    assert dict(op.properties)[REVISION] == "2-b"
    assert op.changes == (
        ColumnChange(ColumnChangeKind.ADDED, "new", new_type="string"),
        ColumnChange(ColumnChangeKind.RETYPED, "a", "int", "bigint"),
        ColumnChange(ColumnChangeKind.REMOVED, "gone", old_type="int"),
    )


def test_long_schema_moves_from_literal_to_file() -> None:
    short, long = schema_text(("a", "int")), schema_text(("a", "int"), ("b", "int"))
    publish, op = plan_table(desired(short), desired(long, "2-b", literal_chars_max=len(short)))
    assert isinstance(publish, PublishSchema)
    assert isinstance(op, SetProperties)
    assert publish.text == long
    assert dict(op.properties)[SCHEMA_URL] == publish.url
    assert op.removed == (SCHEMA_LITERAL,)


def nested(chars: int) -> str:
    """Returns a schema whose column `r` has a Hive type of this length."""
    names, left = [], chars - len("struct<>")
    while left > 200:
        names.append(f"m{len(names):04}{'x' * 86}")
        left -= len(names[-1]) + len(":int,")
    names.append("l" * (left - len(":int")))
    members = [{"name": name, "type": "int"} for name in names]
    text = schema_text(("id", "int"), ("r", {"type": "record", "name": "Inner", "fields": members}))
    assert [len(column.type) for column in desired(text).columns] == [3, chars]
    return text


def test_storable_type_is_created_directly() -> None:
    table = desired(nested(STORED_TYPE_CHARS_MAX))
    publish, create = plan_table(None, table)
    assert isinstance(publish, PublishSchema)
    assert create == CreateTable(table)


@pytest.mark.parametrize("literal_chars_max", [30_000, 10**6])
def test_table_with_too_long_type_is_created_then_altered(literal_chars_max: int) -> None:
    table = desired(nested(STORED_TYPE_CHARS_MAX + 1), literal_chars_max=literal_chars_max)
    create, *publish, change = plan_table(None, table)
    assert isinstance(create, CreateTable)
    assert create.table.columns == (Column("id", "string"),)
    assert literal_columns(create.table.properties, ("dt", "hr")) == create.table.columns
    assert not create.table.schema_text
    assert [type(op) for op in publish] == ([] if SCHEMA_LITERAL in table.properties else [PublishSchema])
    assert isinstance(change, SetProperties)
    assert change.expected_revision == create.table.revision == "1-a-created"
    made = apply_ops(None, (create, change))
    assert {key: made.properties.get(key) for key in table.properties} == table.properties
    assert (SCHEMA_LITERAL in made.properties) != (SCHEMA_URL in made.properties)
    assert plan_table(made, table) == ()
    # Two concurrent creators, or one after an interrupted one: either completes the table.
    other = dataclasses.replace(table, properties={**table.properties, REVISION: "1-b"})
    created = apply_ops(None, (create,))
    check_creation(created, plan_table(None, other)[0].table)  # type: ignore[union-attr] # a CreateTable
    assert plan_table(apply_ops(created, plan_table(created, other)), table) == ()


def test_type_growing_beyond_limit_is_a_plain_change() -> None:
    publish, change = plan_table(desired(nested(100)), desired(nested(STORED_TYPE_CHARS_MAX + 1), "2-b"))
    assert isinstance(publish, PublishSchema)
    assert isinstance(change, SetProperties)


def test_unusable_schema_file_location_is_refused() -> None:
    with pytest.raises(UnusableLocation) as refused:
        desired(schema_text(("a", "int")), location="file:///my wh/clicks", literal_chars_max=1)
    assert refused.value.location.startswith("file:///my wh/clicks")


def test_complete_until_is_unchanged_unless_given() -> None:
    text = schema_text(("a", "int"))
    current = desired(text, complete_until="2026-01-01T00:00Z")
    assert plan_table(current, desired(text, "2-b")) == ()
    (op,) = plan_table(current, desired(text, "2-b", complete_until="2026-01-02T00:00Z"))
    assert isinstance(op, SetProperties)
    assert dict(op.properties).keys() == {COMPLETE_UNTIL, REVISION}


def test_foreign_table_is_refused() -> None:
    table = desired(schema_text(("a", "int")))
    reasons = []
    foreign: tuple[dict[str, Any], ...] = (
        {"properties": {}},
        {"properties": {TOPIC: "other"}},
        {"location": "file:/elsewhere"},
        {"partition_columns": ("dt",)},
        {"partition_columns": ()},
    )
    for changes in foreign:
        with pytest.raises(ForeignTable) as refused:
            plan_table(dataclasses.replace(table, **changes), table)
        reasons.append((changes, refused.value.reason))
    lines = case_lines(reasons)
    assert lines == golden("hive_ddl/foreign_tables.txt", lines)


def test_plan_partitions_adds_and_moves() -> None:
    table = desired(schema_text(("a", "int")))
    existing = {
        ("d1", "00"): "file:/wh/clicks/dt=d1/hr=00",
        ("d1", "01"): "file:/wh/clicks/dt=d1/hr=01",
        ("d0", "00"): "x",
    }
    desired_partitions = {
        ("d1", "00"): "file:///wh/clicks/dt=d1/hr=00",
        ("d1", "01"): "file:///wh/clicks/_g2/dt=d1/hr=01",
        ("d1", "02"): "file:///wh/clicks/dt=d1/hr=02",
    }
    added, moved = plan_partitions(table, existing, desired_partitions)
    assert isinstance(added, AddPartitions)
    assert isinstance(moved, SetPartitionLocation)
    assert [partition.values for partition in added.partitions] == [("d1", "02")]
    assert moved.partition.location.endswith("_g2/dt=d1/hr=01")
    assert plan_partitions(table, existing | desired_partitions, desired_partitions) == ()


def test_dropped_partitions_need_not_exist() -> None:
    table = desired(schema_text(("a", "int")))
    (dropped,) = plan_partitions(table, {}, {}, {("d1", "01"), ("d1", "00")})
    assert dropped == DropPartitions("headrace", table.name, ("dt", "hr"), (("d1", "00"), ("d1", "01")))
    many = plan_partitions(table, {}, {}, {(f"d{i:05}", "00") for i in range(PARTITIONS_PER_CALL_MAX + 1)})
    assert [len(op.values) for op in many if isinstance(op, DropPartitions)] == [PARTITIONS_PER_CALL_MAX, 1]


def test_partitions_are_split_into_bounded_calls() -> None:
    table = desired(schema_text(("a", "int")))
    desired_partitions = {(f"d{i:05}", "00"): f"file:///wh/{i}" for i in range(PARTITIONS_PER_CALL_MAX + 1)}
    ops = plan_partitions(table, {}, desired_partitions)
    assert [len(op.partitions) for op in ops if isinstance(op, AddPartitions)] == [PARTITIONS_PER_CALL_MAX, 1]


def test_is_same_location(tmp_path: Path) -> None:
    assert is_same_location("file:/a/b", "file:///a/b/")
    assert is_same_location("/a/b", "file:///a/b")
    assert not is_same_location("hdfs://n/a", "file:///a")
    assert local_location(tmp_path / "a%5Fb c") == f"file://{tmp_path.resolve()}/a%5Fb c"


@pytest.mark.parametrize("text", [schema_text(("a", "int")), nested(STORED_TYPE_CHARS_MAX + 1)], ids=["", "nested"])
def test_printing_executor_prints_each_operation_once(text: str) -> None:
    output = io.StringIO()
    executor: Executor = PrintingExecutor(output)
    table = desired(text)
    for _ in range(2):
        executor.ensure_database("headrace")
        for op in plan_table(executor.table("headrace", "clicks"), table):
            executor.execute(op)
        desired_partitions = {("d1", "00"): "file:///wh/clicks/dt=d1/hr=00"}
        for op in plan_partitions(table, executor.partitions("headrace", "clicks"), desired_partitions):
            executor.execute(op)
    printed = output.getvalue()
    assert [printed.count(words) for words in ("CREATE DATABASE", "CREATE EXTERNAL TABLE", "ADD IF NOT EXISTS")] == [
        1
    ] * 3
    assert printed.count(" SET TBLPROPERTIES") == len(plan_table(None, table)) // 2


def test_printing_executor_prints_a_moved_partition_once_and_again_after_drop_table() -> None:
    output = io.StringIO()
    executor = PrintingExecutor(output)
    table = desired(schema_text(("a", "int")))

    def apply(location: str) -> None:
        for op in plan_table(executor.table("headrace", "clicks"), table):
            executor.execute(op)
        for op in plan_partitions(table, executor.partitions("headrace", "clicks"), {("d1", "00"): location}):
            executor.execute(op)

    for generation in (1, 2, 2):
        apply(f"file:///wh/clicks/_g{generation}/dt=d1/hr=00")
    executor.execute(DropTable("headrace", "clicks", "clicks"))
    apply("file:///wh/clicks/_g2/dt=d1/hr=00")
    words = ("CREATE EXTERNAL TABLE", "ADD IF NOT EXISTS", " SET LOCATION ")
    assert [output.getvalue().count(each) for each in words] == [2, 2, 1]


def test_printing_executor_renames_a_table_with_its_partitions() -> None:
    output = io.StringIO()
    executor = PrintingExecutor(output)
    new = dataclasses.replace(desired(schema_text(("a", "int"))), name="new")
    for op in (*plan_table(None, new), *plan_partitions(new, {}, {("d1", "00"): "file:///wh/clicks/dt=d1/hr=00"})):
        executor.execute(op)
    executor.execute(RenameTable("headrace", "new", "clicks"))
    assert output.getvalue().endswith("ALTER TABLE `headrace`.`new` RENAME TO `headrace`.`clicks`;\n")
    renamed = executor.table("headrace", "clicks")
    assert renamed == dataclasses.replace(new, name="clicks") and executor.table("headrace", "new") is None
    assert set(executor.partitions("headrace", "clicks")) == {("d1", "00")}
