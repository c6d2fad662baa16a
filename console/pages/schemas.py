"""All subjects of the registry, with a search for a subject, schema id, field or doc: which schema has this field?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from flask import Blueprint, render_template, url_for
from werkzeug.wrappers import Response

from headrace.console.context import console, viewer
from headrace.console.registry_reader import IndexedSubject
from headrace.console.sources import Reading
from headrace.console.tables import CellKind, PagedTable, TableColumn, query_text, refuse_unknown_rows
from headrace.registry.client import SubjectVersion

blueprint = Blueprint("schemas", __name__)

NAMES_AGE_S: Final = 5.0
INDEX_AGE_S: Final = 60.0
MATCHES_MAX: Final = 3
"""Matching fields that a row names."""
USAGES_MAX: Final = 50
DOC_CHARS_MAX: Final = 120
ID_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ListedSubject:
    """A subject of the list. `newest` is None if it is not known; `query` is the search, "" for none."""

    subject: str
    newest: IndexedSubject | None
    query: str = ""

    @property
    def found(self) -> str:
        """The fields that match the search. Computed only for the rows of a page, of thousands that may match."""
        if self.newest is None or not self.query:
            return ""
        is_id = self.query == str(self.newest.schema_id)
        return _listed([*(["the schema id"] if is_id else []), *_matches(self.newest, self.query.lower())])

    @property
    def version(self) -> int | None:
        return None if self.newest is None else self.newest.version

    @property
    def schema_id(self) -> int | None:
        return None if self.newest is None else self.newest.schema_id

    @property
    def fields(self) -> int | None:
        return None if self.newest is None else len(self.newest.fields)

    @property
    def registered_ms(self) -> int | None:
        return None if self.newest is None else self.newest.registered_ms


def subject_url(subject: str) -> str:
    return url_for("subject.page", name=subject)


SUBJECTS: Final[PagedTable[ListedSubject]] = PagedTable(
    "schemas",
    (
        TableColumn("subject", "subject", lambda one: one.subject, href=lambda one: subject_url(one.subject)),
        TableColumn("version", "newest version", lambda one: one.version, CellKind.NUMBER),
        TableColumn("id", "schema id", lambda one: one.schema_id, CellKind.NUMBER),
        TableColumn("fields", "fields", lambda one: one.fields, CellKind.NUMBER),
        TableColumn("registered", "registered", lambda one: one.registered_ms, CellKind.TIME),
        TableColumn("found", "found in", lambda one: one.found),
    ),
    lambda one: (one.subject,),
    "No subject that you may read is registered.",
)


@blueprint.get("/schemas")
def page() -> str | Response:
    context, query = console(), query_text()
    names = context.sources.read("registry subjects", context.registry.subjects, max_age_s=NAMES_AGE_S)
    refuse_unknown_rows(names)
    if not names.is_known:
        return render_template("schemas.html", names=names)
    index = context.sources.read("registry fields", context.registry.index, max_age_s=INDEX_AGE_S)
    newest = index.value.subjects if index.value is not None else {}
    readable = [one for one in names.known if viewer().may_read_schema(one)]
    rows = search_subjects([ListedSubject(one, newest.get(one)) for one in readable], query)
    view = SUBJECTS.view(rows, context.now_ms(), query=query)
    if (export := view.export(names, index)) is not None:
        return export
    usages = _usages(query)
    found = usages.value or () if usages is not None else ()
    return render_template(
        "schemas.html",
        table=view,
        names=names,
        index=index,
        usages=usages,
        usages_shown=[one for one in found if viewer().may_read_schema(one.subject)][:USAGES_MAX],
    )


def _usages(query: str) -> Reading[list[SubjectVersion]] | None:
    """Returns the subjects and versions with a schema id, if the search is one."""
    if not (query.isascii() and query.isdecimal() and int(query) <= ID_MAX):
        return None
    context, schema_id = console(), int(query)
    return context.sources.read(f"schema id {schema_id}", lambda: context.registry.usages(schema_id))


def search_subjects(rows: Sequence[ListedSubject], query: str) -> list[ListedSubject]:
    """Returns the rows with the search in the subject, in the path or the doc of a field, or as the schema id: those
    that match by subject first."""
    if not query:
        return list(rows)
    lower = query.lower()
    by_name: list[ListedSubject] = []
    others: list[ListedSubject] = []
    for row in rows:
        newest = row.newest
        is_named = lower in row.subject.lower()
        if is_named or (newest is not None and (lower in newest.text or query == str(newest.schema_id))):
            (by_name if is_named else others).append(ListedSubject(row.subject, newest, query))
    return by_name + others


def _matches(newest: IndexedSubject, lower: str) -> Iterable[str]:
    for field in newest.fields:
        if lower in field.path.lower():
            yield f"field {field.path}"
        elif lower in field.doc.lower():
            at = field.doc.lower().index(lower)
            start = max(0, at - DOC_CHARS_MAX // 2)
            doc = " ".join(field.doc[start : start + DOC_CHARS_MAX].split())
            dots = "…" if start else ""
            yield f"doc of {field.path}: {dots}{doc}" + ("…" if start + DOC_CHARS_MAX < len(field.doc) else "")


def _listed(found: Sequence[str]) -> str:
    rest = len(found) - MATCHES_MAX
    return "; ".join(found[:MATCHES_MAX]) + (f"; {rest} more" if rest > 0 else "")
