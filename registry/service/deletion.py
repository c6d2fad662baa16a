"""Deleting softly, which hides a version but keeps its schema readable by id, and then for good."""

from __future__ import annotations

import logging

from registry.domain import LATEST
from registry.errors import (
    ReferenceExists,
    SubjectNotFound,
    SubjectNotSoftDeleted,
    SubjectSoftDeleted,
    VersionNotFound,
    VersionNotSoftDeleted,
    VersionSoftDeleted,
)
from registry.storage.database import Database
from registry.storage.repository import Repository

logger = logging.getLogger(__name__)


class Deletion:
    """Each deletion is one write transaction, so that no reference can appear between the check and the change."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def delete_version(self, subject: str, version: int, *, permanent: bool) -> int:
        """Returns the number of the version that was deleted, which is the newest visible one for `LATEST`.

        Raises:
            SubjectNotFound: nothing is stored under the subject.
            VersionNotFound: no such version is stored.
            VersionSoftDeleted: it is deleted softly and `permanent` is not set.
            VersionNotSoftDeleted: `permanent` is set but it is not deleted softly.
            ReferenceExists: another schema refers to it.
        """

        def delete(repository: Repository) -> int:
            repository.bump_revision()
            state = repository.subject_state(subject)
            if state is None:
                raise SubjectNotFound(subject=subject)
            number, is_deleted = _chosen(repository, subject, version)
            if permanent and not is_deleted:
                raise VersionNotSoftDeleted(subject=subject, version=number)
            if is_deleted and not permanent:
                raise VersionSoftDeleted(subject=subject, version=number)
            subject_id = repository.claim_subject(subject, state)
            repository.lock_versions(subject_id, [number])
            if repository.referencing(subject, number, deleted=permanent):
                raise ReferenceExists(subject=subject, version=number)
            (repository.remove_versions if permanent else repository.mark_deleted)(subject_id, [number])
            return number

        number = self._database.write(delete)
        logger.info("version deleted: subject=%s version=%d permanent=%s", subject, number, permanent)
        return number

    def delete_subject(self, subject: str, *, permanent: bool) -> list[int]:
        """Returns the versions that were deleted, ascending.

        Raises:
            SubjectNotFound: nothing is stored under the subject.
            SubjectSoftDeleted: all is deleted softly and `permanent` is not set.
            SubjectNotSoftDeleted: `permanent` is set but not all is deleted softly.
            ReferenceExists: a schema of another subject refers to one of its versions.
        """

        def delete(repository: Repository) -> list[int]:
            repository.bump_revision()
            state = repository.subject_state(subject)
            stored = repository.version_numbers(subject)
            if state is None or not stored:
                raise SubjectNotFound(subject=subject)
            live = [number for number, is_deleted in stored if not is_deleted]
            if permanent and live:
                raise SubjectNotSoftDeleted(subject=subject)
            if not permanent and not live:
                raise SubjectSoftDeleted(subject=subject)
            chosen = [number for number, _ in stored] if permanent else live
            subject_id = repository.claim_subject(subject, state)
            repository.lock_versions(subject_id, chosen)
            for number in chosen:
                _refuse_foreign_references(repository, subject, number, deleted=permanent)
            (repository.remove_versions if permanent else repository.mark_deleted)(subject_id, chosen)
            return chosen

        versions = self._database.write(delete)
        logger.info("subject deleted: subject=%s versions=%d permanent=%s", subject, len(versions), permanent)
        return versions


def _chosen(repository: Repository, subject: str, version: int) -> tuple[int, bool]:
    stored = repository.version_numbers(subject)
    if version == LATEST:
        stored = [item for item in stored if not item[1]][-1:]
    else:
        stored = [item for item in stored if item[0] == version]
    if not stored:
        raise VersionNotFound(subject=subject, version=version)
    return stored[0]


def _refuse_foreign_references(repository: Repository, subject: str, version: int, *, deleted: bool) -> None:
    referencing = repository.referencing(subject, version, deleted=deleted)
    users = repository.users(referencing, deleted=deleted)
    if any(user.subject != subject for user in users):
        raise ReferenceExists(subject=subject, version=version)
