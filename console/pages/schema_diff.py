"""Two versions of a subject side by side: are they compatible, and how do the columns of the table change?"""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Response, render_template, request

from headrace.compat.finding import Direction
from headrace.console.context import console
from headrace.console.pages.subject import (
    hidden_subjects,
    read_configuration,
    read_history,
    reference_words,
    requested_subject,
    version_number,
)
from headrace.console.registry_reader import ShownVersion, SubjectHistory, subjects_of
from headrace.console.schema_changes import (
    ComparedField,
    SchemaComparison,
    TableChanges,
    compare_versions,
    is_required,
    table_changes,
    topic_of,
)
from headrace.console.schema_rows import SchemaCell, TextRow, text_rows
from headrace.console.sources import Reading
from headrace.console.tables import CellKind, PagedTable, TableColumn, refuse_unknown_rows

blueprint = Blueprint("schema_diff", __name__)

TABLE_AGE_S: Final = 60.0


def _words(cell: SchemaCell | None) -> str:
    """Returns the type and the default of a field."""
    if cell is None:
        return ""
    words, default = (" ".join(text for text, _ in pieces) for pieces in (cell.type, cell.default))
    return f"{words} = {default}" if default else words


def _findings(one: ComparedField) -> str:
    return " ".join(f"{found.direction.value.upper()}: {found.sentence}." for found in one.findings)


COMPARED: Final[PagedTable[ComparedField]] = PagedTable(
    "schema-diff",
    (
        TableColumn("field", "field", lambda one: one.row.path, CellKind.CODE),
        TableColumn("mark", "mark", lambda one: one.row.mark.value),
        TableColumn("before", "before", lambda one: _words(one.row.before), CellKind.CODE),
        TableColumn("after", "after", lambda one: _words(one.row.after), CellKind.CODE),
        TableColumn("findings", "findings", _findings),
    ),
    lambda one: (one.row.path,),
    "",
)


@blueprint.get("/schemas/diff")
def page() -> str | Response:
    context = console()
    name = requested_subject()
    history = read_history(name)
    refuse_unknown_rows(history)
    if history.value is None:
        return render_template("schema_diff.html", subject=name, history=history, before=None, after=None)
    before, after = chosen_versions(history.value, version_number("from"), version_number("to"))
    configuration = read_configuration(name)
    comparison = _read_comparison(name, before, after)
    refuse_unknown_rows(comparison)
    if comparison.value is not None:
        export = COMPARED.view(comparison.value.fields, context.now_ms(), query="").export()
        if export is not None:
            return export
    shows_text = request.args.get("show") == "text"
    return render_template(
        "schema_diff.html",
        subject=name,
        history=history,
        numbers=[one.version for one in history.value.versions],
        before=before,
        after=after,
        level=configuration.value.level if configuration.value else "",
        directions=tuple(Direction),
        is_required=is_required,
        comparison=comparison,
        table=_read_table(name, history.value, before, after),
        topic=topic_of(context.settings.loader, name),
        references=reference_changes(name, before, after),
        shows_text=shows_text,
        text=_read_text(name, before, after) if shows_text else None,
    )


def chosen_versions(
    history: SubjectHistory, first: int | None, second: int | None
) -> tuple[ShownVersion, ShownVersion]:
    """Returns the two versions to compare: by default the newest one and the one before."""
    versions = history.versions
    after = (history.find(second) if second is not None else None) or versions[-1]
    before = history.find(first) if first is not None else None
    if before is None:
        earlier = [one for one in versions if one.version < after.version]
        before = earlier[-1] if earlier else versions[0]
    return before, after


def reference_changes(subject: str, before: ShownVersion, after: ShownVersion) -> list[tuple[str, str]]:
    """Returns the references that only one of the versions has, with `−` for the earlier and `+` for the later one."""
    old, new = ({reference_words(subject, one): None for one in version.references} for version in (before, after))
    return [("−", one) for one in old if one not in new] + [("+", one) for one in new if one not in old]


def _read_comparison(name: str, before: ShownVersion, after: ShownVersion) -> Reading[SchemaComparison]:
    now_ms = console().now_ms()
    if (reason := hidden_subjects(subjects_of((before, after)))) != "":
        return Reading(None, reason, now_ms)
    for one in (before, after):
        if one.schema is None:
            return Reading(None, f"version {one.version} cannot be read: {one.problem}", now_ms)
    old, new = before.schema, after.schema
    assert old is not None
    assert new is not None
    return console().sources.read(
        f"schema diff {before.version}:{before.schema_id} {after.version}:{after.schema_id} {name}",
        lambda: compare_versions(before.version, old, new),
    )


def _read_table(name: str, history: SubjectHistory, before: ShownVersion, after: ShownVersion) -> Reading[TableChanges]:
    """Returns the changes of the table's columns from the lower of the two versions to the higher one, because loads
    fold versions in ascending order."""
    first, last = sorted((before.version, after.version))
    versions = [one for one in history.versions if one.version <= last]
    reason = hidden_subjects(subjects_of(versions))
    if history.omitted:
        reason = f"the columns depend on {history.omitted} older versions, which this page does not read"
    if reason:
        return Reading(None, reason, console().now_ms())
    ids = [(one.version, one.schema_id) for one in versions]
    return console().sources.read(
        f"table changes {first} {last} {ids!r} {name!r}",
        lambda: table_changes(versions, first, last),
        max_age_s=TABLE_AGE_S,
    )


def _read_text(name: str, before: ShownVersion, after: ShownVersion) -> Reading[list[TextRow]]:
    return console().sources.read(
        f"schema text {before.version}:{before.schema_id} {after.version}:{after.schema_id} {name}",
        lambda: text_rows(before.text, after.text),
    )
