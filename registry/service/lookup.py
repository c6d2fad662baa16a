"""Reads subjects, versions, and schemas by id and guid, and finds the version with a given schema.

A subject in a path may be an alias. If the default context has no result for a subject without a context, `version`,
`find_version`, `referencing_ids`, `schema` and `versions_using` also search the other contexts: a consumer has the id
and the topic of a message, but not the context of its producer.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from headrace.registry.domain import LATEST, SchemaRequest, StoredSchema, StoredVersion, SubjectVersion
from headrace.registry.errors import AccessDenied, InvalidSchema, SchemaNotFound, SubjectNotFound, VersionNotFound
from headrace.registry.metadata import has_properties
from headrace.registry.names import (
    DEFAULT_CONTEXT,
    SubjectFilter,
    context_of,
    is_context_scope,
    is_qualified,
    qualified,
    resolve_in_context,
    split_subject,
)
from headrace.registry.service.configuration import Configuration, resolve_alias
from headrace.registry.service.matching import complete_request, find_matching_version, has_schema_text
from headrace.registry.service.schema_parser import SchemaParser
from headrace.registry.storage.database import Database
from headrace.registry.storage.repository import Repository

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class FoundSchema:
    """A schema that was found by its id or guid. `newest_version` is the newest version of the requested subject with
    this schema, a live one if there is any; None if the subject has none or no subject was requested. `schema_id_max`
    is the highest id of the schema's context; None unless it was requested."""

    schema: StoredSchema
    newest_version: StoredVersion | None = None
    schema_id_max: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ListedVersion:
    """A version with the sorted aliases of its subject that match the filter of the list; none unless aliases were
    requested."""

    stored: StoredVersion
    aliases: tuple[str, ...] = ()


class Lookup:
    def __init__(self, database: Database, parser: SchemaParser, configuration: Configuration) -> None:
        self._database = database
        self._parser = parser
        self._configuration = configuration

    def identity(self) -> str:
        """The random name of this registry's database. It is the same in all processes; a recreated database has
        another one."""
        return self._database.read(lambda repository: repository.identity())

    def contexts(self, *, prefix: str = "") -> list[str]:
        found = self._database.read(lambda repository: repository.contexts())
        return [context for context in found if context.startswith(prefix)]

    def scopes(self) -> list[str | None]:
        """The scopes that have a configuration or mode of their own, also contexts and subjects without versions. None
        is the default context."""
        found = self._database.read(lambda repository: {*repository.config_scopes(), *repository.mode_scopes()})
        return sorted(found, key=lambda scope: split_subject(scope or ""))

    def subjects(self, subject_filter: SubjectFilter, *, deleted: bool, deleted_only: bool) -> list[str]:
        return self._database.read(
            lambda repository: repository.subjects(subject_filter, deleted=deleted, deleted_only=deleted_only)
        )

    def resolve_alias(self, subject: str) -> str:
        """The subject that `subject` is an alias of, or `subject` itself."""
        return self._database.read(lambda repository: resolve_alias(repository, subject))

    def versions(
        self, subject: str, *, deleted: bool, deleted_only: bool, deleted_as_negative: bool = False
    ) -> list[int]:
        """Version numbers of a subject, ascending; of live versions only, unless an argument selects others.

        Args:
            subject: the subject; an alias is resolved.
            deleted: includes soft-deleted versions.
            deleted_only: returns soft-deleted versions only.
            deleted_as_negative: returns all versions, soft-deleted ones with a minus sign.

        Raises:
            SubjectNotFound: the subject does not exist, or has soft-deleted versions only and these were not requested.
        """

        def read(repository: Repository) -> list[int]:
            name = resolve_alias(repository, subject)
            stored = repository.version_numbers(name)
            live = [number for number, is_deleted in stored if not is_deleted]
            if not (stored if deleted or deleted_only or deleted_as_negative else live):
                raise SubjectNotFound(subject=name)
            if deleted_as_negative:
                return [-number if is_deleted else number for number, is_deleted in stored]
            if deleted_only:
                return [number for number, is_deleted in stored if is_deleted]
            return [number for number, _ in stored] if deleted else live

        return self._database.read(read)

    def version(self, subject: str, version: int, *, deleted: bool, other_contexts: bool = True) -> StoredVersion:
        """One version, or the newest live one for `LATEST`.

        Args:
            subject: the subject; an alias is resolved.
            version: the version number or `LATEST`.
            deleted: finds the version even if it is soft-deleted.
            other_contexts: searches an unqualified subject in other contexts too.

        Raises:
            SubjectNotFound: the subject has no visible version.
            VersionNotFound: the subject exists but has no such version.
        """

        def read(repository: Repository) -> StoredVersion:
            def find(name: str) -> StoredVersion | None:
                return repository.version(name, version, deleted=deleted and version != LATEST)

            name = resolve_alias(repository, subject)
            found = self._first_in_contexts(repository, name, find) if other_contexts else find(name)
            if found is None:
                _require_subject(repository, name, deleted=deleted)
                raise VersionNotFound(subject=name, version=version)
            return found

        return self._database.read(read)

    def latest_with_metadata(self, subject: str, properties: Mapping[str, str], *, deleted: bool) -> StoredVersion:
        """The newest version with all these properties in its metadata; with `deleted` soft-deleted versions are
        searched too.

        Raises:
            SubjectNotFound: the subject has no visible version.
            SchemaNotFound: no version has the properties.
        """

        def read(repository: Repository) -> StoredVersion:
            name = resolve_alias(repository, subject)
            for stored in reversed(repository.versions(subject=name, deleted=deleted)):
                if has_properties(stored.schema.content.metadata, properties):
                    return stored
            _require_subject(repository, name, deleted=deleted)
            raise SchemaNotFound(subject=name)

        return self._database.read(read)

    def versions_of_subjects(
        self,
        subject_filter: SubjectFilter,
        *,
        deleted: bool,
        latest_only: bool,
        page: Callable[[list[SubjectVersion]], list[SubjectVersion]],
        rule_type: str = "",
        aliases: bool = False,
    ) -> list[ListedVersion]:
        """Versions of the matching subjects, ordered by subject and version.

        Args:
            subject_filter: matches subjects.
            deleted: includes soft-deleted versions.
            latest_only: only the newest version of each subject.
            page: selects the part of the list to return, so that only its schemas are read.
            rule_type: only versions with a rule of this type.
            aliases: includes the subjects that matching aliases stand for, and the aliases of each subject.
        """

        def read(repository: Repository) -> list[ListedVersion]:
            names = _aliases(repository, subject_filter) if aliases else {}
            found = set(repository.listed_versions(subject_filter, deleted=deleted))
            for name in names:
                numbers = repository.version_numbers(name)
                found.update(
                    SubjectVersion(name, number) for number, is_deleted in numbers if deleted or not is_deleted
                )
            chosen = [item for item in sorted(found) if self._is_shown(item.subject)]
            if latest_only:
                chosen = list({item.subject: item for item in chosen}.values())
            if rule_type:
                loaded = repository.load_versions(chosen)
                chosen = [SubjectVersion(item.subject, item.version) for item in loaded if _has_rule(item, rule_type)]
            return [
                ListedVersion(item, tuple(filter(self._is_shown, names.get(item.subject, ()))))
                for item in repository.load_versions(page(chosen))
            ]

        return self._database.read(read)

    def _is_shown(self, subject: str) -> bool:
        """Whether lists may contain a subject. `RestrictedLookup` hides the subjects that its client may not read."""
        return True

    def find_version(self, subject: str, request: SchemaRequest, *, normalize: bool, deleted: bool) -> StoredVersion:
        """The version of a subject that has the request's schema; of several, a version with exactly the request's
        content first, then the newest.

        Args:
            subject: the subject; an alias is resolved.
            request: the schema.
            normalize: normalizes the schema's text first.
            deleted: searches soft-deleted versions too.

        Raises:
            InvalidSchema: the request's schema is malformed, or one of its references cannot be used.
            SubjectNotFound: the subject has no visible version.
            SchemaNotFound: no version equals the schema, or the request has no schema.
        """

        def read(repository: Repository) -> StoredVersion:
            # The view is read first, because its statement also reads the revision of the configuration.
            repository.subject_view(subject)
            name = resolve_alias(repository, subject)
            found = self._find_version(repository, name, request, normalize, deleted)
            if found is not None:
                return found
            for other in self._in_other_contexts(repository, name):
                try:
                    found = self._find_version(repository, other, request, normalize, deleted)
                except InvalidSchema:
                    continue  # a reference does not exist in that context
                if found is not None:
                    return found
            _require_subject(repository, name, deleted=deleted)
            raise SchemaNotFound(subject=name)

        return self._database.read(read)

    def _find_version(
        self, repository: Repository, subject: str, request: SchemaRequest, normalize: bool, deleted: bool
    ) -> StoredVersion | None:
        view = repository.subject_view(subject)
        if not has_schema_text(request):
            return None
        config = self._configuration.config(repository, subject)
        normalize = normalize or bool(config.normalize)
        # Parsed also for an unknown subject: a malformed schema is reported before a missing subject.
        candidate = self._parser.parse_candidate(
            repository, subject, request, normalize=normalize, strict=False, deleted=True
        )
        if view.entry(LATEST, deleted=deleted) is None:
            return None
        found = find_matching_version(repository, self._parser, subject, view, candidate, deleted=deleted)
        if found is not None:
            return found
        latest = repository.version(subject, LATEST)
        if latest is None:
            return None
        # As in a registration: metadata and rules that the request omits are those of the latest version.
        request = complete_request(request, config, latest, None)
        content = candidate.content
        if (request.metadata, request.rule_set) == (content.metadata, content.rule_set):
            return None
        content = dataclasses.replace(content, metadata=request.metadata, rule_set=request.rule_set)
        return find_matching_version(
            repository, self._parser, subject, view, dataclasses.replace(candidate, content=content), deleted=deleted
        )

    def referencing_ids(self, subject: str, version: int, *, deleted: bool) -> list[int]:
        """Sorted ids of the schemas that refer to a version; unless `deleted`, only of those with a live version.

        Raises:
            SubjectNotFound: the subject does not exist.
            VersionNotFound: the version does not exist.
        """

        def read(repository: Repository) -> list[int]:
            name = resolve_alias(repository, subject)
            found = self._first_in_contexts(
                repository, name, lambda other: repository.version(other, version, deleted=version != LATEST)
            )
            if found is None:
                _require_subject(repository, name, deleted=True)
                raise VersionNotFound(subject=name, version=version)
            schemas = repository.referencing_schemas(found.subject, found.version, deleted=deleted)
            schemas = [schema for schema in schemas if self._is_readable(repository, schema)]
            return sorted({schema.schema_id for schema in schemas})

        return self._database.read(read)

    def schema(self, schema_id: int, *, subject: str | None = None, with_id_max: bool = False) -> FoundSchema:
        """A schema by id.

        Args:
            schema_id: the id.
            subject: its context is the context of the id; None means the default context. The result has the newest
                version of this subject with the schema.
            with_id_max: whether to return the highest id of the context.

        Raises:
            SchemaNotFound: no schema has the id; for a subject in another context than the default one also if no
                version of the subject uses the schema.
        """

        def read(repository: Repository) -> FoundSchema:
            stored, used = self._by_id(repository, schema_id, subject)
            if stored is None:
                raise SchemaNotFound(schema_id=schema_id)
            return FoundSchema(stored, used, repository.schema_id_max(stored.context) if with_id_max else None)

        return self._database.read(read)

    def schema_by_guid(self, guid: str) -> FoundSchema:
        """A schema by guid, from any context.

        Raises:
            SchemaNotFound: no schema has the guid.
        """
        return self._database.read(lambda repository: FoundSchema(self._by_guid(repository, guid)[0]))

    def ids_of_guid(self, guid: str) -> list[tuple[str, int]]:
        """The contexts that have the schema with this guid, each with the schema's id there; sorted (context, id)
        pairs. A context appears several times if the schema has several ids there.

        Raises:
            SchemaNotFound: no schema has the guid.
        """
        found = self._database.read(lambda repository: self._by_guid(repository, guid))
        return sorted((stored.context, stored.schema_id) for stored in found)

    def versions_using(self, schema_id: int, *, subject: str | None, deleted: bool) -> list[SubjectVersion]:
        """The versions that use a schema; without `deleted` only live ones, so the list may be empty. The id belongs to
        the context of `subject`, or to the default context if `subject` is None. The schema is searched like in
        `schema`.

        Raises:
            SchemaNotFound: no schema has the id.
        """

        def read(repository: Repository) -> list[SubjectVersion]:
            stored, _ = self._by_id(repository, schema_id, subject)
            if stored is None:
                raise SchemaNotFound
            return repository.versions_using(stored, deleted=deleted)

        return self._database.read(read)

    def _in_other_contexts(self, repository: Repository, subject: str) -> Iterator[str]:
        """The existing subjects with the name `subject` in contexts other than the default one, as qualified names;
        empty if `subject` has a context itself."""
        if is_qualified(subject):
            return
        names = [qualified(context, subject) for context in repository.contexts() if context != DEFAULT_CONTEXT]
        # One query for all, because most contexts have no such subject.
        stored = repository.stored_subjects(names)
        yield from (name for name in names if name in stored)

    def _readable(self, repository: Repository, schemas: list[StoredSchema]) -> list[StoredSchema]:
        """Returns the schemas that the client may read. This class returns all; `RestrictedLookup` overrides
        the method.

        Raises:
            AccessDenied: there are schemas, but the client may read none of them.
        """
        return schemas

    def _is_readable(self, repository: Repository, schema: StoredSchema) -> bool:
        """Whether the client may read a schema. True in this class; `RestrictedLookup` overrides the method."""
        return True

    def _first_in_contexts(self, repository: Repository, subject: str, find: Callable[[str], T | None]) -> T | None:
        """Calls `find`, which searches one subject, with the subject and then with the subjects of the same name in
        other contexts. Returns the first result that is not None."""
        found = find(subject)
        if found is not None:
            return found
        others = (find(other) for other in self._in_other_contexts(repository, subject))
        return next((item for item in others if item is not None), None)

    def _by_id(
        self, repository: Repository, schema_id: int, subject: str | None
    ) -> tuple[StoredSchema | None, StoredVersion | None]:
        """Returns a schema by id in the context of a subject (None if it is not found), and its newest version under
        that subject (a live one if there is any, None without one).

        With a qualified subject (`:.eu:orders`) the schema is found only if a version of the subject uses it. With a
        context alone (`:.eu:`) every schema of that context is found. For an unqualified subject the search continues
        with subjects of the same name in other contexts, and then with all schemas of the default context.
        """
        if not subject or is_context_scope(subject):
            return self._by_id_in(repository, context_of(subject or ""), schema_id), None
        name = resolve_alias(repository, subject)

        def find(other: str) -> tuple[StoredSchema, StoredVersion] | None:
            stored = repository.schema(context_of(other), schema_id)
            if stored is None or not self._is_shown(other):
                return None
            versions = repository.versions(subject=other, schema_key=stored.row_key, deleted=True)
            used = max(versions, key=lambda item: (not item.deleted, item.version), default=None)
            return None if used is None else (stored, used)

        found = self._first_in_contexts(repository, name, find)
        if found is not None:
            self._readable(repository, [found[0]])
            return found
        return (None if is_qualified(name) else self._by_id_in(repository, DEFAULT_CONTEXT, schema_id)), None

    def _by_id_in(self, repository: Repository, context: str, schema_id: int) -> StoredSchema | None:
        stored = repository.schema(context, schema_id)
        return None if stored is None else self._readable(repository, [stored])[0]

    def _by_guid(self, repository: Repository, guid: str) -> list[StoredSchema]:
        try:
            found = repository.schemas_by_guid(uuid.UUID(guid).bytes)
        except ValueError:
            found = []
        if not found:
            raise SchemaNotFound(message=f"Schema {guid} not found")
        return self._readable(repository, found)


def _aliases(repository: Repository, subject_filter: SubjectFilter) -> dict[str, tuple[str, ...]]:
    """Returns the aliases that match the filter, grouped by the subject that they refer to."""
    found: dict[str, list[str]] = {}
    for scope, alias in repository.aliases().items():
        if scope is None or is_context_scope(scope) or not alias:
            continue
        context, name = split_subject(scope)
        if subject_filter.context in (None, context) and name.startswith(subject_filter.prefix):
            found.setdefault(resolve_in_context(scope, alias), []).append(scope)
    return {subject: tuple(sorted(names)) for subject, names in found.items()}


def _has_rule(stored: StoredVersion, rule_type: str) -> bool:
    rule_set = stored.schema.content.rule_set
    return rule_set is not None and rule_set.has_type(rule_type)


def _require_subject(repository: Repository, subject: str, *, deleted: bool) -> None:
    if not any(deleted or not is_deleted for _, is_deleted in repository.version_numbers(subject)):
        raise SubjectNotFound(subject=subject)


MayRead = Callable[[str], bool]


class RestrictedLookup(Lookup):
    """A lookup for a client that may not read all subjects; hides subjects for which `may_read` returns False.

    Access to a subject in the path is checked earlier. This class filters other subjects in responses: lists, schemas
    by id or guid, and subjects of the same name in other contexts. Names of contexts are visible to all. Methods that
    read a schema by id or guid raise `AccessDenied` if the client may read none of the subjects that use it.
    """

    def __init__(self, unrestricted: Lookup, may_read: MayRead) -> None:
        super().__init__(unrestricted._database, unrestricted._parser, unrestricted._configuration)
        self._may_read = may_read

    def subjects(self, subject_filter: SubjectFilter, *, deleted: bool, deleted_only: bool) -> list[str]:
        found = super().subjects(subject_filter, deleted=deleted, deleted_only=deleted_only)
        return [name for name in found if self._may_read(name)]

    def scopes(self) -> list[str | None]:
        return [scope for scope in super().scopes() if is_context_scope(scope) or self._may_read(scope or "")]

    def _is_shown(self, subject: str) -> bool:
        return self._may_read(subject)

    def versions_using(self, schema_id: int, *, subject: str | None, deleted: bool) -> list[SubjectVersion]:
        found = super().versions_using(schema_id, subject=subject, deleted=deleted)
        return [user for user in found if self._may_read(user.subject)]

    def _in_other_contexts(self, repository: Repository, subject: str) -> Iterator[str]:
        return (name for name in super()._in_other_contexts(repository, subject) if self._may_read(name))

    def _readable(self, repository: Repository, schemas: list[StoredSchema]) -> list[StoredSchema]:
        found = [schema for schema in schemas if self._is_readable(repository, schema)]
        if not found:
            raise AccessDenied("Denied: no permission to read a subject that uses this schema")
        return found

    def _is_readable(self, repository: Repository, schema: StoredSchema) -> bool:
        return any(map(self._may_read, repository.subjects_using(schema.row_key)))
