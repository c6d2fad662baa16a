"""Tags of records and fields. In the text of a schema they are the property `confluent:tags` of the record or field."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from headrace.avro_schema import JsonValue, Name, Record, Schema, Type, children

TAGS_PROPERTY: Final = "confluent:tags"
ANY_TAG: Final = "*"


class EntityKind(StrEnum):
    RECORD = "sr_record"
    FIELD = "sr_field"


@dataclass(frozen=True, slots=True)
class TaggedEntity:
    """Tags, in the given order, of a record (`namespace.Record`) or a field (`namespace.Record.field`)."""

    path: str
    kind: EntityKind
    tags: tuple[str, ...]


class UnknownEntity(Exception):
    """A request names a record or field by a path that the schema does not define."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"No matching path '{path}' found in the schema")


def tagged_entities(schema: Schema) -> list[TaggedEntity]:
    """Returns the records and fields of a schema that have tags, including referenced types: each record once, before
    its fields."""
    found: list[TaggedEntity] = []
    seen: set[Name] = set()
    # Iterative: each referenced schema adds to the depth, which would exceed the recursion limit.
    pending: list[Type | TaggedEntity] = [schema.root]
    while pending:
        item = pending.pop()
        if isinstance(item, TaggedEntity):
            found.append(item)
            continue
        node = schema.resolve(item)
        if isinstance(node, Record):
            if node.name not in seen:
                seen.add(node.name)
                pending.extend(reversed([*_entities_of(node)]))
        else:
            pending.extend(reversed(children(node)))
    return [entity for entity in found if entity.tags]


def entities_with(schema: Schema, tags: Iterable[str]) -> list[TaggedEntity]:
    """The records and fields of a schema that have at least one of these tags; `*` matches any tag."""
    searched = set(tags)
    return [item for item in tagged_entities(schema) if ANY_TAG in searched or searched & set(item.tags)]


def _entities_of(record: Record) -> Iterator[Type | TaggedEntity]:
    """Yields a `TaggedEntity` for the record, and for each field a `TaggedEntity` and then the type of the field. The
    entities may have no tags."""
    full_name = record.name.full
    yield TaggedEntity(full_name, EntityKind.RECORD, _texts(dict(record.props).get(TAGS_PROPERTY)))
    for field in record.fields:
        tags = _texts(dict(field.props).get(TAGS_PROPERTY))
        yield TaggedEntity(f"{full_name}.{field.name}", EntityKind.FIELD, tags)
        yield field.type


def _texts(value: JsonValue) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(dict.fromkeys(tag if isinstance(tag, str) else json.dumps(tag) for tag in value))


def with_tags(text: str, add: Iterable[TaggedEntity], remove: Iterable[TaggedEntity]) -> str:
    """Returns the JSON text of a schema after adding and then removing tags. The text is not canonical.

    Args:
        text: the canonical text before, possibly with other blanks.
        add: records and fields, each with the tags to add to it.
        remove: records and fields, each with the tags to remove from it.

    Raises:
        UnknownEntity: the text does not define one of these records or fields; referenced schemas are not searched.
    """
    value = json.loads(text)
    defined = _defined(value)
    changes: dict[tuple[str, EntityKind], tuple[list[str], list[str]]] = {}
    for side, entities in enumerate((add, remove)):
        for entity in entities:
            changes.setdefault((entity.path, entity.kind), ([], []))[side].extend(entity.tags)
    for (path, kind), (added, removed) in changes.items():
        node = defined.get((path, kind))
        if node is None:
            raise UnknownEntity(path)
        dropped = set(removed)
        left = [tag for tag in dict.fromkeys([*_texts(node.get(TAGS_PROPERTY)), *added]) if tag not in dropped]
        if left:
            node[TAGS_PROPERTY] = left
        else:
            node.pop(TAGS_PROPERTY, None)
    return json.dumps(value)


def known_entities(text: str, entities: Iterable[TaggedEntity]) -> list[TaggedEntity]:
    """Returns those of `entities` (tagged records and fields, by path) that a schema defines.

    Args:
        text: the canonical text of the schema, possibly with other blanks.
    """
    defined = _defined(json.loads(text))
    return [entity for entity in entities if (entity.path, entity.kind) in defined]


def _defined(value: Any) -> dict[tuple[str, EntityKind], dict[str, Any]]:
    """Finds all records and fields in a schema, `value`, which is parsed JSON. Returns their JSON objects by (path,
    kind).

    A record can also be found by its name without namespace. If several records have that name, the path means the
    outermost one.
    """
    found: dict[tuple[str, EntityKind], dict[str, Any]] = {}
    pending: deque[tuple[Any, str]] = deque([(value, "")])
    while pending:
        node, namespace = pending.popleft()
        if isinstance(node, list):
            pending.extend((branch, namespace) for branch in node)
        if not isinstance(node, dict):
            continue
        inner = {"array": "items", "map": "values"}.get(node["type"]) if isinstance(node["type"], str) else "type"
        if inner is not None:
            pending.append((node[inner], namespace))
        if node["type"] not in ("record", "error"):
            continue
        namespace = node.get("namespace", namespace)
        paths = {f"{namespace}.{node['name']}" if namespace else node["name"], node["name"]}
        for path in paths:
            found.setdefault((path, EntityKind.RECORD), node)
            for field in node["fields"]:
                found.setdefault((f"{path}.{field['name']}", EntityKind.FIELD), field)
        pending.extend((field["type"], namespace) for field in node["fields"])
    return found
