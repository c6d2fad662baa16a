"""Questions of somebody who may not read everything: the same answers, without what they may not read.

A subject that a path names has been decided about before; here is what an answer may hold of others: lists, schemas by
id or guid, and subjects of the same name in other contexts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.registry.domain import StoredSchema, SubjectVersion
from headrace.registry.errors import AccessRefused
from headrace.registry.names import SubjectFilter
from headrace.registry.service.lookup import Lookup
from headrace.registry.storage.repository import Repository

MayRead = Callable[[str], bool]


class RestrictedLookup(Lookup):
    """What `may_read` does not allow is not there. Names of contexts are shown to all."""

    def __init__(self, whole: Lookup, may_read: MayRead) -> None:
        super().__init__(whole._database, whole._texts, whole._configuration)
        self._may_read = may_read

    def subjects(self, wanted: SubjectFilter, *, deleted: bool, deleted_only: bool) -> list[str]:
        found = super().subjects(wanted, deleted=deleted, deleted_only=deleted_only)
        return [name for name in found if self._may_read(name)]

    def _is_shown(self, subject: str) -> bool:
        return self._may_read(subject)

    def users(self, schema_id: int, *, subject: str | None, deleted: bool) -> list[SubjectVersion]:
        found = super().users(schema_id, subject=subject, deleted=deleted)
        return [user for user in found if self._may_read(user.subject)]

    def _elsewhere(self, repository: Repository, subject: str) -> Iterator[str]:
        return (name for name in super()._elsewhere(repository, subject) if self._may_read(name))

    def _readable(self, repository: Repository, schemas: list[StoredSchema]) -> list[StoredSchema]:
        found = [schema for schema in schemas if self._is_readable(repository, schema)]
        if not found:
            raise AccessRefused("Denied: no subject that uses this schema may be read")
        return found

    def _is_readable(self, repository: Repository, schema: StoredSchema) -> bool:
        return any(map(self._may_read, repository.subjects_using(schema.row_key)))
