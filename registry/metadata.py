"""Metadata of schemas: merging of layers, reserved properties, and equality for lookups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from headrace.registry.domain import Metadata
from headrace.registry.rules import RuleSet

VERSION_PROPERTY: Final = "confluent:version"
"""Metadata property in which a version contains its own version number."""

RESERVED_PROPERTY: Final = "confluent:reserved"
"""Metadata property with names, separated by commas. If the configuration sets `validateFields`, top-level fields may
not have these names."""

V = TypeVar("V")


def merged_metadata(*layers: Metadata | None) -> Metadata | None:
    """Merges the metadata of several sources, such as the configuration and a request; None if no source has any.

    `layers` are ordered from the weakest to the strongest. If several layers have a property, or tags for a path, the
    strongest one determines the value. A property that is sensitive in one layer is sensitive in the result.
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


def with_version_property(metadata: Metadata | None, version: int, *, always: bool) -> Metadata | None:
    """Returns metadata in which the property `confluent:version` is `version`. Without `always`, metadata that does not
    have this property is returned unchanged."""
    if not always and _property(metadata, VERSION_PROPERTY) is None:
        return metadata
    metadata = metadata or Metadata()
    return replace(metadata, properties=_overlaid(metadata.properties, [(VERSION_PROPERTY, str(version))]))


def without_version_property(metadata: Metadata) -> Metadata:
    return replace(metadata, properties=tuple(item for item in metadata.properties if item[0] != VERSION_PROPERTY))


def version_property(metadata: Metadata | None) -> int | None:
    """The number in the metadata property `confluent:version`; None if the property is missing, is not a number or has
    more than ten digits."""
    text = _property(metadata, VERSION_PROPERTY)
    digits = (text or "").removeprefix("-")
    return int(text) if text and digits.isascii() and digits.isdigit() and len(digits) <= 10 else None


def satisfies_request(
    requested: tuple[Metadata | None, RuleSet | None], stored: tuple[Metadata | None, RuleSet | None], version: int
) -> bool:
    """Whether the metadata and rules of a stored version equal those of a request. The caller has already compared the
    schemas.

    If only the stored version has the property `confluent:version`, the property is ignored. If only the request has
    it, it must be `version`, the number of the stored version.
    """
    (metadata, rule_set), (stored_metadata, stored_rule_set) = requested, stored
    number, stored_number = version_property(metadata), version_property(stored_metadata)
    if number is None and stored_number is not None:
        metadata, stored_metadata = metadata or Metadata(), without_version_property(stored_metadata or Metadata())
    elif number is not None and stored_number is None:
        if number != version:
            return False
        metadata, stored_metadata = without_version_property(metadata or Metadata()), stored_metadata or Metadata()
    return metadata == stored_metadata and rule_set == stored_rule_set


def has_properties(metadata: Metadata | None, requested: Mapping[str, str]) -> bool:
    """Whether the metadata has all `requested` properties, with the requested values. False without metadata."""
    return metadata is not None and requested.items() <= dict(metadata.properties).items()


def compatibility_group_of(metadata: Metadata | None, name: str) -> str | None:
    """Returns the compatibility group of a version, or None. Only versions of the same group are compared with each
    other.

    The group is the value of the metadata property `name`. The setting `compatibility_group` of the subject's
    configuration is the name of that property.
    """
    return _property(metadata, name)


def reserved_fields(metadata: Metadata | None) -> tuple[str, ...]:
    """Returns the field names that are listed in the metadata property `confluent:reserved`, in their order and without
    duplicates."""
    names = (name.strip() for name in (_property(metadata, RESERVED_PROPERTY) or "").split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def _property(metadata: Metadata | None, name: str) -> str | None:
    return None if metadata is None else dict(metadata.properties).get(name)
