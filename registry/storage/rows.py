"""Converts values of `registry.domain` to table rows and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from headrace.registry.domain import ConfigEntry, Metadata, SchemaContent, SchemaId, SchemaReference, StoredSchema
from headrace.registry.names import is_storable
from headrace.registry.rules import RuleSet
from headrace.registry.storage.models import GLOBAL_SCOPE

T = TypeVar("T")


def metadata_json(metadata: Metadata | None) -> str | None:
    return None if metadata is None else json.dumps(metadata.to_json())


def read_metadata(text: str | None) -> Metadata | None:
    return None if text is None else Metadata.of(**json.loads(text))


def rule_set_json(rule_set: RuleSet | None) -> str | None:
    return None if rule_set is None else json.dumps(rule_set.to_json())


def read_rule_set(text: str | None) -> RuleSet | None:
    return None if text is None else RuleSet.of(json.loads(text))


_CONFIG_KEYS = tuple(key.name for key in fields(ConfigEntry))
_JSON_KEYS: Mapping[str, tuple[Callable[[Any], str | None], Callable[[str | None], Any]]] = {
    "default_metadata": (metadata_json, read_metadata),
    "override_metadata": (metadata_json, read_metadata),
    "default_rule_set": (rule_set_json, read_rule_set),
    "override_rule_set": (rule_set_json, read_rule_set),
}
"""Keys of a configuration that are stored as JSON, in the column of that name with the suffix `_json`."""


def config_row(scope: str | None, entry: ConfigEntry) -> dict[str, Any]:
    row: dict[str, Any] = {"scope": scope_key(scope)}
    for key in _CONFIG_KEYS:
        value = getattr(entry, key)
        row.update({f"{key}_json": _JSON_KEYS[key][0](value)} if key in _JSON_KEYS else {key: value})
    return row


def config_entry(row: Mapping[str, Any]) -> ConfigEntry:
    values = {key: _JSON_KEYS[key][1](row[f"{key}_json"]) if key in _JSON_KEYS else row[key] for key in _CONFIG_KEYS}
    return ConfigEntry(**values)


def scope_key(scope: str | None) -> str:
    """The value of the `scope` column for a subject, a context, or (None) the whole default context."""
    return GLOBAL_SCOPE if scope is None else scope


def scope_of(key: str) -> str | None:
    """The scope that a value of the `scope` column stands for: a subject, a context, or (None) the whole default
    context."""
    return None if key == GLOBAL_SCOPE else key


def scope_keys(scopes: Iterable[str | None]) -> list[str]:
    """The `scope_key` of each scope, except for scopes with characters that not every database can store
    (`is_storable`): no row has these."""
    return [scope_key(scope) for scope in scopes if is_storable(scope or "")]


def schema_row(
    context: str, schema_id: SchemaId, content: SchemaContent, lookup_key: bytes, now_ms: int, *, is_copy: bool = False
) -> dict[str, Any]:
    return {
        "context": context,
        "id": schema_id,
        "fingerprint": content.fingerprint,
        "copy": schema_id if is_copy else 0,
        "lookup_key": lookup_key,
        "text": content.text,
        "metadata_json": metadata_json(content.metadata),
        "rule_set_json": rule_set_json(content.rule_set),
        "created_ms": now_ms,
        "guid": content.guid_bytes,
    }


def stored_schema(
    row: Any, references: Mapping[int, tuple[SchemaReference, ...]], *, deleted: bool = False
) -> StoredSchema:
    """Builds a schema from its row.

    Args:
        row: the row, with the columns of `SchemaRow`.
        references: the references of schemas, by row key.
        deleted: marks the schema as soft-deleted.
    """
    content = SchemaContent(
        row.text, references.get(row.row_key, ()), read_metadata(row.metadata_json), read_rule_set(row.rule_set_json)
    )
    return StoredSchema(row.id, content, row.schema_created_ms, deleted, row.context, row.row_key)


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Splits a list into parts of at most 500 items, because databases limit the parameters of a statement."""
    return (items[start : start + 500] for start in range(0, len(items), 500))
