"""Folds the versions of a subject into a load schema, and records the rules that were applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.avro_schema import JsonValue, Record, Schema
from headrace.hive_ddl.types import column_comment
from headrace.loader.load_schema.columns import RENAMED_FROM, Folding
from headrace.loader.load_schema.kafka_record import kafka_name
from headrace.loader.load_schema.merge import LoadSchemaTooLarge, Note
from headrace.loader.load_schema.stored_route import StoredRoute, route_entries
from headrace.loader.load_schema.text import load_record, load_text, root_record
from headrace.loader.load_schema.types import LOAD_TEXT_CHARS_MAX, RESERVED_COLUMNS, load_name, prop, type_names

RULES: Final[Mapping[str, str]] = {
    "added": "a new field is appended, since readers by position must find the old columns where they were",
    "default-dropped": "Hive cannot fill this default into rows of files without the column, so such rows read null",
    "removed": "a field that a version lacks stays as a column, so that its history can be queried; new rows are null",
    "nullable": "a version allows null here",
    "widened": "the new type holds every old value by Avro promotion, so the column takes it and old files still read",
    "held": "the column's type can hold the new type exactly, so the column does not change",
    "renamed": "an alias says that the field is the old one; old files are found under the alias",
    "renamed-beside": "Hive cannot find records and decimals under an alias, so the new name is a separate column",
    "name-reused": "another field now has the old name of this one, so only earlier versions feed the column by it",
    "type-changed": "the old column cannot hold the new type, so its values have a separate column",
    "branches-gained": "old files do not read as a union, so the union has a separate column",
    "logical-changed": "another logical type gives the value another meaning, so it has a separate column",
    "decimal-changed": "another scale gives the digits another meaning, so its values have a separate column",
    "element-changed": "the elements cannot be read as the old ones, so the collection has a separate column",
    "union": "Hive readers refuse unions of several branches, so each branch is a nullable member of a record",
    "member-added": "a further branch of a union is a further nullable member",
    "enum-grown": "an enum keeps every symbol ever used, since a file with an unknown one cannot be read",
    "recursive": "Hive has no recursive types, so the value is its Avro-JSON text",
    "too-large": "the type is too large for a column, so the value is its Avro-JSON text",
    "too-deep": "the field lies too deep for a column, so the value is its Avro-JSON text",
    "decimal-too-wide": "Hive's decimals have at most 38 digits, so the column is the unscaled bytes",
    "name-taken": "Hive folds case, and files keep the names they were written with, so the name gets a suffix",
    "reserved-name": "the name belongs to a partition column, to Hive or to the loader, so it gets a suffix",
    "not-a-record": "messages that are not records are one column",
}
"""The rules of the fold by name, each with its reason."""

CREATING_RULES: Final = frozenset(
    {"added", "type-changed", "branches-gained", "logical-changed", "decimal-changed", "element-changed"}
)
"""The rules that append a column."""

OWNER: Final = "owner"
"""Attribute of a record, or property of the subject's metadata, that names the owner of the topic."""


@dataclass(frozen=True, slots=True)
class AppliedRule:
    """A rule (a key of `RULES`) that was applied to a column when a version was folded in. Most rules change the
    column; `held` does not. The column is a dotted path."""

    version: int
    column: str
    rule: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LoadState:
    """The load schema of a topic: its text, the versions folded into it, and the rules applied.

    `text` is a self-contained Avro record without the `kafka` column; "" before the first version. `routes` are the
    routes of the versions by schema id; they determine the columns of each version's messages permanently. `comments`
    has, by the position of a column, which never changes, the doc of the field that fed the column last. `newest` is
    the schema id of the last version folded in. `doc` and `owner` are the documentation of its record and the record's
    attribute `owner`, one line each, "" for none.
    """

    text: str = ""
    versions: tuple[int, ...] = ()
    applied: tuple[AppliedRule, ...] = ()
    routes: Mapping[int, StoredRoute] = field(default_factory=dict)
    comments: Mapping[int, str] = field(default_factory=dict)
    newest: int | None = None
    doc: str = ""
    owner: str = ""

    def to_json(self) -> dict[str, Any]:
        applied = [[rule.version, rule.column, rule.rule, rule.detail] for rule in self.applied]
        routes = {str(schema_id): route for schema_id, route in self.routes.items()}
        value = {"text": self.text, "versions": list(self.versions), "applied": applied, "routes": routes}
        comments = {str(position): comment for position, comment in self.comments.items()}
        newest = {} if self.newest is None else {"newest": self.newest}
        texts = {key: text for key, text in (("doc", self.doc), ("owner", self.owner)) if text}
        return {**value, **newest, **({"comments": comments} if comments else {}), **texts}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LoadState:
        applied = tuple(AppliedRule(*row) for row in value["applied"])
        # The initial state has no routes.
        routes = {int(schema_id): route for schema_id, route in value.get("routes", {}).items()}
        comments = {int(position): comment for position, comment in value.get("comments", {}).items()}
        newest, doc, owner = value.get("newest"), value.get("doc", ""), value.get("owner", "")
        return cls(value["text"], tuple(value["versions"]), applied, routes, comments, newest, doc, owner)


EMPTY: Final = LoadState()


def fold(state: LoadState, version: int, schema: Schema, schema_id: int | None = None) -> LoadState:
    """Folds a version of the subject into the load schema `state` and returns the new state. Returns the same state if
    the version is already in it, with a route for `schema_id` unless this is None.

    Versions are folded in ascending order. The fold is deterministic, so two drivers get the same result. If a subject
    was permanently deleted and registered again, a version number occurs a second time, with another schema id; it
    counts as a further version.

    Args:
        schema: the schema of the version.
        schema_id: id in messages with this version; without it no route is stored. An id that was folded in before
            keeps its route, because older messages have the id too.

    Raises:
        LoadSchemaTooLarge: no load schema can hold this version and those before it.
    """
    if version in state.versions and (schema_id is None or schema_id in state.routes):
        return state
    writer = root_record(schema)
    is_new = not state.text
    load = Record(load_name(writer.name), ()) if is_new else load_record(state.text)
    folding = Folding(schema, type_names(load))
    # From the second version on, the name that the `kafka` column got with the first version is reserved.
    reserved = set(RESERVED_COLUMNS) if is_new else {*RESERVED_COLUMNS, kafka_name(load)}
    folded, route = folding.fold_record(load, writer, "", frozenset(), is_new=is_new, reserved=reserved)
    routes = state.routes if schema_id is None else {schema_id: route, **state.routes}
    notes = list(dict.fromkeys(folding.notes))
    if writer is not schema.root:
        notes.append(Note("value", "not-a-record", ""))
    applied = tuple(AppliedRule(version, note.column, note.rule, note.detail) for note in notes)
    versions = tuple(dict.fromkeys((*state.versions, version)))
    comments = _comments(state.comments, writer, route)
    text = load_text(folded)
    if len(text) > LOAD_TEXT_CHARS_MAX:
        raise LoadSchemaTooLarge(
            f"with this version the load schema has {len(text):,} characters, and the limit is {LOAD_TEXT_CHARS_MAX:,}"
        )
    doc, owner = column_comment(writer.doc), column_comment(_text(prop(writer.props, OWNER)))
    return LoadState(text, versions, state.applied + applied, routes, comments, schema_id, doc, owner)


def with_owner(state: LoadState, metadata: Mapping[str, str]) -> LoadState:
    """Returns the state with the owner that the metadata properties of the newest version name, if they name one."""
    owner = column_comment(metadata.get(OWNER))
    return replace(state, owner=owner) if owner else state


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""


def _comments(before: Mapping[int, str], writer: Record, route: StoredRoute) -> Mapping[int, str]:
    new_comments = {
        entry.column: column_comment(one.doc)
        for one, entry in zip(writer.fields, route_entries(route, len(writer.fields)), strict=True)
    }
    return {position: comment for position, comment in sorted({**before, **new_comments}.items()) if comment}


@dataclass(frozen=True, slots=True)
class ExplainedRule:
    """A rule that was applied to a column when a version was folded in, with the reason of the rule."""

    version: int
    column: str
    rule: str
    detail: str
    reason: str


def explain(state: LoadState) -> tuple[ExplainedRule, ...]:
    """Returns all rules that were applied to columns when the versions were folded into the load schema `state`, in the
    order of the versions, each with its reason."""
    return tuple(
        ExplainedRule(rule.version, rule.column, rule.rule, rule.detail, RULES[rule.rule]) for rule in state.applied
    )


def column_versions(state: LoadState) -> Mapping[str, int]:
    """Returns, by column, the version of the subject that added it. Columns of the first version are left out, and
    fields of records inside columns. A renamed column has the version that added it under its first name."""
    versions: dict[str, int] = {}
    for rule in state.applied:
        if "." in rule.column:
            continue
        if rule.rule in CREATING_RULES:
            versions.setdefault(rule.column, rule.version)
        elif rule.rule == "renamed" and (added := versions.pop(rule.detail.removeprefix(RENAMED_FROM), None)):
            versions[rule.column] = added
    return versions
