"""The registry's own words: versions, references, modes, configuration, and what a schema is apart from where it is.

Names of subjects and contexts are in `registry.names`.
"""

from __future__ import annotations

import hashlib
import json
import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NewType

from headrace.registry.errors import InvalidMode, InvalidVersion
from headrace.registry.names import DEFAULT_CONTEXT
from headrace.registry.rules import RuleSet
from headrace.registry.tags import TaggedEntity

SchemaId = NewType("SchemaId", int)
"""Number of a schema's content within its context, from 1; the same content has the same id under every subject."""

VERSION_MAX: Final = 2**31 - 1
SCHEMA_ID_MAX: Final = 2**31 - 1
LATEST: Final = -1
"""What clients send for the newest version that is not deleted; the word "latest" says the same."""

SCHEMA_TYPE: Final = "AVRO"


def parse_version(text: str) -> int:
    """A version number, or `LATEST`.

    Raises:
        InvalidVersion: it is neither "latest", -1 nor a number of 1 to 2**31-1.
    """
    if text in ("latest", "-1"):
        return LATEST
    # At most ten digits: a longer text cannot be a version, and int() of a very long one is slow.
    if not (text.isascii() and text.isdigit() and len(text) <= 10) or not 1 <= int(text) <= VERSION_MAX:
        raise InvalidVersion(version=text)
    return int(text)


@dataclass(frozen=True, slots=True, order=True)
class SubjectVersion:
    subject: str
    version: int


@dataclass(frozen=True, slots=True, order=True)
class SchemaReference:
    """`name` is the full name that the referring schema uses; it is defined by that version of `subject`."""

    name: str
    subject: str
    version: int


Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    """Labels of a schema, all sorted: `properties` by key, `tags` by path, and the names of sensitive properties."""

    properties: Pairs = ()
    tags: tuple[tuple[str, tuple[str, ...]], ...] = ()
    sensitive: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        properties: Mapping[str, str] | None = None,
        tags: Mapping[str, list[str]] | None = None,
        sensitive: list[str] | None = None,
    ) -> Metadata:
        return cls(
            tuple(sorted((properties or {}).items())),
            tuple(sorted((path, tuple(sorted(set(names)))) for path, names in (tags or {}).items())),
            tuple(sorted(set(sensitive or ()))),
        )

    def to_json(self) -> dict[str, Any]:
        """What `of` reads."""
        return {
            "properties": dict(self.properties),
            "tags": {path: list(names) for path, names in self.tags},
            "sensitive": list(self.sensitive),
        }


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class SchemaContent:
    """What the registry gives an id to: canonical text, references in order, metadata and rules.

    Not slotted, so that fingerprint and guid are computed once.
    """

    text: str
    references: tuple[SchemaReference, ...] = ()
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None

    @cached_property
    def parts(self) -> tuple[str, str, str, str]:
        """What it says, as texts: contents with the same are one, however they were written."""
        return (
            self.text,
            _json([[reference.name, reference.subject, reference.version] for reference in self.references]),
            _json(None if self.metadata is None else self.metadata.to_json()),
            _json(None if self.rule_set is None else self.rule_set.to_json()),
        )

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 by which equal contents find each other; different ones have different bytes to hash.

        Of the text, and of references, metadata and rules as JSON, each behind its length as 64 bits. Databases hold
        it, so that a change of it takes a migration.
        """
        digest = hashlib.sha256()
        for part in self.parts:
            encoded = part.encode()
            digest.update(struct.pack(">q", len(encoded)) + encoded)
        return digest.digest()

    @cached_property
    def guid_bytes(self) -> bytes:
        """MD5 over text, references (name, subject, version as 32 bits), metadata and rules, each behind a byte 1.

        The same bytes as in the Confluent Schema Registry, so that a schema has the same guid in both. Contents that
        differ only in where one text ends and the next begins have the same, so it is what clients see and no identity.
        """
        digest = hashlib.md5(self.text.encode(), usedforsecurity=False)
        for reference in self.references:
            digest.update(reference.name.encode() + reference.subject.encode() + struct.pack(">i", reference.version))
        if self.metadata is not None:
            digest.update(b"\x01")
            for path, names in self.metadata.tags:
                digest.update(path.encode() + "".join(names).encode())
            for key, value in self.metadata.properties:
                digest.update(key.encode() + value.encode())
            digest.update("".join(self.metadata.sensitive).encode())
        if self.rule_set is not None:
            digest.update(b"\x01" + self.rule_set.hashed_bytes())
        return digest.digest()

    @property
    def guid(self) -> str:
        return str(uuid.UUID(bytes=self.guid_bytes))


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A schema with its id. `deleted` is set when every version that uses it is deleted softly.

    `row_key` is the database's own, never used for another content.
    """

    schema_id: SchemaId
    content: SchemaContent
    created_ms: int
    deleted: bool = False
    context: str = DEFAULT_CONTEXT
    row_key: int = 0


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A schema under a subject."""

    subject: str
    version: int
    schema: StoredSchema
    created_ms: int
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """What a client wants registered, looked up or checked.

    `text` is None when only metadata is to change. `version` is the number that the client expects to get, None when
    it does not care; `schema_id` an id it wants to impose. Tags are added, then removed; with `propagates_tags` those
    of the version before are kept.
    """

    text: str | None
    schema_type: str = SCHEMA_TYPE
    references: tuple[SchemaReference, ...] = ()
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None
    version: int | None = None
    schema_id: int | None = None
    tags_to_add: tuple[TaggedEntity, ...] = ()
    tags_to_remove: tuple[TaggedEntity, ...] = ()
    propagates_tags: bool = False


@dataclass(frozen=True, slots=True)
class TagChange:
    """A new version to be made from an old one.

    Metadata that is None is the old version's; rules are `rule_set`, or with `rules_to_merge` and `rules_to_remove`
    the rules of the version before the new one with these changes.
    """

    new_version: int | None = None
    tags_to_add: tuple[TaggedEntity, ...] = ()
    tags_to_remove: tuple[TaggedEntity, ...] = ()
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None
    rules_to_merge: RuleSet | None = None
    rules_to_remove: tuple[str, ...] | None = None


class Mode(StrEnum):
    """What may be done with a subject; reading always may."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    """Of everything: hides the modes of subjects. Other implementations have given it up; it is still accepted."""
    IMPORT = "IMPORT"
    """Schemas come with the ids and versions that they have elsewhere, and are not checked against each other."""
    FORWARD = "FORWARD"
    """Of everything: schemas come from another registry as in `IMPORT`, into what need not be empty."""

    @property
    def is_readonly(self) -> bool:
        return self in (Mode.READONLY, Mode.READONLY_OVERRIDE)

    @property
    def takes_ids(self) -> bool:
        """Whether a schema comes with its id."""
        return self in (Mode.IMPORT, Mode.FORWARD)


def parse_mode(text: str) -> Mode:
    """A mode in any case.

    Raises:
        InvalidMode: there is no such mode.
    """
    try:
        return Mode(text.upper())
    except ValueError:
        raise InvalidMode from None


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """What is configured at one scope; None is inherited or not set."""

    compatibility: str | None = None
    compatibility_policy: str | None = None
    compatibility_group: str | None = None
    normalize: bool | None = None
    validate_fields: bool | None = None
    validate_new_schemas: bool | None = None
    validate_rules: bool | None = None
    alias: str | None = None
    alias_for_deks: str | None = None
    default_metadata: Metadata | None = None
    override_metadata: Metadata | None = None
    default_rule_set: RuleSet | None = None
    override_rule_set: RuleSet | None = None

    @property
    def is_empty(self) -> bool:
        return self == ConfigEntry()


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change of a `ConfigEntry`: only the keys in `given` are written, a None there clears."""

    values: ConfigEntry = ConfigEntry()
    given: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        assert self.given <= {key.name for key in fields(ConfigEntry)}

    def applied_to(self, entry: ConfigEntry) -> ConfigEntry:
        return replace(entry, **{key: getattr(self.values, key) for key in self.given})


@dataclass(frozen=True, slots=True)
class Following:
    """That a registry has all that it holds from another one, which alone takes changes, until it is promoted.

    Args:
        source: the identity of the other registry.
        url: where that was reached last, for people.
        holder: the process that follows; no other one does while this one goes on asking.
        asked_ms: when it asked last, successfully or not.
        as_of_ms: this registry holds all that the other one held then; 0: nothing was ever taken over.
        mode: the mode that the other one has for everything, which READONLY_OVERRIDE stands before in this one.
        promoted_ms: since when this registry takes changes itself and follows nothing any more.

    Times are milliseconds since 1970 by the clock of this side.
    """

    source: str
    url: str
    holder: str
    asked_ms: int
    as_of_ms: int = 0
    mode: Mode | None = None
    promoted_ms: int | None = None

    @property
    def is_promoted(self) -> bool:
        return self.promoted_ms is not None

    def behind_s(self, now_ms: int) -> float:
        """How far behind this registry may be, in seconds; since 1970 when nothing was ever taken over."""
        return max(0, now_ms - self.as_of_ms) / 1000
