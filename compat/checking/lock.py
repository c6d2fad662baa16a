"""The lock file: which version and id of a registry each schema file is, so that CI can prove that they still agree.

    {"format": 1, "schemas": [{"file", "subject", "version", "id", "sha256"}]}

`sha256` is of the canonical text, so that layout does not matter; references stand in it by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.avro_schema import SchemaParseError, canonical_text
from headrace.compat.checking.registering import RegistrationResult
from headrace.compat.checking.sources import Sources
from headrace.registry.client import RegistryClient
from headrace.registry.errors import SubjectNotFound, VersionNotFound

FORMAT = 1


class InvalidLock(Exception):
    """A text that is no lock file."""


@dataclass(frozen=True, slots=True)
class LockEntry:
    file: str
    subject: str
    version: int
    id: int
    sha256: str


def sha256_of(sources: Sources, path: str) -> str:
    """
    Raises:
        SchemaParseError: the file is no schema.
    """
    return hashlib.sha256(canonical_text(sources.types.schema(path)).encode()).hexdigest()


def lock_entry(item: RegistrationResult, sources: Sources) -> LockEntry:
    """The row of a schema that is registered."""
    assert item.version is not None
    assert item.schema_id is not None
    registration = item.registration
    digest = sha256_of(sources, registration.file)
    return LockEntry(registration.file, registration.subject, item.version, item.schema_id, digest)


def lock_text(rows: Sequence[LockEntry]) -> str:
    ordered = sorted(rows, key=lambda row: (row.file, row.subject))
    return json.dumps({"format": FORMAT, "schemas": [asdict(row) for row in ordered]}, indent=2) + "\n"


def parse_lock(text: str) -> tuple[LockEntry, ...]:
    """
    Raises:
        InvalidLock: says what is wrong.
    """
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidLock(f"not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidLock(f"expected an object of format {FORMAT}")
    try:
        return tuple(LockEntry(**row) for row in document["schemas"])
    except (KeyError, TypeError):
        raise InvalidLock('expected "schemas" to be a list of file, subject, version, id and sha256') from None


def find_differences(
    rows: Sequence[LockEntry], sources: Sources, subjects: dict[str, str], client: RegistryClient | None
) -> Iterator[str]:
    """Where files, lock and registry do not agree, each in one sentence.

    Args:
        subjects: file to subject, of the files that should be in the lock.
        client: None to leave the registry out.
    """
    by_file = {row.file: row for row in rows}
    for file, subject in subjects.items():
        row = by_file.get(file)
        if row is None:
            yield f"{file}: is not in the lock; register it and write the lock anew"
        elif row.subject != subject:
            yield f"{file}: its subject is {subject}, but {row.subject} in the lock"
        else:
            yield from _file_differs(row, sources)
    for row in rows:
        if row.file not in subjects and row.file not in sources.types.texts:
            yield f"{row.file}: is in the lock, but not among the files"
        if client is not None:
            yield from _registry_differs(row, client)


def _file_differs(row: LockEntry, sources: Sources) -> Iterator[str]:
    try:
        digest = sha256_of(sources, row.file)
    except SchemaParseError as error:
        yield f"{row.file}: is not a schema: {error}"
        return
    if digest != row.sha256:
        yield f"{row.file}: differs from {row.subject} version {row.version}, which the lock pins"


def _registry_differs(row: LockEntry, client: RegistryClient) -> Iterator[str]:
    what = f"{row.subject} version {row.version}"
    try:
        if row.version not in client.versions(row.subject):
            yield f"{row.file}: the registry no longer has {what}"
            return
        found = client.version(row.subject, row.version)
    except (SubjectNotFound, VersionNotFound):
        yield f"{row.file}: the registry no longer has {what}"
        return
    if found.schema_id != row.id:
        yield f"{row.file}: {what} has id {found.schema_id} in the registry, but {row.id} in the lock"
        return
    try:
        digest = hashlib.sha256(canonical_text(client.parsed(found)).encode()).hexdigest()
    except SchemaParseError as error:
        yield f"{row.file}: {what} is not a schema in the registry: {error}"
        return
    if digest != row.sha256:
        yield f"{row.file}: {what} has another content in the registry than in the lock"
