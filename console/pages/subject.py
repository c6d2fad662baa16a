"""One subject: its versions, and the fields of the newest one with the versions that added and last changed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from flask import Blueprint, Response, abort, render_template, request, url_for

from headrace.console.context import console, viewer
from headrace.console.registry_reader import (
    ShownVersion,
    SubjectConfiguration,
    SubjectHistory,
    reference_subject,
)
from headrace.console.schema_changes import topic_of
from headrace.console.schema_rows import FIELDS_MAX, BlamedField, RowMark, blame_fields, list_fields, pair_fields
from headrace.console.sources import Reading
from headrace.console.tables import CellKind, PagedTable, TableColumn, refuse_unknown_rows
from headrace.registry.client import SchemaReference

blueprint = Blueprint("subject", __name__)

CONFIGURATION_AGE_S: Final = 5.0
BLAME_AGE_S: Final = 300.0
NUMBER_CHARS_MAX: Final = 9


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A row of the table of versions. `changes` compares the version with the one before; "" if that is not known."""

    subject: str
    version: ShownVersion
    fields: int | None
    changes: str
    before: int | None

    @property
    def compare_url(self) -> str:
        if self.before is None:
            return ""
        numbers: dict[str, Any] = {"from": self.before, "to": self.version.version}
        return url_for("schema_diff.page", name=self.subject, **numbers)

    @property
    def references(self) -> str:
        return "; ".join(reference_words(self.subject, one) for one in self.version.references)


@dataclass(frozen=True, slots=True)
class FieldHistory:
    """The fields of the newest version, and the changes of each version by its number."""

    fields: tuple[BlamedField, ...]
    counts: dict[int, int]
    changes: dict[int, str]


VERSIONS: Final[PagedTable[HistoryRow]] = PagedTable(
    "versions",
    (
        TableColumn("version", "version", lambda one: one.version.version, CellKind.NUMBER),
        TableColumn("id", "schema id", lambda one: one.version.schema_id, CellKind.NUMBER),
        TableColumn("registered", "registered", lambda one: one.version.registered_ms, CellKind.TIME),
        TableColumn("fields", "fields", lambda one: one.fields, CellKind.NUMBER),
        TableColumn("changes", "changes", lambda one: one.changes, href=lambda one: one.compare_url),
        TableColumn("references", "references", lambda one: one.references),
    ),
    lambda one: (str(one.version.version), str(one.version.schema_id), one.changes, one.references),
    "The subject has no versions.",
)

FIELDS: Final[PagedTable[BlamedField]] = PagedTable(
    "fields",
    (
        TableColumn("field", "field", lambda one: one.path, CellKind.CODE),
        TableColumn("type", "type", lambda one: one.type, CellKind.CODE),
        TableColumn("default", "default", lambda one: one.default, CellKind.CODE),
        TableColumn("since", "since version", lambda one: one.since, CellKind.NUMBER),
        TableColumn("changed", "changed in version", lambda one: one.changed, CellKind.NUMBER),
        TableColumn("former", "earlier names", lambda one: ", ".join(one.former), CellKind.CODE),
        TableColumn("doc", "doc", lambda one: one.doc),
    ),
    lambda one: (one.path, one.type, one.doc, *one.former),
    "The newest version has no fields.",
)


@blueprint.get("/schemas/subject")
def page() -> str | Response:
    context = console()
    name = requested_subject()
    history = read_history(name)
    refuse_unknown_rows(history)
    if not history.is_known:
        return render_template("subject.html", subject=name, history=history)
    configuration = read_configuration(name)
    shows_versions = request.args.get("show") == "versions"
    fields = _read_fields(history)
    extra = {"name": name, **({"show": "versions"} if shows_versions else {})}
    table: object
    if shows_versions:
        view = VERSIONS.view(version_rows(history.known, fields.value), context.now_ms(), extra=extra)
        export, table = view.export(), view
    else:
        found = FIELDS.view(fields.value.fields if fields.value else (), context.now_ms(), extra=extra)
        export, table = found.export(fields), found
    if export is not None:
        return export
    return render_template(
        "subject.html",
        subject=name,
        history=history,
        configuration=configuration,
        fields=fields,
        table=table,
        shows_versions=shows_versions,
        topic=topic_of(context.settings.loader, name),
        newest=history.known.newest,
        before=history.known.versions[-2].version if len(history.known.versions) > 1 else None,
        fields_max=FIELDS_MAX,
        is_cut=bool(fields.value and len(fields.value.fields) >= FIELDS_MAX),
    )


@blueprint.get("/schemas/text")
def text() -> Response:
    """Returns the text of a version as a file."""
    history = read_history(requested_subject())
    if not history.is_known:
        abort(503, f"The versions of the subject are not known: {history.reason}.")
    number = version_number("version")
    found = history.known.newest if number is None else history.known.find(number)
    if found is None:
        abort(404, f"The subject has no version {number}, or an older one than this page reads.")
    response = Response(found.text.encode("utf-8", "backslashreplace"), content_type="application/octet-stream")
    response.headers["Content-Disposition"] = f'attachment; filename="schema-{found.schema_id}.avsc"'
    return response


def requested_subject() -> str:
    """Returns the subject that the URL names, if the viewer may read it."""
    name = request.args.get("name", "")
    if not name:
        abort(404, "The address names no subject.")
    if not viewer().may_read_schema(name):
        abort(403)
    return name


def version_number(key: str) -> int | None:
    """Returns a version number in the URL, None without a valid one."""
    value = request.args.get(key, "")
    return int(value) if value.isascii() and value.isdecimal() and len(value) <= NUMBER_CHARS_MAX else None


def read_history(subject: str) -> Reading[SubjectHistory]:
    context = console()
    # Not cached here: parsed versions may be large. The registry's client caches as many as its limit permits.
    history = context.sources.read(f"subject versions {subject}", lambda: context.registry.history(subject))
    if history.is_known and not history.known.versions:
        abort(404, f"The subject {subject} has no versions.")
    return history


def read_configuration(subject: str) -> Reading[SubjectConfiguration]:
    context = console()
    return context.sources.read(
        f"subject settings {subject}", lambda: context.registry.configuration(subject), max_age_s=CONFIGURATION_AGE_S
    )


def hidden_subjects(subjects: Sequence[str]) -> str:
    """Returns the reason why findings that depend on these subjects may not be shown; "" if they may."""
    hidden = [one for one in subjects if not viewer().may_read_schema(one)]
    return f"it depends on the subject {hidden[0]}, which you may not read" if hidden else ""


def _read_fields(history: Reading[SubjectHistory]) -> Reading[FieldHistory]:
    found = history.known
    if found.newest.schema is None:
        return Reading(None, found.newest.problem, history.read_at_ms)
    ids = [(one.version, one.schema_id) for one in found.versions]
    return console().sources.read(
        f"subject fields {ids!r} {found.subject!r}", lambda: field_history(found), max_age_s=BLAME_AGE_S
    )


def field_history(history: SubjectHistory) -> FieldHistory:
    """Returns the fields of the newest version and the changes of each version. Versions that cannot be read are left
    out, so that their changes count for the next one."""
    versions = [(one.version, one.schema) for one in history.versions if one.schema is not None]
    is_whole = not history.omitted and history.versions[0].schema is not None
    changes: dict[int, str] = {}
    for (_, before), (number, after) in pairwise(versions):
        marks = [pair.mark for pair in pair_fields(before, after)]
        counts = [(marks.count(mark), mark.value) for mark in RowMark if mark is not RowMark.SAME]
        changes[number] = ", ".join(f"{count} {word}" for count, word in counts if count) or "no field changed"
    counts_of = {number: len(list_fields(schema)) for number, schema in versions}
    return FieldHistory(tuple(blame_fields(versions, is_whole=is_whole)), counts_of, changes)


def version_rows(history: SubjectHistory, fields: FieldHistory | None) -> list[HistoryRow]:
    """Returns the rows of the table of versions, the newest first."""
    rows = []
    before: int | None = None
    for one in history.versions:
        changes = fields.changes.get(one.version, "") if fields else ""
        if one.schema is None:
            changes = one.problem
        elif before is not None and not changes:
            changes = "compare"
        count = fields.counts.get(one.version) if fields else None
        rows.append(HistoryRow(history.subject, one, count, changes, before))
        before = one.version
    return rows[::-1]


def reference_words(subject: str, one: SchemaReference) -> str:
    """Returns a reference of a subject's version as words: the type, and the version that defines it."""
    return f"{one.name} from {reference_subject(subject, one)} version {one.version}"
