"""The load schema: what a topic's files are written in and its Hive table declares.

It is a fold over the versions of the topic's subject, `fold(state, version, schema) -> state`, so that a column never
changes its meaning, and every file written before stays readable (by Avro resolution and by Hive's deserializer,
which also looks fields up in the file's own schema). The text of the load schema says all that a projection must
know; nothing else of the state is needed to write a row.

**What is fed by what.** A writer's record is laid over a load record field by field, in the load record's order,
top level and nested alike. A column takes the first of its sources that the writer's record has, that no earlier
column of this record took, and whose type the column holds (`holds`). `route_fields` computes exactly this.

    field property        meaning
    headrace.source       list of writer field names that feed the column, newest name first; when absent, the
                          column's own name alone. [""] is a message that is not a record, as a whole (column `value`).
    headrace.former       list of further such names, which feed the column only where no other column of the record
                          takes the field (the name was given to another field later).
    headrace.absent       "null": a row that nothing feeds is null; when absent, it is the column's default
                          (which is null for most columns that can be without a value).
    headrace.branch       in a record of members: the writer's union branch that the member holds (`int`, `array`,
                          or the name of the named type, without namespace).

    type property         meaning
    headrace.kind         "members" on a record: a union of several branches, at most one member is not null. A
                          writer type that is no union counts as its only branch.
                          "json" on a string: the value's Avro-JSON text (recursive types).
                          "unscaled" on bytes: the unscaled value of a decimal that Hive cannot hold, copied.
    headrace.decimal      beside "unscaled": "precision,scale" of the writer.
    headrace.widened      list of primitive types that the column was widened from and still holds by promotion
                          although that may round (`long` in a column that became `double`).
    headrace.names        on a record or enum: list of further type names (without namespace) that mean this type.

**What keeps a column.** A value goes on in its old column wherever that column can hold it exactly by Avro promotion
and means the same: an int writer in a long column (a narrowing), a nullable writer, an enum or record whose alias
says it is the old one, a uuid annotation, a decimal with more digits and the same scale. Only what is left opens a
sibling `<name>__<kind>`; the old column then stays and is null in new rows. The reasons are the rows of `RULES`.

Load types are plain: no references (a named type that stands in two places is two types), no doc, no union but
`["null", T]` or `[T, "null"]`, no one-branch union. Nullability follows the column, never the writer: a writer's
null goes to null, and a writer's value into a nullable column is the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from avro_schema import (
    Array,
    Field,
    LogicalType,
    Name,
    Primitive,
    PrimitiveType,
    Record,
    Schema,
    Type,
    Union,
    parse_schema,
    self_contained_text,
)
from loader.load_columns import Folding
from loader.load_merge import Note
from loader.load_types import (
    ABSENT,
    BRANCH,
    DECIMAL,
    FORMER,
    JSON,
    KIND,
    MEMBERS,
    NAMES,
    RESERVED_COLUMNS,
    SOURCE,
    UNSCALED,
    WIDENED,
    branch_names,
    kind_of,
    prop,
    sources,
    split,
    type_names,
)

__all__ = [
    "ABSENT",
    "BRANCH",
    "DECIMAL",
    "EMPTY",
    "FORMER",
    "JSON",
    "KIND",
    "MEMBERS",
    "NAMES",
    "RULES",
    "SOURCE",
    "UNSCALED",
    "WIDENED",
    "AppliedRule",
    "ExplainedRule",
    "LoadState",
    "Route",
    "Routed",
    "explain",
    "fold",
    "kind_of",
    "load_schema_with_kafka",
    "root_record",
    "route_branch",
    "route_fields",
    "sources",
    "split",
]

RULES: Final[Mapping[str, str]] = {
    "added": "a new field is appended, since readers by position must find the old columns where they were",
    "default-dropped": "Hive cannot fill this default into rows of files without the column, so such rows read null",
    "removed": "a field that a version lacks stays as a column, so that its history can be queried; new rows are null",
    "nullable": "a version allows null here",
    "widened": "the new type holds every old value by Avro promotion, so the column takes it and old files still read",
    "held": "the column's type holds the new type exactly, so the column does not change",
    "renamed": "an alias says that the field is the old one; old files are found under the alias",
    "renamed-beside": "Hive cannot find records and decimals under an alias, so the new name is a column of its own",
    "name-reused": "another field now has the old name of this one, so only earlier versions feed the column by it",
    "type-changed": "the old column cannot hold the new type, so its values have a column of their own",
    "branches-gained": "old files do not read as a union, so the union has a column of its own",
    "logical-changed": "another logical type gives the value another meaning, so it has a column of its own",
    "decimal-changed": "another scale gives the digits another meaning, so its values have a column of their own",
    "element-changed": "the elements cannot be read as the old ones, so the collection has a column of its own",
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
"""Every rule of the fold and why it is so."""


@dataclass(frozen=True, slots=True)
class AppliedRule:
    """One rule that folding a version applied to a column (a dotted path)."""

    version: int
    column: str
    rule: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LoadState:
    """The load schema of a topic: its text, the versions folded into it, and why it looks as it does.

    `text` is a self-contained Avro record without the `kafka` column; "" before the first version.
    """

    text: str = ""
    versions: tuple[int, ...] = ()
    applied: tuple[AppliedRule, ...] = ()

    def to_json(self) -> dict[str, Any]:
        applied = [[rule.version, rule.column, rule.rule, rule.detail] for rule in self.applied]
        return {"text": self.text, "versions": list(self.versions), "applied": applied}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LoadState:
        applied = tuple(AppliedRule(*row) for row in value["applied"])
        return cls(value["text"], tuple(value["versions"]), applied)


EMPTY: Final = LoadState()


def fold(state: LoadState, version: int, schema: Schema) -> LoadState:
    """The load schema after a further version; the same state when the version is in it already.

    Versions are folded in ascending order; deterministic, so two drivers that fold the same agree.
    """
    if version in state.versions:
        return state
    writer = root_record(schema)
    is_new = not state.text
    load = Record(writer.name, ()) if is_new else _load_record(state.text)
    folding = Folding(schema, type_names(load))
    # From the second version on, files hold the `kafka` column under the name that the first version left free.
    reserved = set(RESERVED_COLUMNS) if is_new else {*RESERVED_COLUMNS, _kafka_name(load)}
    grown = folding.fold_record(load, writer, "", frozenset(), is_new=is_new, reserved=reserved)
    notes = list(dict.fromkeys(folding.notes))
    if writer is not schema.root:
        notes.append(Note("value", "not-a-record", ""))
    applied = tuple(AppliedRule(version, note.column, note.rule, note.detail) for note in notes)
    return LoadState(_text(grown), (*state.versions, version), state.applied + applied)


@dataclass(frozen=True, slots=True)
class ExplainedRule:
    """An applied rule with its reason, for people."""

    version: int
    column: str
    rule: str
    detail: str
    reason: str


def explain(state: LoadState) -> tuple[ExplainedRule, ...]:
    """What the fold did, in order, with the reason of each rule."""
    return tuple(
        ExplainedRule(rule.version, rule.column, rule.rule, rule.detail, RULES[rule.rule]) for rule in state.applied
    )


@dataclass(frozen=True, slots=True)
class Routed:
    """A column and the writer field that feeds it; without one the row has null or the column's default (`absent`)."""

    column: Field
    source: Field | None

    @property
    def absent(self) -> Any:
        """The JSON default of a row that nothing feeds."""
        if prop(self.column.props, ABSENT) == "null" or not self.column.has_default:
            return None
        return self.column.default


@dataclass(frozen=True, slots=True)
class Route:
    """Where the fields of a writer's record go, in the order of the load record.

    `unplaced` names writer fields that no column takes and columns that need a value and get none: messages of a
    writer schema that is not of this topic's history, which cannot be loaded.
    """

    columns: tuple[Routed, ...]
    unplaced: tuple[str, ...]


def route_fields(load: Record, writer: Schema, record: Record, *, within: frozenset[Name] = frozenset()) -> Route:
    """Which writer field feeds which column.

    Args:
        load: a record of the load schema (not one of members).
        writer: the writer's schema, to resolve its references.
        record: the writer's record, `root_record(writer)` at the top.
        within: the names of the writer records around this one, outermost included; decides what is recursive.
    """
    folding = Folding(writer, set(), growing=False)
    fed, folded = folding.feed(load.fields, record, "", within | {record.name})
    columns: list[Routed] = []
    used: set[str] = set()
    unplaced: list[str] = []
    for column, field, grown in zip(load.fields, fed, folded, strict=True):
        holds = grown == column
        source = field if holds else None
        if source is not None:
            used.add(source.name)
        elif not _may_lack(column):
            unplaced.append(column.name)
        columns.append(Routed(column, source))
    unplaced.extend(field.name or "the message" for field in record.fields if field.name not in used)
    return Route(tuple(columns), tuple(dict.fromkeys(unplaced)))


def route_branch(
    members: Record, writer: Schema, branch: Type, *, within: frozenset[Name] = frozenset()
) -> Field | None:
    """The member of a record of members that holds a writer's branch, which is not null; None when none does."""
    branch = writer.resolve(branch)
    for member in members.fields:
        if prop(member.props, BRANCH) not in branch_names(branch):
            continue
        inner, _ = split(member.type)
        folding = Folding(writer, set(), growing=False)
        if folding.merge_branch(inner, branch, "", within) == inner:
            return member
    return None


def root_record(schema: Schema) -> Record:
    """The record that a message is: the root itself, else a record of one field "" that is the whole message."""
    root = schema.resolve(schema.root)
    return root if isinstance(root, Record) else Record(Name("Message"), (Field("", schema.root),))


def load_schema_with_kafka(text: str, kafka_column: str) -> str:
    """The full schema of files and table: the load schema and, last, where each row came from.

    Args:
        text: a load schema, as `LoadState.text`.
        kafka_column: none, position, or full (position with key and headers).
    """
    if kafka_column == "none":
        return text
    load = _load_record(text)
    name = _kafka_name(load)
    where = _position_record(_free_name(type_names(load)), is_full=kafka_column == "full")
    column = Field(name, Union((Primitive(PrimitiveType.NULL), where)), None)
    return _text(Record(load.name, (*load.fields, column)))


def _kafka_name(load: Record) -> str:
    """The name of the `kafka` column, which no column has or had; so it never changes along a history."""
    taken = {name.lower() for field in load.fields for name in (field.name, *field.aliases)}
    name = "kafka" if "kafka" not in taken else "kafka__position"
    while name in taken:
        name += "_"
    return name


def _position_record(name: Name, *, is_full: bool) -> Record:
    null, long = Primitive(PrimitiveType.NULL), PrimitiveType.LONG
    millis = Primitive(long, LogicalType("timestamp-millis"), (("logicalType", "timestamp-millis"),))
    fields = [
        Field("partition", Primitive(PrimitiveType.INT)),
        Field("offset", Primitive(long)),
        # Null where the record says no time of this era: readers of timestamps overflow on absurd ones.
        Field("timestamp", Union((null, millis)), None),
    ]
    if is_full:
        optional_bytes = Union((null, Primitive(PrimitiveType.BYTES)))
        header = Record(
            Name(f"{name.name}_header", name.namespace),
            (Field("key", Primitive(PrimitiveType.STRING)), Field("value", optional_bytes)),
        )
        # Nullable with a default: files of before the setting was widened have neither.
        fields.append(Field("key", optional_bytes, None))
        fields.append(Field("headers", Union((null, Array(header))), None))
    return Record(name, tuple(fields))


def _free_name(taken: set[str]) -> Name:
    name = Name("kafka_position", "headrace.load")
    while name.full in taken or f"{name.full}_header" in taken:
        name = Name(f"{name.name}_", name.namespace)
    return name


def _may_lack(column: Field) -> bool:
    return column.has_default or split(column.type)[1] or column.type == Primitive(PrimitiveType.NULL)


def _text(record: Record) -> str:
    return self_contained_text(Schema(record))


@lru_cache(maxsize=64)
def _load_record(text: str) -> Record:
    root = parse_schema(text, source="load schema").root
    assert isinstance(root, Record)
    return root
