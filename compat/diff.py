"""Differences between two schemas, whether or not they affect compatibility.

Each schema becomes a table of rows: types keyed by full name, fields keyed by record and field name. Rows with the same
key are compared. A type or field that the earlier schema lacks is compared with the one that its alias names, if the
candidate lacks that one: it was renamed. The root types always share a key, so that a renamed root record appears as
renamed even without an alias.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from headrace.avro_schema import (
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    NamedType,
    Position,
    Record,
    Schema,
    Type,
    Union,
)
from headrace.compat.describe import type_fragment, type_kind

TEXT_CHARS_MAX = 120
"""Longest text that is shown of a changed attribute, such as documentation, or of an added or removed field. The
description of an added or removed type is not truncated."""


NAME = "name"
"""The attribute that changes if a type or field is renamed."""

_Key = tuple[str, ...]
"""Key of a row: (full name of the type,) or (full name of the record, field name)."""


class SchemaChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One difference between two schemas.

    `name` is the full name of a type, with `.field` appended for a field. If it was added or removed, `attribute` is
    "", and `after` or `before` describes it. Otherwise its attribute `attribute`, such as `doc`, changed from `before`
    to `after`. `position` is in the candidate's text (the new schema), or in the earlier text if `name` was removed.
    """

    kind: SchemaChangeKind
    name: str
    attribute: str
    before: str
    after: str
    position: Position

    def describe(self) -> str:
        """Returns the change as one line that begins with `+` (added), `-` (removed) or `~` (changed)."""
        if self.kind is SchemaChangeKind.ADDED:
            return f"+ {self.name}: {self.after}"
        if self.kind is SchemaChangeKind.REMOVED:
            return f"- {self.name}: {self.before}"
        if self.attribute == NAME:
            return f"~ {self.name}: renamed {self.before} -> {self.after}"
        return f"~ {self.name}: {self.attribute} {self.before or 'none'} -> {self.after or 'none'}"


@dataclass(frozen=True, slots=True)
class _Row:
    """A type or field. `aliases` are its earlier names, in the form of the last part of its key."""

    name: str
    summary: str
    attributes: Mapping[str, str]
    position: Position
    aliases: tuple[str, ...] = ()


def diff_schemas(earlier: Schema, candidate: Schema) -> tuple[SchemaChange, ...]:
    """Returns the differences in the order of the candidate's text, except that a root type without a name follows the
    types in it; removals come last. The fields of a new or removed type are not listed separately.

    Args:
        earlier: the earlier version.
        candidate: the new schema.
    """
    before, after = _rows(earlier), _rows(candidate)
    earlier_keys = _earlier_keys(before, after)
    found: list[SchemaChange] = []
    for key, row in after.items():
        old = before.get(earlier_keys[key])
        if old is not None:
            found += _changed(old, row)
        elif _owner(key) not in after or earlier_keys[_owner(key)] in before:
            # a new type is reported once, without its fields
            found.append(SchemaChange(SchemaChangeKind.ADDED, row.name, "", "", row.summary, row.position))
    known = set(earlier_keys.values())
    for key, row in before.items():
        if key not in known and (_owner(key) not in before or _owner(key) in known):
            found.append(SchemaChange(SchemaChangeKind.REMOVED, row.name, "", row.summary, "", row.position))
    return tuple(found)


def _earlier_keys(before: Mapping[_Key, _Row], after: Mapping[_Key, _Row]) -> dict[_Key, _Key]:
    """Returns the key that each row of the candidate has in the earlier schema if it is there. Types precede their
    fields in `after`, so the earlier name of a field's record is known.

    Args:
        before: the rows of the earlier schema.
        after: the rows of the candidate.
    """
    found: dict[_Key, _Key] = {}
    for key, row in after.items():
        owner = _owner(key)
        earlier_owner = found.get(owner, owner)
        earlier = (*earlier_owner, key[-1])
        former = ((*earlier_owner, alias) for alias in row.aliases if (*owner, alias) not in after)
        found[key] = earlier if earlier in before else next(filter(before.__contains__, former), earlier)
    return found


def _owner(key: _Key) -> _Key:
    """Returns the key of the record that contains a field, given the key of the field: (record name, field name).
    Returns () for the key of a type: (type name,)."""
    return key[:1] if len(key) > 1 else ()


def _changed(old: _Row, new: _Row) -> Iterator[SchemaChange]:
    for attribute in dict.fromkeys((*old.attributes, *new.attributes)):
        before, after = old.attributes.get(attribute, ""), new.attributes.get(attribute, "")
        if before != after:
            yield SchemaChange(
                SchemaChangeKind.CHANGED, new.name, attribute, _truncated(before), _truncated(after), new.position
            )


def _rows(schema: Schema) -> dict[_Key, _Row]:
    """Returns the types and fields of a schema as rows, to compare them with the rows of another schema. The key of a
    type is its full name, that of a field the full name of the field's record and the field's name. The key has "" in
    place of the name of the root type."""
    rows: dict[_Key, _Row] = {}
    _add(schema.root, schema.root, rows)
    return rows


def _add(node: Type, root: Type, rows: dict[_Key, _Row]) -> None:
    match node:
        case Record():
            key = _key(node, root)
            rows[key] = _type_row(node)
            for field in node.fields:
                name = f"{node.name.full}.{field.name}"
                rows[(*key, field.name)] = _Row(
                    name, _field_summary(field), _field_attributes(field), field.position, field.aliases
                )
                _add(field.type, root, rows)
        case Enum() | Fixed():
            rows[_key(node, root)] = _type_row(node)
        case Array():
            _add(node.items, root, rows)
        case Map():
            _add(node.values, root, rows)
        case Union():
            for branch in node.branches:
                _add(branch, root, rows)
    if node is root and not isinstance(node, NamedType):
        rows[("",)] = _Row("the schema", type_fragment(node), {"type": type_fragment(node)}, node.position)


def _type_row(node: NamedType) -> _Row:
    aliases = tuple(alias.full for alias in node.aliases)
    return _Row(node.name.full, _summary(node), _type_attributes(node), node.position, aliases)


def _key(node: NamedType, root: Type) -> _Key:
    return ("",) if node is root else (node.name.full,)


def _summary(node: NamedType) -> str:
    match node:
        case Enum():
            return f"enum of {', '.join(node.symbols)}"
        case Fixed():
            return f"fixed of {node.size} bytes"
    return f"{type_kind(node)} of {', '.join(field.name for field in node.fields)}"


def _type_attributes(node: NamedType) -> dict[str, str]:
    own: dict[str, str] = {}
    match node:
        case Enum():
            own = {"symbols": ", ".join(node.symbols), "default": node.default or ""}
        case Fixed():
            own = {"size": str(node.size)}
    aliases = ", ".join(alias.full for alias in node.aliases)
    return {
        "kind": type_kind(node),
        NAME: node.name.full,
        **own,
        "aliases": aliases,
        "doc": node.doc or "",
        **_props(node.props),
    }


def _field_summary(field: Field) -> str:
    default = f", default {json.dumps(field.default, ensure_ascii=False)}" if field.has_default else ""
    return _truncated(f"{type_fragment(field.type)}{default}")


def _field_attributes(field: Field) -> dict[str, str]:
    return {
        NAME: field.name,
        "type": type_fragment(field.type),
        "default": json.dumps(field.default, ensure_ascii=False) if field.has_default else "",
        "order": "" if field.order.value == "ascending" else field.order.value,
        "aliases": ", ".join(field.aliases),
        "doc": field.doc or "",
        **_props(field.props),
    }


def _props(props: tuple[tuple[str, object], ...]) -> dict[str, str]:
    return {key: json.dumps(value, ensure_ascii=False) for key, value in props}


def _truncated(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[: TEXT_CHARS_MAX - 1]}…"
