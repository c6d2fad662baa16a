"""Deletes versions, subjects and contexts. A soft-deleted version is hidden, but its schema stays readable by id."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.registry.domain import LATEST
from headrace.registry.errors import (
    ContextNotEmpty,
    ReferenceExists,
    SubjectNotFound,
    SubjectNotSoftDeleted,
    SubjectSoftDeleted,
    VersionNotFound,
    VersionNotSoftDeleted,
    VersionSoftDeleted,
)
from headrace.registry.names import DEFAULT_CONTEXT, context_scope, quoted_for_log
from headrace.registry.service.configuration import resolve_alias
from headrace.registry.service.modes import ModeInheritance
from headrace.registry.storage.cache import SubjectState
from headrace.registry.storage.database import Database
from headrace.registry.storage.repository import Repository

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeletedVersions:
    """The versions that a request deleted. `subject` is the alias's target if the request named an alias.
    `schema_ids` are the ids of the versions by number, ascending."""

    subject: str
    schema_ids: Mapping[int, int]

    @property
    def numbers(self) -> list[int]:
        return list(self.schema_ids)


class Deletion:
    """Deletes versions, subjects and contexts.

    Each deletion is one write transaction, so that no reference can be added between the search for references and the
    deletion.
    """

    def __init__(self, database: Database, inheritance: ModeInheritance) -> None:
        self._database = database
        self._inheritance = inheritance

    def delete_version(self, subject: str, version: int, *, permanent: bool) -> DeletedVersions:
        """Deletes a version, the newest live one for `LATEST`, and returns it.

        Without `permanent` the version becomes soft-deleted. With `permanent` a soft-deleted version is removed for
        ever.

        Raises:
            SubjectNotFound: the subject does not exist.
            VersionNotFound: the version does not exist.
            VersionSoftDeleted: the version is already soft-deleted and `permanent` is not set.
            OperationNotPermitted: the subject is read-only.
            ReferenceExists: another schema refers to the version.
            VersionNotSoftDeleted: `permanent` is set but the version is not soft-deleted.
        """

        def delete(repository: Repository) -> DeletedVersions:
            repository.bump_revision()
            name = resolve_alias(repository, subject)
            state = repository.subject_state(name)
            if state is None:
                raise SubjectNotFound(subject=name)
            number, is_deleted = _chosen(repository, name, version)
            if is_deleted and not permanent:
                raise VersionSoftDeleted(subject=name, version=number)
            self._inheritance.require_writable(repository, name)
            schema_ids = _claim(repository, name, state, [number])
            if repository.referencing_schemas(name, number, deleted=permanent):
                raise ReferenceExists(subject=name, version=number)
            if permanent and not is_deleted:
                raise VersionNotSoftDeleted(subject=name, version=number)
            (repository.remove_versions if permanent else repository.mark_deleted)(state.subject_id, [number])
            return DeletedVersions(name, schema_ids)

        deleted = self._database.write(delete)
        logger.info(
            "version deleted: subject=%s version=%d permanent=%s",
            quoted_for_log(deleted.subject),
            deleted.numbers[0],
            permanent,
        )
        return deleted

    def delete_subject(self, subject: str, *, permanent: bool) -> DeletedVersions:
        """Deletes a subject. Returns the versions that this call deleted.

        Without `permanent` the live versions become soft-deleted. With `permanent` a soft-deleted subject is removed
        for ever.

        Raises:
            SubjectNotFound: the subject does not exist.
            SubjectSoftDeleted: all versions are already soft-deleted and `permanent` is not set.
            OperationNotPermitted: the subject is read-only.
            SubjectNotSoftDeleted: `permanent` is set but a version is not soft-deleted.
            ReferenceExists: a schema of another subject refers to one of the versions.
        """

        def delete(repository: Repository) -> DeletedVersions:
            repository.bump_revision()
            name = resolve_alias(repository, subject)
            state = repository.subject_state(name)
            stored = repository.version_numbers(name)
            if state is None or not stored:
                raise SubjectNotFound(subject=name)
            live = [number for number, is_deleted in stored if not is_deleted]
            if not permanent and not live:
                raise SubjectSoftDeleted(subject=name)
            self._inheritance.require_writable(repository, name)
            if permanent and live:
                raise SubjectNotSoftDeleted(subject=name)
            chosen = [number for number, _ in stored] if permanent else live
            schema_ids = _claim(repository, name, state, chosen)
            _refuse_foreign_references(repository, name, chosen, deleted=permanent)
            (repository.remove_versions if permanent else repository.mark_deleted)(state.subject_id, chosen)
            return DeletedVersions(name, schema_ids)

        deleted = self._database.write(delete)
        logger.info(
            "subject deleted: subject=%s versions=%d permanent=%s",
            quoted_for_log(deleted.subject),
            len(deleted.schema_ids),
            permanent,
        )
        return deleted

    def delete_context(self, context: str) -> bool:
        """Unlists an empty context and removes its configuration and mode; its ids are not reused. The default context
        is not changed.

        Returns:
            Whether there was anything to delete.

        Raises:
            ContextNotEmpty: the context has subjects, possibly soft-deleted.
            OperationNotPermitted: the context is read-only.
        """

        def delete(repository: Repository) -> bool:
            repository.bump_revision(of_settings=True)
            repository.lock_out_writers()
            if repository.has_subjects(context):
                raise ContextNotEmpty(context)
            scope = context_scope(context)
            self._inheritance.require_writable(repository, scope)
            if context == DEFAULT_CONTEXT:
                return False
            was_listed = repository.unlist_context(context)
            had_config = repository.remove_config(scope)
            return repository.remove_modes([scope]) or had_config or was_listed

        existed = self._database.write(delete)
        if existed:
            logger.info("context deleted: context=%s", quoted_for_log(context))
        return existed


def _claim(repository: Repository, subject: str, state: SubjectState, versions: Sequence[int]) -> dict[int, int]:
    """Verifies that the subject's state is still `state`, and locks the subject and the versions until the end of the
    transaction. Meanwhile no reference to the versions can be added. Queries after this call see all existing
    references. Returns the schema ids of the versions.

    Raises:
        WriteConflict: the state of the subject has changed.
    """
    repository.claim_subject(subject, state)
    return repository.lock_versions(state.subject_id, versions)


def _chosen(repository: Repository, subject: str, version: int) -> tuple[int, bool]:
    stored = repository.version_numbers(subject)
    if version == LATEST:
        stored = [item for item in stored if not item[1]][-1:]
    else:
        stored = [item for item in stored if item[0] == version]
    if not stored:
        raise VersionNotFound(subject=subject, version=version)
    return stored[0]


def _refuse_foreign_references(repository: Repository, subject: str, versions: Sequence[int], *, deleted: bool) -> None:
    deleted_versions = frozenset(versions)
    for version, user in repository.references_to(subject, deleted=deleted):
        if version in deleted_versions and user.subject != subject:
            raise ReferenceExists(subject=subject, version=version)
