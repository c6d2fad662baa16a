"""One table: its columns with docs and rules, the changes of its columns, and its days."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from flask import Blueprint, abort, render_template, request
from werkzeug.wrappers import Response

from headrace.console.caching import unchanged
from headrace.console.context import console, viewer
from headrace.console.pages.hive_tables import age_ms, names_in_metastore, state_in
from headrace.console.sources import Reading
from headrace.console.tables import CellKind, PagedTable, TableColumn, refuse_unknown_rows
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.inspect.history import TableChange, table_history
from headrace.loader.inspect.topic_tables import (
    DescribedColumn,
    LoadedTable,
    TableDay,
    TableDays,
    days_of_table,
    described_columns,
    table_rules,
    topic_named,
    topic_tables,
)
from headrace.loader.load_schema import ExplainedRule
from headrace.pipeline.load import table_settings
from headrace.pipeline.storage import warehouse_storage
from headrace.settings import Settings

blueprint = Blueprint("hive_table", __name__)

AGE_S: Final = 15.0
DAYS_MAX: Final = 31
"""Days of one page: each is read from a file with all files of the day."""
VIEWS: Final = {"columns": "Columns", "rules": "Rules", "history": "History", "days": "Days"}
VIEWS_OF_SCHEMA: Final = frozenset({"columns", "rules", "history"})
COMMANDS: Final = ("explain", "history", "plan")
_DAY: Final = re.compile(r"dt=\d{4}-\d{2}-\d{2}")


def _rule_words(one: DescribedColumn) -> str:
    words = []
    for rule in one.rules:
        part = rule.column.partition(".")[2]
        words.append(f"{rule.rule} in {rule.version}" + (f" ({part})" if part else ""))
    return "; ".join(words)


def _fields(one: DescribedColumn) -> str:
    return "" if len(one.fields) == 1 and one.fields[0].lower() == one.name else ", ".join(one.fields)


COLUMNS: Final[PagedTable[DescribedColumn]] = PagedTable(
    "columns",
    (
        TableColumn("column", "column", lambda one: one.name, CellKind.CODE),
        TableColumn("type", "type", lambda one: one.type, CellKind.CODE),
        TableColumn("since", "since version", lambda one: one.since, CellKind.NUMBER),
        TableColumn("fields", "other fields", _fields, CellKind.CODE),
        TableColumn("rules", "rules", _rule_words),
        TableColumn("doc", "doc", lambda one: one.doc),
    ),
    lambda one: (one.name, one.type, one.doc, _rule_words(one), *one.fields),
    "The table has no columns.",
)

RULES: Final[PagedTable[ExplainedRule]] = PagedTable(
    "rules",
    (
        TableColumn("version", "version", lambda one: one.version, CellKind.NUMBER),
        TableColumn("column", "column", lambda one: one.column, CellKind.CODE),
        TableColumn("rule", "rule", lambda one: one.rule),
        TableColumn("detail", "detail", lambda one: one.detail),
        TableColumn("reason", "because", lambda one: one.reason),
    ),
    lambda one: (one.column, one.rule, one.detail, one.reason),
    "Every field is a column of the same name and type.",
)

HISTORY: Final[PagedTable[TableChange]] = PagedTable(
    "history",
    (
        TableColumn("committed", "committed", lambda one: one.committed_at_ms, CellKind.TIME),
        TableColumn("commit", "commit", lambda one: one.commit_number, CellKind.NUMBER),
        TableColumn("version", "version", lambda one: one.version, CellKind.NUMBER),
        TableColumn("subject", "subject", lambda one: one.subject),
        TableColumn("changes", "changes", lambda one: "; ".join(one.changes) or "no column changed"),
    ),
    lambda one: (one.subject, *one.changes),
    "The columns have not changed.",
)

DAYS: Final[PagedTable[TableDay]] = PagedTable(
    "days",
    (
        TableColumn("day", "day", lambda one: one.day.removeprefix("dt=")),
        TableColumn("partitions", "partitions", lambda one: one.partitions, CellKind.NUMBER),
        TableColumn("rows", "rows", lambda one: one.rows, CellKind.NUMBER),
        TableColumn("bytes", "size", lambda one: one.bytes, CellKind.BYTES),
        TableColumn("files", "files", lambda one: one.files, CellKind.NUMBER),
    ),
    lambda one: (one.day,),
    "The table has no files.",
)


TABLES: Final[Mapping[str, PagedTable[Any]]] = {one.name: one for one in (COLUMNS, RULES, HISTORY, DAYS)}


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table, and the rows of one of its views. The view of days also has `days`."""

    table: LoadedTable
    rows: tuple[Any, ...]
    days: TableDays


@blueprint.get("/tables/<name:topic>", merge_slashes=False)
def page(topic: str) -> str | Response:
    context = console()
    shown = request.args.get("show", "")
    shown = shown if shown in VIEWS else COLUMNS.name
    until = request.args.get("until", "")
    until = until if _DAY.fullmatch(until) else ""
    found = _read(topic, shown, until)
    metastore = names_in_metastore()
    if (response := unchanged(found, metastore)) is not None:
        return response
    refuse_unknown_rows(found)
    if not found.is_known:
        return render_template("hive_table.html", topic=topic, found=found)
    if not found.known:
        abort(404, f"The topic {topic} has not been loaded.")
    (one,) = found.known
    may_read = viewer().may_read_schema(one.table.subject)
    is_hidden = shown in VIEWS_OF_SCHEMA and not may_read
    if is_hidden and "as" in request.args:
        abort(403)
    extra = {"show": shown} if shown != COLUMNS.name else {}
    extra |= {"until": until} if until else {}
    view = TABLES[shown].view(() if is_hidden else one.rows, context.now_ms(), extra=extra)
    return view.export() or render_template(
        "hive_table.html",
        topic=one.table.topic,
        found=found,
        one=one.table,
        days=one.days,
        age_ms=age_ms(one.table, context.now_ms()),
        state=state_in(metastore.value, one.table.table),
        metastore=metastore,
        database=context.settings.hive.database,
        may_read=may_read,
        is_hidden=is_hidden,
        shown=shown,
        views=VIEWS,
        until=until,
        table=view,
        commands=[f"headrace hive {verb} {shlex.quote(one.table.topic)}" for verb in COMMANDS],
    )


def _read(topic: str, shown: str, until: str) -> Reading[tuple[FoundTable, ...]]:
    """Returns the table of a topic with the rows of a view; no table if the topic has not been loaded."""
    context = console()
    return context.sources.read(
        f"table {shown} {until} {topic}",
        lambda: context.commits.read(lambda log: read_table(log, context.settings, topic, shown, until)),
        max_age_s=AGE_S,
    )


def read_table(log: CommitLog, settings: Settings, name: str, shown: str, until: str) -> tuple[FoundTable, ...]:
    """Returns a table with the rows of a view; no table if the topic has not been loaded.

    Args:
        log: the commit log, after a call of `read_state`.
        name: the name of the topic or of its table.
        shown: the view, a key of `VIEWS`.
        until: the newest day of the view of days, "" for the newest of all.

    Raises:
        LoaderError: a commit cannot be read.
        OSError: the storage failed.
    """
    topic = topic_named(log.state, name)
    known = log.state.topics.get(topic)
    if known is None:
        return ()
    rows: tuple[Any, ...] = ()
    days = TableDays()
    if shown == COLUMNS.name:
        rows = described_columns(topic, known, table_settings(settings, warehouse_storage(settings)))
    elif shown == RULES.name:
        rows = table_rules(known)[1]
    elif shown == HISTORY.name:
        rows = table_history(log, topic)[::-1]
    else:
        days = days_of_table(FileIndex(log), topic, until, DAYS_MAX)
        rows = days.shown
    return tuple(FoundTable(one, rows, days) for one in topic_tables(log, topic))
