"""The lock file pins the registry version and id of each schema file, so that CI can detect differences.

    {"format": 1, "schemas": [{"file", "subject", "version", "id", "sha256"}]}

`sha256` is the hash of the canonical text, so that formatting does not matter; references are included by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.avro_schema import SchemaParseError, canonical_text
from headrace.compat.checking.registering import RegisteredFile
from headrace.compat.checking.sources import Sources
from headrace.registry.client import RegistryClient
from headrace.registry.errors import SubjectNotFound, VersionNotFound

FORMAT = 1


class InvalidLock(Exception):
    """A text is not a valid lock file (the list of the registry version and id of each schema file)."""


@dataclass(frozen=True, slots=True)
class LockEntry:
    file: str
    subject: str
    version: int
    id: int
    sha256: str

    def __post_init__(self) -> None:
        texts, numbers = (self.file, self.subject, self.sha256), (self.version, self.id)
        if any(type(text) is not str for text in texts) or any(type(number) is not int for number in numbers):
            raise TypeError(
                "a schema of a lock file needs file, subject and sha256 as text, and version and id as integers"
            )


def sha256_of(sources: Sources, path: str) -> str:
    """Returns the SHA-256, in hex, of the canonical text of the schema file at `path`.

    Args:
        sources: the schema files, with the types that they use.

    Raises:
        SchemaParseError: the file is not a schema.
    """
    return hashlib.sha256(canonical_text(sources.types.schema(path)).encode()).hexdigest()


def lock_entry(item: RegisteredFile, sources: Sources) -> LockEntry:
    """Returns the entry of the lock file for a registered schema: its subject, version, id and hash.

    Args:
        item: the result of its registration, which has a version and an id.
        sources: the schema files.
    """
    assert item.version is not None
    assert item.schema_id is not None
    registration = item.registration
    digest = sha256_of(sources, registration.file)
    return LockEntry(registration.file, registration.subject, item.version, item.schema_id, digest)


def lock_text(rows: Sequence[LockEntry]) -> str:
    ordered = sorted(rows, key=lambda row: (row.file, row.subject))
    return json.dumps({"format": FORMAT, "schemas": [asdict(row) for row in ordered]}, indent=2) + "\n"


def parse_lock(text: str) -> tuple[LockEntry, ...]:
    """Returns the entries of a lock file, which lists the registry version and id of each schema file.

    Raises:
        InvalidLock: the text is not a lock file; the message gives the reason.
    """
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidLock(f"not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidLock(f'expected an object with "format": {FORMAT}')
    try:
        return tuple(LockEntry(**row) for row in document["schemas"])
    except (KeyError, TypeError):
        raise InvalidLock(
            'expected "schemas" to be a list of objects with file, subject, version, id and sha256'
        ) from None


def find_differences(
    rows: Sequence[LockEntry], sources: Sources, subjects: dict[str, str], client: RegistryClient | None
) -> Iterator[str]:
    """Yields the differences between the schema files, the lock file (which lists the registry version and id of each
    schema file) and the registry, one sentence each.

    Args:
        rows: the entries of the lock file.
        sources: the schema files.
        subjects: maps the files that must be in the lock file to their subjects.
        client: client of the registry; None to compare only the schema files and the lock file.
    """
    by_file = {row.file: row for row in rows}
    for file, subject in subjects.items():
        row = by_file.get(file)
        if row is None:
            yield f"{file}: is not in the lock file; register the schema, then run headrace schema lock"
        elif row.subject != subject:
            yield f"{file}: its subject is {subject}, but {row.subject} in the lock file; run headrace schema lock"
        else:
            yield from _file_differs(row, sources)
    for row in rows:
        if row.file not in subjects and row.file not in sources.types.texts:
            yield f"{row.file}: is in the lock file, but not among the files; restore it or run headrace schema lock"
        if client is not None:
            yield from _registry_differs(row, client)


def _file_differs(row: LockEntry, sources: Sources) -> Iterator[str]:
    try:
        digest = sha256_of(sources, row.file)
    except SchemaParseError as error:
        yield f"{row.file}: is not a schema: {error}"
        return
    if digest != row.sha256:
        yield (
            f"{row.file}: differs from {row.subject} version {row.version}, which the lock file pins; register the new "
            "schema and run headrace schema lock"
        )


def _registry_differs(row: LockEntry, client: RegistryClient) -> Iterator[str]:
    version = f"{row.subject} version {row.version}"
    try:
        if row.version not in client.versions(row.subject):
            yield f"{row.file}: the registry no longer has {version}; register the schema and run headrace schema lock"
            return
        found = client.version(row.subject, row.version)
    except (SubjectNotFound, VersionNotFound):
        yield f"{row.file}: the registry no longer has {version}; register the schema and run headrace schema lock"
        return
    if found.schema_id != row.id:
        yield (
            f"{row.file}: {version} has id {found.schema_id} in the registry, but {row.id} in the lock file; check "
            "registry.url, or run headrace schema lock"
        )
        return
    try:
        digest = hashlib.sha256(canonical_text(client.parsed(found)).encode()).hexdigest()
    except SchemaParseError as error:
        yield f"{row.file}: {version} is not a schema in the registry: {error}"
        return
    if digest != row.sha256:
        yield (
            f"{row.file}: the content of {version} differs between registry and lock file; check registry.url, or run "
            "headrace schema lock"
        )
