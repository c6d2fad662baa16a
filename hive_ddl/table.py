"""A Hive table as a value: the current table, or the table that a topic's load schema requires.

Tables are external, stored as Avro, partitioned by strings, and declare their columns by an Avro schema in the table
properties. `columns` are the columns that readers get from that schema. The metastore also stores columns, those of the
table's creation. They are not updated: readers use the schema, partitions share the stored columns while these do not
change, and a change would make the metastore rewrite every partition.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from headrace.avro_schema import AvroSchemaError, parse_schema
from headrace.hive_ddl.errors import UnsupportedColumn, UnusableLocation
from headrace.hive_ddl.types import Column, table_columns

__all__ = [
    "COMPLETE_UNTIL",
    "LITERAL_CHARS_MAX",
    "REVISION",
    "SCHEMA_DIRECTORY",
    "SCHEMA_LITERAL",
    "SCHEMA_URL",
    "SUBJECT",
    "TOPIC",
    "VERSION",
    "VIEW_OF",
    "VIEW_REFUSED",
    "VIEW_REVISION",
    "Column",
    "TableState",
    "desired_table",
    "is_same_location",
    "literal_columns",
    "local_location",
    "schema_file_name",
    "schema_url",
]

TOPIC: Final = "headrace.topic"
SUBJECT: Final = "headrace.subject"
VERSION: Final = "headrace.version"
REVISION: Final = "headrace.revision"
COMPLETE_UNTIL: Final = "headrace.complete_until"
VIEW_OF: Final = "headrace.view_of"
VIEW_REVISION: Final = "headrace.view"
VIEW_REFUSED: Final = "headrace.view_refused"
"""Property of a table: the revision of its view that could not be created, which is not tried again."""
SCHEMA_LITERAL: Final = "avro.schema.literal"
SCHEMA_URL: Final = "avro.schema.url"

LITERAL_CHARS_MAX = 30_000
"""Longest schema text that is stored as a table property. Metastores created by DataNucleus store 32,672 characters of
a property, and a CREATE with a longer value fails."""

_NOT_URI = re.compile(r"""[\s"<>\\^`{|}#?\[\]]|%(?![0-9A-Fa-f]{2})""")

SCHEMA_DIRECTORY = "_schema"  # ignored by readers of the table's directory

COMMENT: Final = "comment"
"""Property that Hive and Spark show as the comment of the table."""

PARTITION_COMMENTS: Final[Mapping[str, str]] = {
    "dt": "day of the row's time in UTC, such as 2026-01-31",
    "hr": "hour of the row's time in UTC, 00 to 23",
}
"""Comments of the partition columns, by name."""


@dataclass(frozen=True, slots=True)
class TableState:
    """A current or desired table. `location` is a URI in Hadoop's spelling, without percent-encoding.

    `schema_text` is the schema for the file that the property `avro.schema.url` names, if the table has this property;
    "" in a table that was read from the metastore. It is excluded from equality, because the URL contains its hash.
    """

    database: str
    name: str
    location: str
    columns: tuple[Column, ...]
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    schema_text: str = field(default="", compare=False, repr=False)

    @property
    def full_name(self) -> str:
        return f"{self.database}.{self.name}"

    @property
    def topic(self) -> str | None:
        """Topic of the table, from its property `headrace.topic`; None for a view and if Headrace did not create the
        table."""
        return self.properties.get(TOPIC)

    @property
    def revision(self) -> str | None:
        return self.properties.get(REVISION)


def desired_table(
    *,
    database: str,
    name: str,
    location: str,
    topic: str,
    subject: str,
    version: int,
    schema_text: str,
    revision: str,
    partition_columns: Sequence[str] = ("dt", "hr"),
    complete_until: str | None = None,
    properties: Mapping[str, str] = MappingProxyType({}),
    literal_chars_max: int = LITERAL_CHARS_MAX,
) -> TableState:
    """Returns the table that a topic's load schema requires.

    Args:
        location: URI of the topic's directory in Hadoop's spelling, without percent-encoding.
        version: newest version of the subject in the load schema.
        schema_text: the load schema with all named types included.
        revision: value of the property `headrace.revision`, a new one for each change. A table that differs from this
            one in nothing else counts as equal.
        partition_columns: names of the partition columns, which are not in the schema.
        complete_until: time up to which the table is complete; None to keep the table's value.
        properties: further properties to set.
        literal_chars_max: a longer schema text is stored in a file next to the data, named by `avro.schema.url`.

    Raises:
        UnsupportedColumn: Hive cannot hold a field, or a field has the name of another one or of a partition column.
        SchemaParseError: the text is not an Avro schema.
        UnusableLocation: the schema needs a file, and Hive cannot read one at this location.
    """
    facts = {TOPIC: topic, SUBJECT: subject, VERSION: str(version), REVISION: revision, **properties}
    if complete_until is not None:
        facts[COMPLETE_UNTIL] = complete_until
    if len(schema_text) <= literal_chars_max:
        facts[SCHEMA_LITERAL] = schema_text
    else:
        facts[SCHEMA_URL] = _checked_url(schema_url(location, schema_text), len(schema_text))
    return TableState(
        database=database,
        name=name,
        location=location,
        # Strict, because readers of the table refuse invalid defaults.
        columns=table_columns(parse_schema(schema_text, source=f"table {database}.{name}"), partition_columns),
        partition_columns=tuple(partition_columns),
        properties=MappingProxyType(facts),
        schema_text=schema_text,
    )


def literal_columns(properties: Mapping[str, str], partition_columns: Sequence[str]) -> tuple[Column, ...]:
    """Returns the columns that readers get from the schema in `avro.schema.literal`; empty without this property, or if
    it is not the schema of a table."""
    literal = properties.get(SCHEMA_LITERAL)
    try:
        return () if literal is None else table_columns(parse_schema(literal, strict=False), partition_columns)
    except (AvroSchemaError, UnsupportedColumn):
        return ()  # a table that was created manually may contain anything; its owner check does not use columns


def schema_file_name(schema_text: str) -> str:
    """Returns the name of the file in which a schema text is published: 16 hex digits of the text's SHA-256 and
    `.avsc`."""
    return f"{hashlib.sha256(schema_text.encode()).hexdigest()[:16]}.avsc"


def schema_url(location: str, schema_text: str) -> str:
    """Returns the URL at which a table at `location` publishes this text."""
    return f"{location.rstrip('/')}/{SCHEMA_DIRECTORY}/{schema_file_name(schema_text)}"


def local_location(path: Path) -> str:
    """Returns the URI of a local directory in Hadoop's spelling.

    Hadoop does not decode percent signs, so `Path.as_uri` would name another directory.
    """
    return f"file://{path.resolve()}"


def is_same_location(one: str, other: str) -> bool:
    """Whether two URIs name the same directory, such as `file:/a`, `file:///a`, `/a` and `file:/a/`."""
    return _normalize_location(one) == _normalize_location(other)


def _checked_url(url: str, schema_chars: int) -> str:
    """Returns the URL unchanged, after checking that Hive can open a file with it. Hive uses the value of
    `avro.schema.url` both as a URI and as a plain path, so it must have no character that differs between the two.

    Args:
        schema_chars: length of the schema, for the message.

    Raises:
        UnusableLocation: Hive cannot open a file with this URL.
    """
    invalid = _NOT_URI.search(url)
    if invalid is not None:
        raise UnusableLocation(
            url,
            f"a schema of {schema_chars} characters must be in a file instead of a table property, and Hive "
            f"cannot open a file with a path that contains {invalid[0]!r}; set loader.warehouse to a path without it",
        )
    return url


def _normalize_location(location: str) -> str:
    for prefix in ("file://", "file:"):
        if location.startswith(prefix + "/"):
            return location[len(prefix) :].rstrip("/")
    return location.rstrip("/")
