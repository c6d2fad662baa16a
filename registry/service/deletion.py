"""Deletes versions, subjects and contexts. A soft-deleted version is hidden, but its schema stays readable by id."""

from __future__ import annotations

import logging
from collections.abc import Sequence

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


class Deletion:
    """Deletes versions, subjects and contexts.

    Each deletion is one write transaction, so that no reference can be added between the search for references and the
    deletion.
    """

    def __init__(self, database: Database, inheritance: ModeInheritance) -> None:
        self._database = database
        self._inheritance = inheritance

    def delete_version(self, subject: str, version: int, *, permanent: bool) -> int:
        """Deletes a version, the newest live one for `LATEST`, and returns its number.

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

        def delete(repository: Repository) -> int:
            repository.bump_revision()
            name = resolve_alias(repository, subject)
            state = repository.subject_state(name)
            if state is None:
                raise SubjectNotFound(subject=name)
            number, is_deleted = _chosen(repository, name, version)
            if is_deleted and not permanent:
                raise VersionSoftDeleted(subject=name, version=number)
            self._inheritance.require_writable(repository, name)
            _claim(repository, name, state, [number])
            if repository.referencing_schemas(name, number, deleted=permanent):
                raise ReferenceExists(subject=name, version=number)
            if permanent and not is_deleted:
                raise VersionNotSoftDeleted(subject=name, version=number)
            (repository.remove_versions if permanent else repository.mark_deleted)(state.subject_id, [number])
            return number

        number = self._database.write(delete)
        logger.info("version deleted: subject=%s version=%d permanent=%s", quoted_for_log(subject), number, permanent)
        return number

    def delete_subject(self, subject: str, *, permanent: bool) -> list[int]:
        """Deletes a subject. Returns the numbers of the versions that this call deleted, ascending.

        Without `permanent` the live versions become soft-deleted. With `permanent` a soft-deleted subject is removed
        for ever.

        Raises:
            SubjectNotFound: the subject does not exist.
            SubjectSoftDeleted: all versions are already soft-deleted and `permanent` is not set.
            OperationNotPermitted: the subject is read-only.
            SubjectNotSoftDeleted: `permanent` is set but a version is not soft-deleted.
            ReferenceExists: a schema of another subject refers to one of the versions.
        """

        def delete(repository: Repository) -> list[int]:
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
            _claim(repository, name, state, chosen)
            _refuse_foreign_references(repository, name, chosen, deleted=permanent)
            (repository.remove_versions if permanent else repository.mark_deleted)(state.subject_id, chosen)
            return chosen

        versions = self._database.write(delete)
        logger.info(
            "subject deleted: subject=%s versions=%d permanent=%s", quoted_for_log(subject), len(versions), permanent
        )
        return versions

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


def _claim(repository: Repository, subject: str, state: SubjectState, versions: Sequence[int]) -> None:
    """Verifies that the subject's state is still `state`, and locks the subject and the versions until the end of the
    transaction. Meanwhile no reference to the versions can be added. Queries after this call see all existing
    references.

    Raises:
        WriteConflict: the state of the subject has changed.
    """
    repository.claim_subject(subject, state)
    repository.lock_versions(state.subject_id, versions)


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
