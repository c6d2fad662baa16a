"""Domain values of the registry: schema contents, versions, references, modes and configuration.

`registry.names` has the names of subjects and contexts.
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
"""Id of a schema's content within its context, assigned from 1. The same content has the same id under every subject of
a context, unless an import has registered it with another id."""

VERSION_MAX: Final = 2**31 - 1
SCHEMA_ID_MAX: Final = 2**31 - 1
LATEST: Final = -1
"""The version number that means the newest version that is not deleted. Clients send -1 or "latest"."""

SCHEMA_TYPE: Final = "AVRO"


def parse_version(text: str) -> int:
    """Parses a version number; "latest" and "-1" give `LATEST`.

    Raises:
        InvalidVersion: the text is neither "latest", "-1" nor a number from 1 to 2**31-1.
    """
    if text in ("latest", "-1"):
        return LATEST
    # A version has at most ten digits. The check keeps a very long text away from int(), which is slow on it.
    if not (text.isascii() and text.isdigit() and len(text) <= 10) or not 1 <= int(text) <= VERSION_MAX:
        raise InvalidVersion(version=text)
    return int(text)


@dataclass(frozen=True, slots=True, order=True)
class SubjectVersion:
    subject: str
    version: int


@dataclass(frozen=True, slots=True, order=True)
class SchemaReference:
    """A reference to another schema: `name` is the full type name that the referring schema uses, `subject` and
    `version` identify the version that defines the type."""

    name: str
    subject: str
    version: int


Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    """Metadata of a schema: properties, tags by the path of a record or field (such as `namespace.Record.field`), and
    the names of the properties that are sensitive. All three are sorted."""

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
        """Returns the metadata as a JSON object, which `Metadata.of` parses."""
        return {
            "properties": dict(self.properties),
            "tags": {path: list(names) for path, names in self.tags},
            "sensitive": list(self.sensitive),
        }


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class SchemaContent:
    """The content that a schema id identifies: canonical text, ordered references, metadata and rules.

    The class has no `__slots__`, because its cached properties need a `__dict__`.
    """

    text: str
    references: tuple[SchemaReference, ...] = ()
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None

    @cached_property
    def parts(self) -> tuple[str, str, str, str]:
        """Returns the text as it is, and the references, metadata and rules as JSON. Equal contents have equal
        parts."""
        return (
            self.text,
            _json([[reference.name, reference.subject, reference.version] for reference in self.references]),
            _json(None if self.metadata is None else self.metadata.to_json()),
            _json(None if self.rule_set is None else self.rule_set.to_json()),
        )

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 of the content. The database finds an equal content by this hash.

        It covers the text, and the references, metadata and rules as JSON. Each part is preceded by its length as 64
        bits, so different contents never hash the same bytes. The fingerprint is stored in the database: a change of
        the algorithm needs a migration.
        """
        digest = hashlib.sha256()
        for part in self.parts:
            encoded = part.encode()
            digest.update(struct.pack(">q", len(encoded)) + encoded)
        return digest.digest()

    @cached_property
    def guid_bytes(self) -> bytes:
        """MD5 over text, references (name, subject, version as 32 bits), metadata and rules.

        A byte 1 precedes the metadata and the rules. The Confluent Schema Registry hashes the same bytes, so a schema
        has the same guid in both. The parts are not delimited: contents that differ only in where one part ends share a
        guid. Therefore the registry compares contents by `fingerprint`, and uses the guid only in its API.
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
    """A schema with its id. `deleted` is True when every version that uses the schema is soft-deleted; the schema of a
    `StoredVersion` does not have this information, and `deleted` is False there.

    `row_key` is the primary key of the database row, which is never reused for another content; 0 if the schema does
    not come from the database.
    """

    schema_id: SchemaId
    content: SchemaContent
    created_ms: int
    deleted: bool = False
    context: str = DEFAULT_CONTEXT
    row_key: int = 0


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version of a subject and its schema. `deleted` is True for a soft-deleted version."""

    subject: str
    version: int
    schema: StoredSchema
    created_ms: int
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """A schema that a client registers, looks up or checks.

    A registration without `text` (None or blank) uses the text and references of the subject's latest version; an
    import must have a text. `version` is the number that the version must get; None, 0 and `LATEST` accept any number.
    `schema_id` is the id that the schema must get; only imports may set it. `tags_to_add` are applied before
    `tags_to_remove`. With `propagates_tags` the new version also has the tags of the subject's latest version on
    records and fields that it still defines. `invalid_reference` describes a reference that lacks a key, which
    `references` omits; "" if there is none.
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
    invalid_reference: str = ""


@dataclass(frozen=True, slots=True)
class TagChange:
    """A request to register a copy of an existing version with other tags, metadata or rules.

    Without `metadata` the copy has the metadata of the copied version. The rules of the copy are `rule_set`, or without
    it the rules of the subject's newest version. `rules_to_merge` and `rules_to_remove` (names of rules) take
    precedence over `rule_set`: they change the rules of version `new_version - 1`, or the rules of the subject's newest
    version if `new_version` is None or not above 1.
    """

    new_version: int | None = None
    tags_to_add: tuple[TaggedEntity, ...] = ()
    tags_to_remove: tuple[TaggedEntity, ...] = ()
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None
    rules_to_merge: RuleSet | None = None
    rules_to_remove: tuple[str, ...] | None = None


class Mode(StrEnum):
    """The changes that a subject allows. Reads are always allowed."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    """Read-only; see `service.modes.ModeInheritance`. The Confluent registry deprecated it in 8.2."""
    IMPORT = "IMPORT"
    """Registrations name the id, and may name the version, that the schema has in its source registry. They are not
    checked for compatibility."""
    FORWARD = "FORWARD"
    """Only for the scope of all contexts: like `IMPORT`, but the registry need not be empty."""

    @property
    def is_readonly(self) -> bool:
        return self in (Mode.READONLY, Mode.READONLY_OVERRIDE)

    @property
    def takes_ids(self) -> bool:
        """Whether registrations of new versions must name the schema id, as in an import."""
        return self in (Mode.IMPORT, Mode.FORWARD)


def parse_mode(text: str) -> Mode:
    """Parses a mode, ignoring case.

    Raises:
        InvalidMode: the text names no mode.
    """
    try:
        return Mode(text.upper())
    except ValueError:
        raise InvalidMode from None


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """The configuration that is set on one scope (a subject, a context or all contexts), or the effective configuration
    of one. A value of None is not set. `service.configuration.effective_config` determines which settings then come
    from the enclosing scopes."""

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
    """A change of the configuration of one scope. Only the keys in `changed_keys` are written, with their values in
    `values`; the value None removes a setting."""

    values: ConfigEntry = ConfigEntry()
    changed_keys: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        assert self.changed_keys <= {key.name for key in fields(ConfigEntry)}

    def applied_to(self, entry: ConfigEntry) -> ConfigEntry:
        return replace(entry, **{key: getattr(self.values, key) for key in self.changed_keys})


@dataclass(frozen=True, slots=True)
class ReplicationState:
    """State of a replica: the registry that it copies, and how current the copy is.

    A replica holds only what it copied from its source. Only the source takes changes, until the replica is promoted.

    Args:
        source: the identity of the source registry.
        url: the last URL that reached the source, for display.
        holder: the process that replicates. No other process replicates while it continues to poll.
        polled_ms: the time of the last successful poll.
        as_of_ms: this registry holds everything that the source held at this time; 0 before the first copy.
        mode: the global mode of the source, which the promotion restores; None if it has none. Until then the replica's
            own global mode is READONLY_OVERRIDE.
        promoted_ms: the time of the promotion, after which this registry takes changes and replicates no longer; None
            for a replica.

    Times are milliseconds since 1970 by the replica's clock.
    """

    source: str
    url: str
    holder: str
    polled_ms: int
    as_of_ms: int = 0
    mode: Mode | None = None
    promoted_ms: int | None = None

    @property
    def is_promoted(self) -> bool:
        return self.promoted_ms is not None

    def lag_s(self, now_ms: int) -> float:
        """Replication lag in seconds: the time from the last moment when the replica held everything that its source
        held, until `now_ms`. Before the first copy it is the time since 1970."""
        return max(0, now_ms - self.as_of_ms) / 1000
