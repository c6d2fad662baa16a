"""All tables: topic, owner, size, and the time until which each is complete."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from flask import Blueprint, render_template, url_for
from werkzeug.wrappers import Response

from headrace.console.caching import unchanged
from headrace.console.context import console, viewer
from headrace.console.errors import ConsoleError
from headrace.console.sources import Reading
from headrace.console.tables import CellKind, PagedTable, TableColumn
from headrace.hive_ddl.metastore_names import table_names
from headrace.loader.inspect.topic_tables import LoadedTable, topic_tables
from headrace.settings import Settings
from headrace.settings.addresses import resolve_metastore

blueprint = Blueprint("hive_tables", __name__)

AGE_S: Final = 15.0
NOT_KNOWN, PRESENT, MISSING = "not known", "present", "missing"


@dataclass(frozen=True, slots=True)
class TableRow:
    """A table as the page shows it. `owner` is "" for viewers without permission to read the subject. `age_ms` is the
    time since the table was complete. `in_metastore` states whether the metastore has the table."""

    found: LoadedTable
    owner: str
    age_ms: int | None
    in_metastore: str


TABLES: Final[PagedTable[TableRow]] = PagedTable(
    "tables",
    (
        TableColumn(
            "topic",
            "topic",
            lambda one: one.found.topic,
            href=lambda one: url_for("hive_table.page", topic=one.found.topic),
        ),
        TableColumn("table", "table", lambda one: one.found.table),
        TableColumn("owner", "owner", lambda one: one.owner),
        TableColumn("version", "version", lambda one: one.found.version, CellKind.NUMBER),
        TableColumn("rows", "rows", lambda one: one.found.rows, CellKind.NUMBER),
        TableColumn("bytes", "size", lambda one: one.found.bytes, CellKind.BYTES),
        TableColumn("files", "files", lambda one: one.found.files, CellKind.NUMBER),
        TableColumn("quarantined", "quarantined", lambda one: one.found.quarantined or None, CellKind.NUMBER),
        TableColumn("complete_until", "complete until", lambda one: one.found.complete_until_ms, CellKind.TIME),
        TableColumn("age", "age", lambda one: one.age_ms, CellKind.DURATION),
        TableColumn("metastore", "in the metastore", lambda one: one.in_metastore, CellKind.STATE),
    ),
    lambda one: (one.found.topic, one.found.table, one.owner, one.in_metastore),
    "No topic has been loaded yet.",
)


@blueprint.get("/tables")
def page() -> str | Response:
    context = console()
    now_ms = context.now_ms()
    found = context.sources.read("tables", lambda: context.commits.read(topic_tables), max_age_s=AGE_S)
    metastore = names_in_metastore()
    if (response := unchanged(found, metastore)) is not None:
        return response
    rows = [
        TableRow(one, visible_owner(one), age_ms(one, now_ms), state_in(metastore.value, one.table))
        for one in found.value or ()
    ]
    view = TABLES.view(rows, now_ms)
    return view.export(found) or render_template("hive_tables.html", table=view, tables=found, metastore=metastore)


def names_in_metastore() -> Reading[frozenset[str]]:
    """Returns the names of the tables that the metastore has."""
    context = console()
    return context.sources.read("metastore names", lambda: read_names(context.settings), max_age_s=AGE_S)


def read_names(settings: Settings) -> frozenset[str]:
    """Returns the names of the tables in the database of the topics' tables.

    Raises:
        ConsoleError: there is no metastore service, or it does not answer.
    """
    metastore = resolve_metastore(settings)
    if metastore is None:
        raise ConsoleError("no metastore service runs, and hive.metastore is not set")
    names = table_names(metastore, settings.hive.database)
    if names is None:
        raise ConsoleError(f"the metastore {metastore} does not answer")
    return names


def state_in(names: Collection[str] | None, table: str) -> str:
    if names is None:
        return NOT_KNOWN
    return PRESENT if table in names else MISSING


def visible_owner(found: LoadedTable) -> str:
    """Returns the owner, which the schema names; "" if the viewer may not read the schema."""
    return found.owner if viewer().may_read_schema(found.subject) else ""


def age_ms(found: LoadedTable, now_ms: int) -> int | None:
    return None if found.complete_until_ms is None else max(0, now_ms - found.complete_until_ms)
