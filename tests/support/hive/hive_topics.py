"""Topics of tests with Hive tables on several engines, without broker and registry. They call the loader's functions
directly to fold in schema versions, write the rows of messages, and update the tables."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro

from headrace.avro_schema import Field, Record, Schema, Type, parse_schema
from headrace.hive_ddl.names import quote_identifier, table_name
from headrace.hive_ddl.plan import plan_partitions, plan_table
from headrace.hive_ddl.table import SCHEMA_DIRECTORY, SCHEMA_URL, Column, TableState, desired_table, local_location
from headrace.loader.apply.schema import CURRENT_SCHEMA
from headrace.loader.load_schema import EMPTY, LoadState, fold, load_schema_with_kafka, table_schema
from headrace.loader.write.container import CALENDAR
from support.hive.hive_engines import Engine
from support.hive.hive_values import expected_value, is_nested, normalize_value
from support.loader.projection_oracle import decode, encode, expected_row, project

DATABASE = "topics"
DAY = "2026-01-31"
REVISIONS = itertools.count(1)


@dataclass(frozen=True)
class Sent:
    """A message that was sent.

    Attributes:
        writer: the schema that it was written with.
        then: the load schema right after `writer` was folded in.
    """

    writer: Schema
    then: Schema
    message: Any


def expression(engine: Engine, load: Schema, column: Field) -> str:
    name = quote_identifier(column.name.lower())
    return engine.nested(name) if is_nested(load, column.type) else name


def find_wrong_rows(engine: Engine, table: str, load: Schema, sent: Mapping[tuple[int, int], Sent]) -> list[str]:
    """Reads all rows of a table with an engine. Returns how they differ from the sent messages, one text per
    difference. Each message must have one row.

    Args:
        load: the load schema, which determines the columns.
        sent: the messages by partition and offset.
    """
    root = load.root
    assert isinstance(root, Record)
    columns = ", ".join(expression(engine, load, column) for column in root.fields)
    place = json.loads(load_schema_with_kafka(load.text, "position"))["fields"][-1]["name"]
    rows = engine.query(f"SELECT {place}.`partition`, {place}.`offset`, {columns} FROM {table}")

    def normalize(kind: Type, value: Any, expected: Any) -> Any:
        return normalize_value(load, kind, value, engine.nested_bytes, expected)

    return find_mismatches(rows, table, load, sent, normalize, engine.julian_types)


def find_mismatches(
    rows: Sequence[tuple[Any, ...]],
    table: str,
    load: Schema,
    sent: Mapping[tuple[int, int], Sent],
    normalize: Callable[[Type, Any, Any], Any],
    julian_types: Collection[str] = (),
) -> list[str]:
    """Returns how rows of a table differ from the sent messages, one text per difference.

    Args:
        rows: partition, offset, and the values of all columns.
        load: the load schema, which determines the columns. Columns without logical types have values of their
            underlying types.
        sent: the messages by partition and offset.
        normalize: gets a column's type, its value and the expected value, and returns the value in the form of
            `expected_value`.
        julian_types: logical types whose days before 1582-10-15 the reader shows in the Julian calendar.
    """
    root = load.root
    assert isinstance(root, Record)
    actual_rows = {(int(row[0]), int(row[1])): row[2:] for row in rows}
    wrong = [] if len(rows) == len(sent) == len(actual_rows) else [f"{table}: {len(rows)} rows of {len(sent)}"]
    for at, one in sent.items():
        should_row = expected_row(one.writer, one.then, load, one.message, is_stored=True)
        for column, value in zip(root.fields, actual_rows.get(at, ()), strict=False):
            expected = expected_value(load, column.type, should_row[column.name], julian_types)
            actual = normalize(column.type, value, expected)
            if expected != actual:
                wrong.append(f"{table}: offset {at}, column {column.name}: {actual!r} instead of {expected!r}")
    return wrong


@dataclass
class FoldedTopic:
    """A topic whose schema versions are folded in one by one, and its table on several engines.

    Attributes:
        states: the state of the load schema after each version.
        filed: the rows so far: version number, schema, and message in the form of fastavro.
    """

    name: str
    directory: Path
    engines: Sequence[Engine]
    states: list[LoadState] = field(default_factory=list)
    filed: list[tuple[int, Schema, Any]] = field(default_factory=list)

    @property
    def table(self) -> str:
        return table_name(self.name)

    @property
    def load_schema(self) -> Schema:
        return parse_schema(self.states[-1].text)

    def evolve(self, schema: Schema, *messages: Any) -> None:
        """Adds a schema version: updates the table on all engines, then adds a partition with the messages."""
        before = self.states[-1] if self.states else EMPTY
        number = len(self.states) + 1
        self.states.append(fold(before, number, schema, number))
        self._apply_table(number)
        rows = [(number, schema, message) for message in messages]
        self._file(number, rows)
        self.filed += rows

    @property
    def fields(self) -> tuple[Field, ...]:
        """Fields of the load schema, in the order of the columns."""
        root = self.load_schema.root
        assert isinstance(root, Record)
        return root.fields

    @property
    def sent(self) -> dict[tuple[int, int], Sent]:
        return {
            (0, offset): Sent(writer, parse_schema(self.states[number - 1].text), message)
            for offset, (number, writer, message) in enumerate(self.filed)
        }

    def mismatches(self, engine: Engine) -> list[str]:
        """Returns how the rows that an engine reads differ from all messages so far, in old and new partitions."""
        return find_wrong_rows(engine, f"{DATABASE}.{quote_identifier(self.table)}", self.load_schema, self.sent)

    def publish_schema(self) -> Path:
        """Writes the table's schema to a file next to the data, as loads do."""
        path = self.directory / SCHEMA_DIRECTORY / CURRENT_SCHEMA
        path.parent.mkdir(exist_ok=True)
        path.write_text(self._desired_table(len(self.states)).schema_text, encoding="utf-8")
        return path

    def columns(self) -> tuple[Column, ...]:
        return self._desired_table(len(self.states)).columns[:-1]

    def _desired_table(self, number: int) -> TableState:
        return desired_table(
            database=DATABASE,
            name=self.table,
            location=local_location(self.directory),
            topic=self.name,
            subject=f"{self.name}-value",
            version=number,
            schema_text=table_schema(self.states[-1].text, "position", self.states[-1].comments),
            revision=f"{number}-{next(REVISIONS)}",
        )

    def _apply_table(self, number: int) -> None:
        table = self._desired_table(number)
        if SCHEMA_URL in table.properties:
            path = Path(table.properties[SCHEMA_URL].removeprefix("file://"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(table.schema_text, encoding="utf-8")
        for engine in self.engines:
            engine.executor.ensure_database(DATABASE)
            for op in plan_table(engine.executor.table(DATABASE, self.table), table):
                engine.executor.execute(op)

    def _file(self, number: int, rows: Sequence[tuple[int, Schema, Any]]) -> None:
        load = self.load_schema
        route = self.states[-1].routes[number]
        records = []
        for offset, (_, writer, message) in enumerate(rows, len(self.filed)):
            row = decode(load, project(writer, load, encode(writer, message), route))
            records.append({**row, "kafka": {"partition": 0, "offset": offset, "timestamp": None}})
        values = (DAY, f"{number:02}")
        directory = self.directory / f"dt={DAY}" / f"hr={number:02}"
        directory.mkdir(parents=True)
        text = load_schema_with_kafka(self.states[-1].text, "position")
        with (directory / "1.avro").open("wb") as file:
            fastavro.writer(file, fastavro.parse_schema(json.loads(text)), records, "deflate", metadata=dict(CALENDAR))
        locations = {values: local_location(directory)}
        for engine in self.engines:
            present = engine.executor.partitions(DATABASE, self.table, locations)
            for op in plan_partitions(self._desired_table(number), present, locations):
                engine.executor.execute(op)
