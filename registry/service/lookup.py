"""Questions: subjects, versions, schemas by id, and which schema is already there."""

from __future__ import annotations

from dataclasses import dataclass

from avro_schema import self_contained_text
from registry.domain import SchemaRequest, StoredSchema, StoredVersion, SubjectVersion
from registry.errors import SchemaNotFound, SubjectNotFound, VersionNotFound
from registry.names import DEFAULT_CONTEXT, SubjectFilter
from registry.service.registration import matching
from registry.service.texts import SchemaTexts
from registry.storage.database import Database
from registry.storage.repository import Repository


@dataclass(frozen=True, slots=True)
class FoundSchema:
    """A schema by id. `used` is its newest version under the subject that was asked about, if it has one there."""

    schema: StoredSchema
    used: StoredVersion | None = None
    schema_id_max: int | None = None
    text_resolved: str | None = None

    @property
    def text(self) -> str:
        return self.schema.content.text if self.text_resolved is None else self.text_resolved


class Lookup:
    def __init__(self, database: Database, texts: SchemaTexts) -> None:
        self._database = database
        self._texts = texts

    def subjects(self, wanted: SubjectFilter, *, deleted: bool, deleted_only: bool) -> list[str]:
        return self._database.read(
            lambda repository: repository.subjects(wanted, deleted=deleted, deleted_only=deleted_only)
        )

    def versions(self, subject: str, *, deleted: bool, deleted_only: bool) -> list[int]:
        """Ascending.

        Raises:
            SubjectNotFound: there are none.
        """
        stored = self._database.read(lambda repository: repository.version_numbers(subject))
        found = [number for number, is_deleted in stored if (is_deleted if deleted_only else deleted or not is_deleted)]
        if not found:
            raise SubjectNotFound(subject=subject)
        return found

    def version(self, subject: str, version: int, *, deleted: bool) -> StoredVersion:
        """One version, or the newest for `LATEST`.

        Raises:
            SubjectNotFound: the subject has no visible version at all.
            VersionNotFound: it has others.
        """

        def read(repository: Repository) -> StoredVersion:
            found = repository.version(subject, version, deleted=deleted)
            if found is None:
                _require_subject(repository, subject, deleted=deleted)
                raise VersionNotFound(subject=subject, version=version)
            return found

        return self._database.read(read)

    def versions_of_subjects(self, wanted: SubjectFilter, *, deleted: bool, latest_only: bool) -> list[StoredVersion]:
        """All versions of the subjects that are wanted, ordered by subject and version."""
        found = self._database.read(lambda repository: repository.versions(wanted=wanted, deleted=deleted))
        if not latest_only:
            return found
        return list({item.subject: item for item in found}.values())

    def registered(self, subject: str, request: SchemaRequest, *, normalize: bool, deleted: bool) -> StoredVersion:
        """The version of a subject that holds a schema.

        Raises:
            InvalidSchema: the request has no schema.
            SubjectNotFound: the subject has no visible version.
            SchemaNotFound: it has, but none equals the schema.
        """

        def read(repository: Repository) -> StoredVersion:
            _require_subject(repository, subject, deleted=deleted)
            candidate = self._texts.candidate(repository, subject, request, normalize=normalize, strict=False)
            found = matching(repository, subject, candidate, request, deleted=deleted)
            if found is None:
                raise SchemaNotFound(subject=subject)
            return found

        return self._database.read(read)

    def referencing(self, subject: str, version: int) -> list[int]:
        """Ids of the live schemas that refer to a version.

        Raises:
            SubjectNotFound: the subject has no visible version.
            VersionNotFound: it has others.
        """

        def read(repository: Repository) -> list[int]:
            found = repository.version(subject, version)
            if found is None:
                _require_subject(repository, subject, deleted=False)
                raise VersionNotFound(subject=subject, version=version)
            return [schema.schema_id for schema in repository.referencing(subject, found.version, deleted=False)]

        return self._database.read(read)

    def schema(
        self, schema_id: int, *, subject: str | None = None, resolved: bool = False, with_id_max: bool = False
    ) -> FoundSchema:
        """A schema by id. With `resolved` its text has every referenced type written out.

        Raises:
            SchemaNotFound: no schema has the id.
        """

        def read(repository: Repository) -> FoundSchema:
            stored = _require_schema(repository, DEFAULT_CONTEXT, schema_id, shows_id=True)
            used = None
            if subject is not None:
                versions = repository.versions(subject=subject, schema_id=schema_id, deleted=True)
                used = max(versions, key=lambda item: (not item.deleted, item.version), default=None)
            return FoundSchema(
                stored,
                used,
                repository.schema_id_max(stored.context) if with_id_max else None,
                self_contained_text(self._texts.parsed(repository, stored)) if resolved else None,
            )

        return self._database.read(read)

    def users(self, schema_id: int, *, subject: str | None, deleted: bool) -> list[SubjectVersion]:
        """The versions that use a schema; none when all are deleted softly.

        Raises:
            SchemaNotFound: no schema has the id.
        """

        def read(repository: Repository) -> list[SubjectVersion]:
            stored = _require_schema(repository, DEFAULT_CONTEXT, schema_id, shows_id=False)
            users = repository.users([stored], deleted=deleted)
            return [user for user in users if subject is None or user.subject == subject]

        return self._database.read(read)


def _require_subject(repository: Repository, subject: str, *, deleted: bool) -> None:
    if not any(deleted or not is_deleted for _, is_deleted in repository.version_numbers(subject)):
        raise SubjectNotFound(subject=subject)


def _require_schema(repository: Repository, context: str, schema_id: int, *, shows_id: bool) -> StoredSchema:
    stored = repository.schema(context, schema_id)
    if stored is None:
        raise SchemaNotFound(schema_id=schema_id) if shows_id else SchemaNotFound()
    return stored
