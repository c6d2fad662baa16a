"""Reads the tables as a query does: the files in every partition of the metastore, with the schema of the table."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro

from headrace.hive_ddl.executors.base import Executor
from headrace.hive_ddl.table import SCHEMA_LITERAL, SCHEMA_URL, TableState

DATABASES = {"headrace": False, "headrace_quarantine": True}
"""The Hive databases, and whether each has the quarantine tables."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row and where it was found. `file_schema` is the schema in the header of its file."""

    values: Mapping[str, Any]
    time_partition: str
    file_schema: str
    path: Path
    is_quarantined: bool


@dataclass(frozen=True, slots=True)
class _Held:
    """A file that was read.

    Attributes:
        identity: inode, size and time of change; a file with another identity is read again.
        schema: the schema of the table with which it was read.
        numbers: the numbers of the messages of its rows.
    """

    identity: tuple[int, int, int]
    schema: str
    numbers: tuple[int, ...]


Take = Callable[[str, Row], int]
"""Gets a topic and a row, and returns the number of its message; raises if the row is wrong."""


@dataclass
class Reader:
    """Reads the tables, and counts the rows of each message. It reads a file again only if the file or the schema of
    its table has changed.

    Attributes:
        tables: returns the metastore.
        live: number of rows of each message.
        quarantined: number of quarantined rows of each message.
        time_partitions: the files read, by database and topic, then by partition.
        days: the days of each topic that ever had files.
    """

    tables: Callable[[], Executor]
    take: Take
    live: Counter[int] = field(default_factory=Counter)
    quarantined: Counter[int] = field(default_factory=Counter)
    time_partitions: dict[tuple[str, str], dict[tuple[str, ...], dict[Path, _Held]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    files_read: int = 0
    days: set[tuple[str, str, str]] = field(default_factory=set)

    def look(self, topic: str, table: str, selected: Collection[tuple[str, ...]] | None = None) -> int:
        """Reads the partitions of a topic and of its quarantine. Returns the number of files in them.

        Args:
            selected: values of the partition columns of the partitions to read; None for all.

        Raises:
            AssertionError: a file cannot be read, or differs from the produced messages.
        """
        files = 0
        for database, is_quarantine in DATABASES.items():
            executor = self.tables()
            found = executor.table(database, table)
            if found is None:
                continue
            schema = _schema_of(found)
            partitions = executor.partitions(database, table)
            held = self.time_partitions[database, topic]
            removed = [values for values in held if values not in partitions]
            for values in removed:
                self._forget(held.pop(values), is_quarantine)
            for values, location in partitions.items():
                if selected is None or values in selected:
                    files += self._look_at(topic, schema, values, location, held, is_quarantine)
        return files

    def _look_at(
        self,
        topic: str,
        schema: str,
        values: tuple[str, ...],
        location: str,
        held: dict[tuple[str, ...], dict[Path, _Held]],
        is_quarantine: bool,
    ) -> int:
        directory = _directory(location)
        before = held.get(values, {})
        after = {}
        for path in sorted(directory.iterdir()):
            if path.name.startswith(("_", ".")):
                continue
            status = path.stat()
            identity = (status.st_ino, status.st_size, status.st_mtime_ns)
            known = before.get(path)
            if known is not None and (known.identity, known.schema) == (identity, schema):
                after[path] = known
            else:
                numbers = self._read(topic, schema, _time_partition_name(values), path, is_quarantine)
                after[path] = _Held(identity, schema, numbers)
        self._forget(before, is_quarantine)
        counts = self.quarantined if is_quarantine else self.live
        for one in after.values():
            counts.update(one.numbers)
        held[values] = after
        self.days.add((topic, "quarantine" if is_quarantine else "data", values[0]))
        return len(after)

    def _forget(self, files: Mapping[Path, _Held], is_quarantine: bool) -> None:
        counts = self.quarantined if is_quarantine else self.live
        for one in files.values():
            counts.subtract(one.numbers)

    def _read(self, topic: str, schema: str, time_partition: str, path: Path, is_quarantine: bool) -> tuple[int, ...]:
        self.files_read += 1
        with path.open("rb") as file:
            rows = fastavro.reader(file, reader_schema=_parsed(schema))
            file_schema = rows.metadata["avro.schema"]
            return tuple(self.take(topic, Row(row, time_partition, file_schema, path, is_quarantine)) for row in rows)


def _time_partition_name(values: tuple[str, ...]) -> str:
    return "/".join(f"{name}={value}" for name, value in zip(("dt", "hr"), values, strict=False))


def _directory(location: str) -> Path:
    """Returns the path of a URI as Hadoop writes it: `file:/a` or `file:///a`."""
    return Path(re.sub(r"^file:(//)?", "", location))


def _schema_of(table: TableState) -> str:
    literal = table.properties.get(SCHEMA_LITERAL)
    if literal:
        return literal
    return _directory(table.properties[SCHEMA_URL]).read_text()


_PARSED: dict[str, Any] = {}


def _parsed(text: str) -> Any:
    """Parses a schema for fastavro, without logical types, so that times are decoded as numbers."""
    if text not in _PARSED:
        _PARSED[text] = fastavro.parse_schema(_without_logical(json.loads(text)))
    return _PARSED[text]


def _without_logical(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_logical(value) for key, value in node.items() if key != "logicalType"}
    return [_without_logical(item) for item in node] if isinstance(node, list) else node
