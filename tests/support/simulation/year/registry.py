"""A registry in memory, with deletion of subjects, and with a restore from an older copy, after which ids are assigned
again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from headrace.avro_schema import Schema, parse_schema
from headrace.registry.errors import RegistryUnavailable, SchemaNotFound, SubjectNotFound, VersionNotFound


class YearRegistry:
    """A registry in memory.

    Attributes:
        subjects: by subject: the schema ids by version.
        texts: the schemas by id.
    """

    def __init__(self) -> None:
        self.name = "registry-1"
        self.subjects: dict[str, dict[int, int]] = {}
        self.texts: dict[int, str] = {}
        self.metadata: dict[int, Mapping[str, str]] = {}
        self.is_down = False
        self.requests = 0
        self._newest_id = 0

    def register(self, subject: str, text: str, metadata: Mapping[str, str] | None = None) -> int:
        """Registers a schema and returns its id. As in any registry, equal texts have one id, and a subject has one
        version of each."""
        schema_id = next((one for one, known in self.texts.items() if known == text), 0)
        if not schema_id:
            self._newest_id += 1
            schema_id = self._newest_id
            self.texts[schema_id] = text
            self.metadata[schema_id] = metadata or {}
        versions = self.subjects.setdefault(subject, {})
        if schema_id not in versions.values():
            versions[max(versions, default=0) + 1] = schema_id
        return schema_id

    def reserve_ids(self, number: int) -> range:
        """Returns ids that will never be assigned, for malformed messages."""
        first = self._newest_id + 1
        self._newest_id += number
        return range(first, first + number)

    def delete_permanently(self, subject: str) -> None:
        """Permanently deletes a subject. Its version numbers start again, and ids that no other subject uses are
        deleted."""
        del self.subjects[subject]
        used = {schema_id for versions in self.subjects.values() for schema_id in versions.values()}
        self.texts = {schema_id: text for schema_id, text in self.texts.items() if schema_id in used}

    def copy(self) -> tuple[dict[str, dict[int, int]], dict[int, str], int]:
        return {subject: dict(one) for subject, one in self.subjects.items()}, dict(self.texts), self._newest_id

    def restore(self, snapshot: tuple[dict[str, dict[int, int]], dict[int, str], int], name: str) -> None:
        """Restores the registry from a copy. Later changes are lost, and their ids will be assigned again."""
        subjects, texts, self._newest_id = snapshot
        self.subjects = {subject: dict(one) for subject, one in subjects.items()}
        self.texts, self.name = dict(texts), name

    def _check_available(self) -> None:
        self.requests += 1
        if self.is_down:
            raise RegistryUnavailable("http://registry", "connection refused")

    def identity(self) -> str:
        self._check_available()
        return self.name

    def versions(self, subject: str) -> Sequence[int]:
        self._check_available()
        if subject not in self.subjects:
            raise SubjectNotFound(subject=subject)
        return sorted(self.subjects[subject])

    def version(self, subject: str, version: int) -> Any:
        self._check_available()
        found = self.subjects.get(subject, {}).get(version)
        if found is None:
            raise VersionNotFound(subject=subject, version=version)
        return self.schema_by_id(found)

    def schema_by_id(self, schema_id: int) -> Any:
        self._check_available()
        if schema_id not in self.texts:
            raise SchemaNotFound(schema_id=schema_id)
        metadata = self.metadata.get(schema_id, {})
        return SimpleNamespace(schema_id=schema_id, text=self.texts[schema_id], metadata=metadata)

    def parsed(self, registered: Any) -> Schema:
        return parse_schema(registered.text)
