"""A Hive table as a value: what is there, and what a topic's load schema asks for.

The tables are external, stored as Avro, partitioned by strings, and say their columns by an Avro schema in the table
properties. `columns` is what a reader of that schema sees. The columns stored beside it in the metastore are those
of the day the table was made and are not kept up: readers take the schema, partitions share the stored ones while
they stay the same, and a change of them makes the metastore rewrite every partition.
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
SCHEMA_LITERAL: Final = "avro.schema.literal"
SCHEMA_URL: Final = "avro.schema.url"

LITERAL_CHARS_MAX = 30_000
"""A metastore whose tables DataNucleus made keeps 32,672 characters of a property; a longer one fails the CREATE."""

_NOT_URI = re.compile(r"""[\s"<>\\^`{|}#?\[\]]|%(?![0-9A-Fa-f]{2})""")

SCHEMA_DIRECTORY = "_schema"  # hidden from readers of the table's directory


@dataclass(frozen=True, slots=True)
class TableState:
    """A table, present or wanted. `location` is a URI in Hadoop's spelling: nothing in it is percent-encoded.

    `schema_text` is the text behind `avro.schema.url` where that is used and known; it takes no part in equality,
    since the URL names it by its hash.
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
        """The topic whose table it is, or None where it was not made by Headrace."""
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
    """The table that a topic's load schema asks for.

    Args:
        location: the topic's directory, see `local_location`.
        version: of the subject, the newest that the load schema holds.
        schema_text: the load schema, every named type written out.
        revision: new with every change of the table, such as `<slot>-<work id>`; it alone is never a difference.
        complete_until: up to where the table is complete; None leaves what the table says.
        properties: further ones to set.
        literal_chars_max: a longer schema text is put beside the data and named by `avro.schema.url`.

    Raises:
        UnsupportedColumn: a field that Hive cannot hold.
        SchemaParseError: the text is no Avro schema.
        UnusableLocation: the schema needs a file of its own and Hive cannot read one there.
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
        # Strictly, unlike what others wrote: readers of the table refuse it for an invalid default.
        columns=table_columns(parse_schema(schema_text, source=f"table {database}.{name}"), partition_columns),
        partition_columns=tuple(partition_columns),
        properties=MappingProxyType(facts),
        schema_text=schema_text,
    )


def literal_columns(properties: Mapping[str, str], partition_columns: Sequence[str]) -> tuple[Column, ...]:
    """What readers see of a table with these properties; nothing where they hold no schema that can be read."""
    literal = properties.get(SCHEMA_LITERAL)
    try:
        return () if literal is None else table_columns(parse_schema(literal, strict=False), partition_columns)
    except (AvroSchemaError, UnsupportedColumn):
        return ()  # a table made by hand may hold anything; it is foreign whatever its columns are


def schema_file_name(schema_text: str) -> str:
    """Name of the file that holds exactly this text: 16 hex digits of its SHA-256."""
    return f"{hashlib.sha256(schema_text.encode()).hexdigest()[:16]}.avsc"


def schema_url(location: str, schema_text: str) -> str:
    """Where a table at `location` publishes this text."""
    return f"{location.rstrip('/')}/{SCHEMA_DIRECTORY}/{schema_file_name(schema_text)}"


def local_location(path: Path) -> str:
    """The URI of a local directory in Hadoop's spelling.

    Hadoop does not decode percent signs in a path's text, so `Path.as_uri` would name another directory.
    """
    return f"file://{path.resolve()}"


def is_same_location(one: str, other: str) -> bool:
    """Whether two URIs name one directory: `file:/a`, `file:///a`, `/a` and `file:/a/` do."""
    return _plain(one) == _plain(other)


def _checked_url(url: str, schema_chars: int) -> str:
    """Hive takes `avro.schema.url` for a URI and for a path that is not decoded, so it must be the same as both."""
    misfit = _NOT_URI.search(url)
    if misfit is not None:
        raise UnusableLocation(
            url,
            f"its schema has {schema_chars} characters and must be a file, and Hive cannot open one whose path holds "
            f"{misfit[0]!r}; set loader.warehouse to a path without it",
        )
    return url


def _plain(location: str) -> str:
    for prefix in ("file://", "file:"):
        if location.startswith(prefix + "/"):
            return location[len(prefix) :].rstrip("/")
    return location.rstrip("/")
