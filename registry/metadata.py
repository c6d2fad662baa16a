"""Metadata of schemas: how layers merge, the properties that the registry itself reads, and when it is the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from headrace.registry.domain import Metadata
from headrace.registry.rules import RuleSet

VERSION_PROPERTY: Final = "confluent:version"
"""Property that holds the number of the version that has it."""

RESERVED_PROPERTY: Final = "confluent:reserved"
"""Property that names, with commas between, what no top-level field may be called."""

V = TypeVar("V")


def merged_metadata(*layers: Metadata | None) -> Metadata | None:
    """Metadata laid over each other, from the weakest to the strongest; None where no layer has any.

    A property, and the tags of a path, are those of the strongest layer that has them; what is sensitive adds up.
    """
    merged: Metadata | None = None
    for layer in layers:
        if merged is None or layer is None:
            merged = layer if merged is None else merged
            continue
        merged = Metadata(
            _overlaid(merged.properties, layer.properties),
            _overlaid(merged.tags, layer.tags),
            tuple(sorted({*merged.sensitive, *layer.sensitive})),
        )
    return merged


def _overlaid(lower: Iterable[tuple[str, V]], upper: Iterable[tuple[str, V]]) -> tuple[tuple[str, V], ...]:
    return tuple(sorted({**dict(lower), **dict(upper)}.items(), key=lambda item: item[0]))


def numbered(metadata: Metadata | None, version: int, *, wanted: bool) -> Metadata | None:
    """Metadata whose version number, if it has one or one is `wanted`, is that of the version it becomes part of."""
    if not wanted and _property(metadata, VERSION_PROPERTY) is None:
        return metadata
    metadata = metadata or Metadata()
    return replace(metadata, properties=_overlaid(metadata.properties, [(VERSION_PROPERTY, str(version))]))


def unnumbered(metadata: Metadata) -> Metadata:
    return replace(metadata, properties=tuple(item for item in metadata.properties if item[0] != VERSION_PROPERTY))


def version_number(metadata: Metadata | None) -> int | None:
    """The version that metadata says it is of; a text that is no number says nothing."""
    text = _property(metadata, VERSION_PROPERTY)
    digits = (text or "").removeprefix("-")
    return int(text) if text and digits.isascii() and digits.isdigit() and len(digits) <= 10 else None


def finds(
    wanted: tuple[Metadata | None, RuleSet | None], stored: tuple[Metadata | None, RuleSet | None], version: int
) -> bool:
    """Whether a request with `wanted` may find a version with `stored`, both having the same schema.

    Both must be equal, but a version number on one side only does not count; in the request it must be the true one.
    """
    (metadata, rule_set), (stored_metadata, stored_rule_set) = wanted, stored
    number, stored_number = version_number(metadata), version_number(stored_metadata)
    if number is None and stored_number is not None:
        metadata, stored_metadata = metadata or Metadata(), unnumbered(stored_metadata or Metadata())
    elif number is not None and stored_number is None:
        if number != version:
            return False
        metadata, stored_metadata = unnumbered(metadata or Metadata()), stored_metadata or Metadata()
    return metadata == stored_metadata and rule_set == stored_rule_set


def has_properties(metadata: Metadata | None, wanted: Mapping[str, str]) -> bool:
    """Whether metadata is there and has all these properties with these values."""
    return metadata is not None and wanted.items() <= dict(metadata.properties).items()


def group_of(metadata: Metadata | None, name: str) -> str | None:
    """The compatibility group of a version: its value of the property that the configuration names, None without."""
    return _property(metadata, name)


def reserved_fields(metadata: Metadata | None) -> tuple[str, ...]:
    """Names that top-level fields may not have, in the order in which they are written."""
    names = (name.strip() for name in (_property(metadata, RESERVED_PROPERTY) or "").split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def _property(metadata: Metadata | None, name: str) -> str | None:
    return None if metadata is None else dict(metadata.properties).get(name)
