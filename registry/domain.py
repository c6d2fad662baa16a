"""The registry's own words: subjects, versions, references, and what a schema is apart from where it is registered."""

from __future__ import annotations

import hashlib
import struct
import unicodedata
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NewType

from registry.errors import InvalidSubject, InvalidVersion

SchemaId = NewType("SchemaId", int)
"""Global number of a schema's content, from 1; the same content has the same id under every subject."""

Version = NewType("Version", int)
"""Number of a schema within its subject, from 1."""

VERSION_MAX: Final = 2**31 - 1
LATEST: Final = -1
"""What clients send for the newest version that is not deleted; the word "latest" says the same."""

SCHEMA_TYPE: Final = "AVRO"
RESERVED_SUBJECTS: Final = frozenset({"__GLOBAL", "__EMPTY"})
DEFAULT_CONTEXT_PREFIX: Final = ":.:"


def subject_name(text: str) -> str:
    """The subject that a path segment or a reference names; `:.:orders` is `orders`.

    Raises:
        InvalidSubject: it has control characters, a reserved name, or names a context other than the default one.
    """
    name = text.removeprefix(DEFAULT_CONTEXT_PREFIX)
    qualified = name.startswith((":.", ":*:"))
    if name in RESERVED_SUBJECTS or qualified or not is_storable(name):
        raise InvalidSubject(subject=text)
    return name


def is_storable(text: str) -> bool:
    """Whether a text is free of ISO control characters and lone surrogates, so that every database can hold it."""
    return not any(unicodedata.category(character) in ("Cc", "Cs") for character in text)


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


@dataclass(frozen=True)
class SchemaContent:
    """What the registry gives an id to: canonical text, references in order, and metadata.

    Not slotted, so that the fingerprint is computed once.
    """

    text: str
    references: tuple[SchemaReference, ...] = ()
    metadata: Metadata | None = None

    @cached_property
    def fingerprint(self) -> bytes:
        """MD5 over text, references (name, subject, version as 32 bits) and metadata behind a byte 1.

        The same bytes as in the Confluent Schema Registry, so that a schema has the same guid in both.
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
        return digest.digest()

    @property
    def guid(self) -> str:
        return str(uuid.UUID(bytes=self.fingerprint))


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A schema with its id. `deleted` is set when every version that uses it is deleted softly."""

    schema_id: SchemaId
    content: SchemaContent
    created_ms: int
    deleted: bool = False


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
    it does not care; `schema_id` an id it wants to impose.
    """

    text: str | None
    schema_type: str = SCHEMA_TYPE
    references: tuple[SchemaReference, ...] = ()
    metadata: Metadata | None = None
    version: int | None = None
    schema_id: int | None = None


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """What is configured at one scope; None is inherited."""

    compatibility: str | None = None
    normalize: bool | None = None

    @property
    def is_empty(self) -> bool:
        return self.compatibility is None and self.normalize is None


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change of a `ConfigEntry`: only the keys in `given` are written, a None there clears."""

    compatibility: str | None = None
    normalize: bool | None = None
    given: frozenset[str] = field(default_factory=frozenset)

    def applied_to(self, entry: ConfigEntry) -> ConfigEntry:
        return ConfigEntry(
            self.compatibility if "compatibility" in self.given else entry.compatibility,
            self.normalize if "normalize" in self.given else entry.normalize,
        )
