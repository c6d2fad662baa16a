"""Reads and writes the registry's tables within one transaction. The SQL of the registry is here and in `statements`,
except that of replication, of migrations and of `revision_check`.

Rows are converted from and to the values of `registry.domain`. Decisions belong to the services. It is one class
because all methods share the transaction, the results that it has already read, and the recorder of its dependencies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headrace.registry.domain import (
    LATEST,
    SCHEMA_ID_MAX,
    ConfigEntry,
    Mode,
    ReplicationState,
    SchemaContent,
    SchemaId,
    SchemaReference,
    StoredSchema,
    StoredVersion,
    SubjectVersion,
)
from headrace.registry.errors import StoreError
from headrace.registry.names import (
    ALL_SUBJECTS,
    DEFAULT_CONTEXT,
    SubjectFilter,
    context_of,
    is_storable,
    qualified,
    resolve_in_context,
)
from headrace.registry.storage import statements
from headrace.registry.storage.cache import (
    DatabaseCache,
    ScopeValues,
    SubjectState,
    SubjectView,
    VersionEntry,
    ViewAtRevision,
)
from headrace.registry.storage.dependencies import (
    DependencyRecorder,
    depends_on,
    filtered_subject_revision,
    registry_revision,
    subject_names,
    subject_revision,
    uncacheable_by_default,
    version_revision,
)
from headrace.registry.storage.models import (
    STATE_ID,
    ConfigRow,
    ContextRow,
    IdentityRow,
    ModeRow,
    ReferenceRow,
    ReplicationRow,
    SchemaRow,
    StateRow,
    SubjectRow,
    VersionRow,
)
from headrace.registry.storage.revision import Revision
from headrace.registry.storage.rows import (
    batches,
    config_entry,
    config_row,
    schema_row,
    scope_key,
    scope_keys,
    scope_of,
    stored_schema,
)

T = TypeVar("T")

WRITER_WAIT_S = 60  # limit for transactions in progress, which end much earlier
WRITER_POLL_S = 0.010  # pause before the next check; most transactions have ended by then


ReservedIds = Mapping[str, SchemaId]
"""Schema ids that were reserved before the transaction wrote anything, at most one per context. The reservation has
also added the context to the list of contexts."""


class WriteConflict(Exception):
    """A concurrent transaction changed the data on which this one was decided, both were in a deadlock, or the
    connection broke. The caller must decide again."""


class ContentExists(WriteConflict):
    """A new id was requested for a schema that already has an id in the context."""

    def __init__(self, request: IdRequest) -> None:
        super().__init__(f"context {request.context} already has this content")
        self.request = request


@dataclass(frozen=True, slots=True)
class IdRequest:
    """Requests a new id for a schema in a context. `content` is the schema with references, metadata and rules."""

    context: str
    content: SchemaContent


@dataclass(frozen=True, slots=True)
class RegistryState:
    """The registry's revision, and a number that grows with every change of configuration and modes."""

    revision: Revision
    settings_revision: int


@dataclass(frozen=True, slots=True)
class ExpectedRevisions:
    """The revisions that a registration was decided on; its write fails if one of them has changed.

    `subject` is the state of the subject, or None if it did not exist. `history` is the number of the database's
    history (see `revision`). `settings` is the revision of configuration and modes.
    """

    subject: SubjectState | None
    history: int
    settings: int


@uncacheable_by_default
class Repository:
    """Reads and writes the database within one transaction."""

    # Registry

    def __init__(
        self,
        connection: Connection,
        *,
        reserved: ReservedIds | None = None,
        cache: DatabaseCache | None = None,
        recorder: DependencyRecorder | None = None,
    ) -> None:
        """Creates the repository of a transaction.

        Args:
            connection: has an open transaction.
            reserved: ids that were reserved before the transaction.
            cache: the cache of the process, for reads only; None for writes.
            recorder: collects the dependencies of the response.
        """
        self._connection = connection
        self._reserved = dict(reserved or {})
        self._cache = cache
        self._recorder = recorder
        self._results: dict[Hashable, Any] = {}
        self.has_bumped_revision = False
        self.has_changed_settings = False

    @property
    def connection(self) -> Connection:
        """The connection, for SQL that only one feature needs, such as replication. A response that uses it is not
        cached."""
        if self._recorder is not None:
            self._recorder.mark_uncacheable()
        return self._connection

    def _cached(self, key: Hashable, read: Callable[[], T]) -> T:
        """Returns the result of `read`. A read transaction calls `read` once for each key and caches the result until
        the transaction ends; a write transaction calls it every time."""
        if self._cache is None:
            return read()
        if key not in self._results:
            self._results[key] = read()
        return cast(T, self._results[key])

    def _cached_result(self, key: Hashable) -> Any:
        return self._results.get(key)

    def bump_revision(self, *, of_settings: bool = False) -> None:
        """Increases the registry's revision, before the transaction takes any other lock (a replica locks its
        replication state earlier). Transactions that do this queue here and cannot deadlock.

        Args:
            of_settings: marks a change of configuration or modes. A registration that was decided before the change
                and is written after it then detects the change. `wait_for_writers` waits for registrations that are
                being written at the same time.
        """
        values = {"revision": StateRow.revision + 1}
        if of_settings:
            values["settings_revision"] = StateRow.settings_revision + 1
        self._connection.execute(sa.update(StateRow).where(StateRow.id == STATE_ID).values(values))
        self.has_bumped_revision = True
        self.has_changed_settings |= of_settings

    def lock_out_writers(self) -> None:
        """Waits for transactions that write versions and blocks new ones until this transaction ends."""
        # A write of versions writes the subject's row first. SQLite has one writer at a time anyway.
        if self._connection.dialect.name == "postgresql":
            self._connection.execute(sa.text(f"LOCK TABLE {SubjectRow.__tablename__} IN SHARE MODE"))

    def wait_for_writers(self) -> None:
        """Waits for transactions that write versions, without blocking new ones. Must not be called in a transaction.

        Raises:
            StoreError: one of them has not ended within `WRITER_WAIT_S`.
        """
        if self._connection.dialect.name != "postgresql":
            return
        deadline = time.monotonic() + WRITER_WAIT_S
        writing = self._writing()
        while writing:
            if time.monotonic() > deadline:
                raise StoreError(
                    "The change is stored, but registrations that began before it are still running and may use the "
                    "previous configuration or mode; repeat the request to wait for them"
                )
            time.sleep(WRITER_POLL_S)
            writing &= self._writing()

    def _writing(self) -> set[tuple[int, str]]:
        """Finds the transactions that are writing versions now, as (process id, transaction id), by the locks that they
        hold.

        A transaction that will write versions but has no such lock yet has not read anything: a statement takes its
        locks before it reads.
        """
        return {(row.pid, row.virtualtransaction) for row in self._connection.execute(statements.WRITERS)}

    @depends_on(registry_revision)
    def settings_revision(self) -> int:
        """A number that grows with every change of configuration and modes."""
        return self._state().settings_revision

    @depends_on(registry_revision)
    def history(self) -> int:
        """A number that changes when the database may have returned to an earlier state; see `revision`."""
        return self._state().revision.history

    @depends_on(registry_revision)
    def revision(self) -> Revision:
        return self._state().revision

    def _state(self) -> RegistryState:
        return self._cached("state", self._read_state)

    def _read_state(self) -> RegistryState:
        row = self._connection.execute(statements.STATE).one()
        return RegistryState(Revision(row.history, row.revision), row.settings_revision)

    def identity(self) -> str:
        """The random name that the database was given by its first migration."""
        return self._connection.scalar(sa.select(IdentityRow.identity)) or ""

    def counts(self) -> dict[str, int]:
        """The numbers of subjects, schemas, versions and soft-deleted versions."""
        deleted = sa.select(sa.func.count()).select_from(VersionRow).where(VersionRow.deleted.is_(True))
        counted = {
            "schemas": sa.select(sa.func.count()).select_from(SchemaRow),
            "versions": sa.select(sa.func.count()).select_from(VersionRow),
            "deleted_versions": deleted,
        }
        totals = {name: self._connection.scalar(query) or 0 for name, query in counted.items()}
        return {"subjects": self.subject_count(), **totals}

    def replication_state(self) -> ReplicationState | None:
        """The state of a replica, also after its promotion; None if this registry never was one."""
        row = self._connection.execute(sa.select(ReplicationRow.__table__)).one_or_none()
        if row is None:
            return None
        values = row._asdict()
        return ReplicationState(**{**values, "mode": None if row.mode is None else Mode(row.mode)})

    # Contexts and their ids

    def contexts(self) -> list[str]:
        """The default context, then, sorted, all others that have a subject, or had one and were not deleted."""
        # A subject may have been added while its context was being deleted.
        in_use = sa.exists().where(SubjectRow.context == ContextRow.name)
        query = sa.select(ContextRow.name).where(ContextRow.listed | in_use, ContextRow.name != DEFAULT_CONTEXT)
        return [DEFAULT_CONTEXT, *sorted(self._connection.scalars(query))]

    def list_context(self, context: str) -> None:
        if context in self._reserved:
            return
        # Checked first, because an update would lock the row of a busy context for the whole registration.
        if self._connection.scalar(statements.CONTEXT_LISTED, {"name": context}):
            return
        self._insert_context(context)
        changed = sa.update(ContextRow).where(ContextRow.name == context, ContextRow.listed.is_(False))
        self._connection.execute(changed.values(listed=True))

    def unlist_context(self, context: str) -> bool:
        """Removes a context from the list of contexts; its counter of ids remains. Returns whether the context was
        listed."""
        listed = sa.update(ContextRow).where(ContextRow.name == context, ContextRow.listed)
        return self._connection.execute(listed.values(listed=False)).rowcount > 0

    def take_next_id(self, context: str) -> SchemaId:
        """Returns the id that was reserved in a context. Without a reservation, returns the context's next id and
        increases its counter."""
        if context in self._reserved:
            return self._reserved.pop(context)
        increment = (
            sa.update(ContextRow)
            .where(ContextRow.name == context)
            .values(next_id=ContextRow.next_id + 1)
            .returning(ContextRow.next_id)
        )
        next_id = self._connection.scalar(increment)
        if next_id is None:
            self._insert_context(context)
            next_id = self._connection.scalar(increment)
        assert next_id is not None
        return SchemaId(next_id - 1)

    def advance_next_id(self, context: str, schema_id: int) -> None:
        """Moves the id counter of a context beyond the id of an imported schema, so that it is not assigned again."""
        self._insert_context(context)
        self._connection.execute(
            sa.update(ContextRow)
            .where(ContextRow.name == context, ContextRow.next_id <= schema_id)
            .values(next_id=schema_id + 1)
        )

    def _insert_context(self, context: str) -> None:
        self._connection.execute(
            statements.insert_for(self._connection.dialect.name, ContextRow)
            .values(name=context, next_id=1, listed=False)
            .on_conflict_do_nothing()
        )

    # Configuration and modes

    @depends_on(registry_revision)
    def config(self, scope: str | None) -> ConfigEntry | None:
        """The configuration that is set on a scope itself: a subject, a context, or (None) the whole default context.
        None if nothing is set."""
        return self.configs([scope]).get(scope)

    @depends_on(registry_revision)
    def configs(self, scopes: Sequence[str | None]) -> dict[str | None, ConfigEntry]:
        """The configurations of those scopes that have one."""
        if self._cache is None:
            return self._configs(statements.CONFIGS, scopes)
        cache = self._cache.scopes.at(self.revision())
        if cache.configs is None:
            cache.configs = _scope_values(self._configs(statements.FIRST_CONFIGS))
        return cache.configs.select(scopes, lambda missing: self._configs(statements.CONFIGS, missing))

    def _configs(
        self, query: sa.Executable, scopes: Sequence[str | None] | None = None
    ) -> dict[str | None, ConfigEntry]:
        rows = self._connection.execute(query, None if scopes is None else {"scopes": scope_keys(scopes)})
        return {scope_of(row.scope): config_entry(row._asdict()) for row in rows}

    @depends_on(registry_revision)
    def aliases(self) -> dict[str | None, str]:
        """The alias of each scope that has one."""
        query = sa.select(ConfigRow.scope, ConfigRow.alias).where(ConfigRow.alias.is_not(None))
        return {scope_of(row.scope): row.alias for row in self._connection.execute(query)}

    def config_scopes(self) -> list[str | None]:
        """All scopes that have their own configuration."""
        return [scope_of(scope) for scope in self._connection.scalars(sa.select(ConfigRow.scope))]

    def put_config(self, scope: str | None, entry: ConfigEntry) -> None:
        """Replaces the configuration of a scope by `entry`. If the entry is empty, deletes the configuration: an empty
        row would hide the configurations of the enclosing scopes."""
        self.remove_config(scope)
        if entry.is_empty:
            return
        self._connection.execute(sa.insert(ConfigRow).values(config_row(scope, entry)))

    def remove_config(self, scope: str | None) -> bool:
        """Deletes the configuration of a scope. Returns whether it existed."""
        return self._connection.execute(sa.delete(ConfigRow).where(ConfigRow.scope == scope_key(scope))).rowcount > 0

    @depends_on(registry_revision)
    def modes(self, scopes: Sequence[str | None]) -> dict[str | None, Mode]:
        """The modes of those scopes that have one."""
        if self._cache is None:
            return self._modes(statements.MODES, scopes)
        cache = self._cache.scopes.at(self.revision())
        if cache.modes is None:
            cache.modes = _scope_values(self._modes(statements.FIRST_MODES))
        return cache.modes.select(scopes, lambda missing: self._modes(statements.MODES, missing))

    def _modes(self, query: sa.Executable, scopes: Sequence[str | None] | None = None) -> dict[str | None, Mode]:
        rows = self._connection.execute(query, None if scopes is None else {"scopes": scope_keys(scopes)})
        return {scope_of(row.scope): Mode(row.mode) for row in rows}

    def put_mode(self, scope: str | None, mode: Mode) -> None:
        self.remove_modes([scope])
        self._connection.execute(sa.insert(ModeRow).values(scope=scope_key(scope), mode=mode.value))

    def remove_modes(self, scopes: Sequence[str | None]) -> bool:
        """Deletes the modes of these scopes. Returns whether any of them existed."""
        return self._connection.execute(sa.delete(ModeRow).where(ModeRow.scope.in_(scope_keys(scopes)))).rowcount > 0

    def mode_scopes(self) -> list[str | None]:
        """All scopes that have their own mode."""
        return [scope_of(scope) for scope in self._connection.scalars(sa.select(ModeRow.scope))]

    # Schemas

    @depends_on(registry_revision, uncacheable_if_none=True)
    def schema(self, context: str, schema_id: int) -> StoredSchema | None:
        # The database driver's own errors for large numbers and control characters differ.
        if not 0 <= schema_id <= SCHEMA_ID_MAX or not is_storable(context):
            return None
        return next(iter(self._schemas(statements.SCHEMA, {"context": context, "id": schema_id})), None)

    def schema_with_content(self, context: str, content: SchemaContent) -> StoredSchema | None:
        """The schema in this context that has exactly this text, references, metadata and rules. If imports have stored
        it under several ids, returns the oldest row."""
        found = self._schemas(statements.SCHEMA_OF, {"context": context, "fingerprint": content.fingerprint})
        same = (schema for schema in found if schema.content.parts == content.parts)
        return min(same, key=lambda schema: schema.row_key, default=None)

    def schemas_by_id(self, context: str, ids: Sequence[int]) -> list[StoredSchema]:
        """Loads the schemas with the given ids in a context, sorted by id; missing ones are omitted."""
        found: list[StoredSchema] = []
        for part in batches(ids):
            found += self._schemas(statements.SCHEMAS_BY_ID, {"context": context, "ids": part})
        return sorted(found, key=lambda schema: schema.schema_id)

    def schemas_by_guid(self, guid: bytes) -> list[StoredSchema]:
        """The schemas with a guid, ordered by context (the default one first) and id."""
        found = self._schemas(statements.SCHEMAS.where(SchemaRow.guid == guid))
        return sorted(found, key=lambda item: (item.context != DEFAULT_CONTEXT, item.context, item.schema_id))

    def _schemas(self, query: sa.Select[Any], parameters: Mapping[str, Any] | None = None) -> list[StoredSchema]:
        rows = self._connection.execute(query, parameters).all()
        references = self._references_of(rows)
        return [stored_schema(row, references, deleted=not row.live) for row in rows]

    def lock_schema(self, row_key: int) -> bool:
        """Locks a schema and its versions against deletion until the transaction ends. Returns False if the schema does
        not exist."""
        return self._connection.scalar(statements.LOCK_SCHEMA, {"row_key": row_key}) is not None

    def is_soft_deleted_for(self, row_key: int, subject: str) -> bool:
        """Whether a new version of a schema under a subject makes deleted data visible again: all versions of the
        schema are soft-deleted, or at least one of its versions under this subject is.

        Args:
            row_key: the row key of the schema.
            subject: the subject of the new version.
        """
        of_subject = sa.select(SubjectRow.id).where(SubjectRow.name == subject).scalar_subquery()
        live = sa.func.max(sa.case((VersionRow.deleted, 0), else_=1))
        deleted = sa.func.max(sa.case((sa.and_(VersionRow.deleted, VersionRow.subject_id == of_subject), 1), else_=0))
        row = self._connection.execute(sa.select(live, deleted).where(VersionRow.schema_key == row_key)).one()
        # Both are null for a schema without versions.
        return bool(row[0] == 0 or row[1] == 1)

    def schema_id_max(self, context: str) -> int:
        query = sa.select(sa.func.max(SchemaRow.id)).where(SchemaRow.context == context)
        return self._connection.scalar(query) or 0

    def add_schema(
        self,
        context: str,
        schema_id: SchemaId,
        content: SchemaContent,
        lookup_key: bytes,
        now_ms: int,
        *,
        is_copy: bool = False,
    ) -> int | None:
        """Stores a schema and returns its row key, or None if a concurrent transaction has just stored it.

        Args:
            context: the context that the id belongs to.
            schema_id: the id.
            content: the text, references, metadata and rules.
            lookup_key: the lookup key of the content.
            now_ms: is stored as the time of creation.
            is_copy: True if the context already has the same schema under another id.
        """
        row = schema_row(context, schema_id, content, lookup_key, now_ms, is_copy=is_copy)
        result = self._connection.execute(statements.add_schema(self._connection.dialect.name), row)
        row_key = result.scalar()
        if row_key is not None:
            self._add_references(int(row_key), qualified(context, ""), content.references)
        return None if row_key is None else int(row_key)

    def set_lookup_key(self, row_key: int, lookup_key: bytes) -> None:
        self._connection.execute(sa.update(SchemaRow).where(SchemaRow.row_key == row_key).values(lookup_key=lookup_key))

    def _add_references(self, row_key: int, parent: str, references: Sequence[SchemaReference]) -> None:
        rows = [
            {
                "schema_key": row_key,
                "position": position,
                "name": reference.name,
                "subject": reference.subject,
                "version": reference.version,
                "target": resolve_in_context(parent, reference.subject),
            }
            for position, reference in enumerate(references)
        ]
        if rows:
            self._connection.execute(sa.insert(ReferenceRow), rows)

    def _references_of(self, rows: Sequence[Any]) -> dict[int, tuple[SchemaReference, ...]]:
        """Returns the references of the schemas in these rows, by row key; omits schemas without references."""
        found: dict[int, tuple[SchemaReference, ...]] = {}
        for part in batches(sorted({row.row_key for row in rows if row.has_references})):
            for row in self._connection.execute(statements.REFERENCES, {"schema_keys": part}):
                reference = SchemaReference(row.name, row.subject, row.version)
                found[row.schema_key] = (*found.get(row.schema_key, ()), reference)
        return found

    def referencing_schemas(self, subject: str, version: int, *, deleted: bool) -> list[StoredSchema]:
        """Schemas that refer to a version of a subject, sorted by id. Unless `deleted`, only schemas with a live
        version."""
        if not is_storable(subject):
            return []
        refers = sa.exists().where(
            ReferenceRow.schema_key == SchemaRow.row_key,
            ReferenceRow.target == subject,
            ReferenceRow.version == version,
        )
        found = self._schemas(statements.SCHEMAS.where(refers))
        return sorted((item for item in found if deleted or not item.deleted), key=lambda item: item.schema_id)

    def references_to(self, subject: str, *, deleted: bool) -> list[tuple[int, SubjectVersion]]:
        """All references to a subject, as pairs of the referenced version number and the referring version. Unless
        `deleted`, only those from live versions."""
        query = (
            sa.select(ReferenceRow.version, SubjectRow.name, VersionRow.version)
            .join(VersionRow, VersionRow.schema_key == ReferenceRow.schema_key)
            .join(SubjectRow, SubjectRow.id == VersionRow.subject_id)
            .where(ReferenceRow.target == subject)
        )
        if not deleted:
            query = query.where(VersionRow.deleted.is_(False))
        rows = self._connection.execute(query)
        return sorted((target, SubjectVersion(name, version)) for target, name, version in rows)

    def versions_using(self, schema: StoredSchema, *, deleted: bool) -> list[SubjectVersion]:
        """The versions that use a schema, sorted; with `deleted` also soft-deleted ones."""
        query = (
            sa.select(SubjectRow.name, VersionRow.version)
            .join(VersionRow, VersionRow.subject_id == SubjectRow.id)
            .where(VersionRow.schema_key == schema.row_key)
        )
        if not deleted:
            query = query.where(VersionRow.deleted.is_(False))
        return sorted(SubjectVersion(row.name, row.version) for row in self._connection.execute(query))

    # The result grows with registrations, but it only decides about read permission: additional subjects never revoke
    # it, and denials are not cached.
    @depends_on(registry_revision)
    def subjects_using(self, row_key: int) -> list[str]:
        """The subjects with a version that uses the schema with this row key; soft-deleted versions count too."""
        query = sa.select(SubjectRow.name).join(VersionRow, VersionRow.subject_id == SubjectRow.id)
        return list(self._connection.scalars(query.where(VersionRow.schema_key == row_key).distinct()))

    # Subjects

    @depends_on(subject_names)
    def subjects(
        self, subject_filter: SubjectFilter = ALL_SUBJECTS, *, deleted: bool = False, deleted_only: bool = False
    ) -> list[str]:
        """Sorted names of subjects that have a live version. With `deleted` all subjects, with `deleted_only` those
        with only soft-deleted versions."""
        if not subject_filter.is_storable:
            return []
        query = (
            sa.select(SubjectRow.name)
            .join(VersionRow, VersionRow.subject_id == SubjectRow.id)
            .where(*_matching(subject_filter))
            .group_by(SubjectRow.name)
        )
        live = sa.func.sum(sa.case((VersionRow.deleted, 0), else_=1))
        if deleted_only:
            query = query.having(live == 0)
        elif not deleted:
            query = query.having(live > 0)
        # Sorted here, because the order of the database depends on its locale.
        return sorted(self._connection.scalars(query))

    def subjects_revision(self) -> int:
        """A number that grows with every new subject, as long as the registry's revision is unchanged."""
        if self._connection.dialect.name == "sqlite":
            # Faster than counting. On PostgreSQL a row may become visible before rows with lower ids.
            return self._connection.scalar(sa.select(sa.func.max(SubjectRow.id))) or 0
        return self.subject_count()

    def subject_count(self) -> int:
        return self._connection.scalar(sa.select(sa.func.count()).select_from(SubjectRow)) or 0

    def stored_subjects(self, names: Sequence[str]) -> set[str]:
        """The given names for which a subject exists, including soft-deleted subjects."""
        found: set[str] = set()
        for part in batches([name for name in names if is_storable(name)]):
            found.update(self._connection.scalars(sa.select(SubjectRow.name).where(SubjectRow.name.in_(part))))
        return found

    def has_subjects(self, context: str) -> bool:
        """Whether a context has subjects, including soft-deleted ones."""
        return bool(self._connection.scalar(sa.select(sa.exists().where(SubjectRow.context == context))))

    @depends_on(subject_revision)
    def subject_state(self, subject: str) -> SubjectState | None:
        if not is_storable(subject):
            return None
        view = self._cached_result(("view", subject))
        if view is not None:
            return cast(SubjectView, view).state
        row = self._connection.execute(statements.SUBJECT_STATE, {"name": subject}).first()
        return None if row is None else SubjectState(row.id, row.revision)

    @depends_on(subject_revision)
    def subject_view(self, subject: str) -> SubjectView:
        """Returns all versions of a subject. The same statement reads the registry's revision."""
        if not is_storable(subject):
            return SubjectView()
        return self._cached(("view", subject), lambda: self._subject_view(subject))

    def _subject_view(self, subject: str) -> SubjectView:
        before = None if self._cache is None else self._cache.view(subject)
        current, is_complete = self._view_after(subject, before)
        if not is_complete:
            current, _ = self._view_after(subject, None)
        if self._cache is not None and current.view.entries:
            self._cache.put_view(subject, current)
        return current.view

    def _view_after(self, subject: str, known: ViewAtRevision | None) -> tuple[ViewAtRevision, bool]:
        """Reads the versions of a subject that were added after `known`, the result of an earlier call.

        Returns all versions, including those of `known`, and True. If the second value is False, the versions are
        incomplete and the caller must read again with `known` None.
        """
        parameters = {"name": subject, "known_revision": -1, "known_version": 0}
        if known is not None:
            parameters |= {"known_revision": known.revision.number, "known_version": known.view.entries[-1].version}
        rows = self._connection.execute(statements.SUBJECT_VIEW, parameters).all()
        first = rows[0]
        revision = Revision(first.history, first.registry_revision)
        self._cached("state", lambda: RegistryState(revision, first.settings_revision))
        if self._cache is not None:
            self._cache.newest.record(revision)
        if known is not None and known.revision.history != revision.history:
            # The statement omitted versions that are known only from another history, so it must run again.
            return ViewAtRevision(revision, SubjectView()), False
        if first.id is None:
            return ViewAtRevision(revision, SubjectView()), True
        state = SubjectState(first.id, first.revision)
        entries = tuple(VersionEntry(*cast(Any, row[5:])) for row in rows if row.version is not None)
        is_complete = True
        if known is not None and known.revision == revision:
            assert known.view.state is not None
            # An import may have added a version before the newest one.
            is_complete = state.revision - known.view.state.revision == len(entries)
            entries = known.view.entries + entries
        return ViewAtRevision(revision, SubjectView(state, entries)), is_complete

    def claim_subject(self, subject: str, expected: SubjectState | None) -> int:
        """Adds a subject or increases its revision, so that concurrent writes of its versions fail. Returns its row id.

        Raises:
            WriteConflict: the subject's state differs from `expected` (None: it did not exist).
        """
        if expected is None:
            row = {"name": subject, "context": context_of(subject), "revision": 1}
            return int(self._connection.execute(statements.ADD_SUBJECT, row).scalar_one())
        moved = self._connection.execute(statements.ADVANCE_SUBJECT, _advance_parameters(expected))
        if moved.rowcount != 1:
            raise WriteConflict(f"subject {subject!r} was changed by another request; try again")
        return expected.subject_id

    def require_settings(self, expected: ExpectedRevisions) -> None:
        """Requires that configuration and modes have not changed since the revisions `expected` were read; to be called
        after the subject is claimed.

        Raises:
            WriteConflict: the settings have changed, or the database has returned to an earlier state.
        """
        state = self._state()
        if (state.revision.history, state.settings_revision) != (expected.history, expected.settings):
            raise WriteConflict(
                "another request changed a configuration or mode, or the database was restored; try again"
            )

    # Versions

    @depends_on(subject_revision)
    def version_numbers(self, subject: str) -> list[tuple[int, bool]]:
        """The versions of a subject as (number, whether it is soft-deleted), ascending by number."""
        if not is_storable(subject):
            return []
        query = (
            sa.select(VersionRow.version, VersionRow.deleted)
            .join(SubjectRow, SubjectRow.id == VersionRow.subject_id)
            .where(SubjectRow.name == subject)
            .order_by(VersionRow.version)
        )
        return [(row.version, row.deleted) for row in self._connection.execute(query)]

    @depends_on(filtered_subject_revision)
    def versions(
        self,
        *,
        subject: str | None = None,
        subject_filter: SubjectFilter = ALL_SUBJECTS,
        schema_key: int | None = None,
        deleted: bool = False,
    ) -> list[StoredVersion]:
        """Versions with their schemas, ordered by subject and version.

        Args:
            subject: only versions of this subject.
            subject_filter: only versions of matching subjects.
            schema_key: only versions of the schema with this row key.
            deleted: includes soft-deleted versions.
        """
        if not (is_storable(subject or "") and subject_filter.is_storable):
            return []
        query = statements.VERSIONS.where(*_matching(subject_filter))
        if subject is not None:
            query = query.where(SubjectRow.name == subject)
        if schema_key is not None:
            query = query.where(SchemaRow.row_key == schema_key)
        if not deleted:
            query = query.where(VersionRow.deleted.is_(False))
        return sorted(self._stored_versions(query), key=lambda found: (found.subject, found.version))

    def listed_versions(self, subject_filter: SubjectFilter, *, deleted: bool = False) -> list[SubjectVersion]:
        """The (subject, version) pairs of the matching subjects, unordered; with `deleted` soft-deleted versions
        too."""
        if not subject_filter.is_storable:
            return []
        query = (
            sa.select(SubjectRow.name, VersionRow.version)
            .join(VersionRow, VersionRow.subject_id == SubjectRow.id)
            .where(*_matching(subject_filter))
        )
        if not deleted:
            query = query.where(VersionRow.deleted.is_(False))
        return [SubjectVersion(*row) for row in self._connection.execute(query)]

    def load_versions(self, chosen: Sequence[SubjectVersion]) -> list[StoredVersion]:
        """Loads the given versions, ordered by subject and version; missing ones are omitted."""
        found: list[StoredVersion] = []
        for part in batches(chosen):
            pairs = [(item.subject, item.version) for item in part]
            condition = sa.tuple_(SubjectRow.name, VersionRow.version).in_(pairs)
            found += self._stored_versions(statements.VERSIONS.where(condition))
        return sorted(found, key=lambda item: (item.subject, item.version))

    @depends_on(subject_revision)
    def load_entries(self, subject: str, entries: Sequence[VersionEntry]) -> list[StoredVersion]:
        """Loads these versions of a subject with their schemas, in the given order. May omit versions that were
        permanently deleted after `entries` were read."""
        assert self._cache is not None, "views are read only by reads"
        history = self.history()
        schemas = {entry.schema_key: self._cache.schema(history, entry.schema_key) for entry in entries}
        missing = [entry.version for entry in entries if schemas[entry.schema_key] is None]
        for part in batches(missing):
            for found in self._stored_versions(statements.VERSIONS_OF, {"name": subject, "versions": part}):
                self._cache.put_schema(history, found.schema)
                schemas[found.schema.row_key] = found.schema
        return [
            StoredVersion(subject, entry.version, schema, entry.created_ms, entry.deleted)
            for entry in entries
            if (schema := schemas[entry.schema_key]) is not None
        ]

    @depends_on(version_revision, uncacheable_if_none=True)
    def version(self, subject: str, version: int, *, deleted: bool = False) -> StoredVersion | None:
        """One version of a subject, or its newest one for `LATEST`; None if there is none. Soft-deleted versions are
        found only with `deleted`."""
        if not is_storable(subject):
            return None
        view = cast("SubjectView | None", self._cached_result(("view", subject)))
        if view is None or self._cache is None:
            return self._cached((subject, version, deleted), lambda: self._version(subject, version, deleted))
        entry = view.entry(version, deleted=deleted)
        return None if entry is None else next(iter(self.load_entries(subject, [entry])), None)

    def _version(self, subject: str, version: int, deleted: bool) -> StoredVersion | None:
        if version == LATEST:
            found = self._stored_versions(statements.LATEST_VERSION[deleted], {"name": subject})
        else:
            found = self._stored_versions(statements.VERSION[deleted], {"name": subject, "version": version})
        return next(iter(found), None)

    def _stored_versions(
        self, query: sa.Select[Any], parameters: Mapping[str, Any] | None = None
    ) -> list[StoredVersion]:
        rows = self._connection.execute(query, parameters).all()
        references = self._references_of(rows)
        return [
            StoredVersion(row.name, row.version, stored_schema(row, references), row.created_ms, row.deleted)
            for row in rows
        ]

    def add_version(self, subject_id: int, version: int, schema_key: int, now_ms: int) -> None:
        row = {"subject_id": subject_id, "version": version, "schema_key": schema_key, "created_ms": now_ms}
        self._connection.execute(statements.ADD_VERSION, {**row, "deleted": False})

    def add_version_with_schema(
        self,
        subject: str,
        expected: ExpectedRevisions,
        version: int,
        schema_id: SchemaId,
        content: SchemaContent,
        lookup_key: bytes,
        now_ms: int,
    ) -> StoredSchema:
        """Adds a schema and, as the next version of a subject, a version with it; in one statement on PostgreSQL.
        Returns the schema.

        The schema must have no references and be new to its context.

        Args:
            subject: the subject.
            expected: the revisions that the registration was decided on.
            version: the number of the new version.
            schema_id: the id of the schema.
            content: the schema.
            lookup_key: the lookup key of the content.
            now_ms: is stored as the time of creation of schema and version.

        Raises:
            WriteConflict: one of the `expected` revisions has changed, or the schema was added by another transaction.
        """
        context = context_of(subject)
        if self._connection.dialect.name != "postgresql":
            subject_id = self.claim_subject(subject, expected.subject)
            self.require_settings(expected)
            self.list_context(context)
            row_key = self.add_schema(context, schema_id, content, lookup_key, now_ms)
            if row_key is None:
                raise WriteConflict(
                    f"another request added schema id {schema_id} or the same schema to context {context}; try again"
                )
            self.add_version(subject_id, version, row_key, now_ms)
        else:
            row = schema_row(context, schema_id, content, lookup_key, now_ms)
            parameters = {f"new_{name}": value for name, value in row.items()} | {"new_version": version}
            parameters |= {"expected_history": expected.history, "expected_settings": expected.settings}
            parameters |= {"new_name": subject} if expected.subject is None else _advance_parameters(expected.subject)
            statement = statements.add_version_with_schema(new_subject=expected.subject is None)
            row_key = int(self._connection.execute(statement, parameters).scalar_one())
        return StoredSchema(schema_id, content, now_ms, context=context, row_key=row_key)

    def put_version(self, subject_id: int, version: int, schema_key: int, now_ms: int) -> bool:
        """Adds a version, or gives an existing one a schema and restores it if it is soft-deleted. Returns whether the
        version existed with another schema, which is deleted if no version uses it any more.

        Args:
            subject_id: the row id of the subject.
            version: the number of the version.
            schema_key: the row key of the schema.
            now_ms: is stored as the time of creation.
        """
        chosen = (VersionRow.subject_id == subject_id, VersionRow.version == version)
        before = self._connection.scalar(sa.select(VersionRow.schema_key).where(*chosen))
        if before is None:
            self.add_version(subject_id, version, schema_key, now_ms)
            return False
        self._connection.execute(
            sa.update(VersionRow).where(*chosen).values(schema_key=schema_key, deleted=False, created_ms=now_ms)
        )
        self._remove_unused([before])
        return bool(before != schema_key)

    def lock_versions(self, subject_id: int, versions: Iterable[int]) -> dict[int, int]:
        """Waits for transactions that add references to these versions, and blocks new ones until this transaction
        ends. Returns the schema ids of the versions, ascending by version.
        """
        # Always in this order, versions before schemas, so that transactions cannot deadlock.
        keys: dict[int, int] = {}
        for part in batches(sorted(versions)):
            chosen = (VersionRow.subject_id == subject_id, VersionRow.version.in_(part))
            query = sa.select(VersionRow.version, VersionRow.schema_key).where(*chosen).order_by(VersionRow.version)
            keys.update((row.version, row.schema_key) for row in self._connection.execute(query.with_for_update()))
        ids: dict[int, int] = {}
        for part in batches(sorted(set(keys.values()))):
            held = sa.select(SchemaRow.row_key, SchemaRow.id).where(SchemaRow.row_key.in_(part))
            rows = self._connection.execute(held.order_by(SchemaRow.row_key).with_for_update())
            ids.update((row.row_key, row.id) for row in rows)
        return {version: ids[key] for version, key in keys.items()}

    def lock_referenced_version(self, target: str, version: int, *, deleted: bool = False) -> bool:
        """Locks a version of the subject `target` against deletion until the transaction ends.

        Returns False if the version does not exist or, unless `deleted`, is soft-deleted.
        """
        query = (
            sa.select(VersionRow.version)
            .join(SubjectRow, SubjectRow.id == VersionRow.subject_id)
            .where(SubjectRow.name == target, VersionRow.version == version)
            .with_for_update(read=True, of=VersionRow)
        )
        if not deleted:
            query = query.where(VersionRow.deleted.is_(False))
        return self._connection.scalar(query) is not None

    def mark_deleted(self, subject_id: int, versions: Iterable[int]) -> None:
        for part in batches(sorted(versions)):
            chosen = (VersionRow.subject_id == subject_id, VersionRow.version.in_(part))
            self._connection.execute(sa.update(VersionRow).where(*chosen).values(deleted=True))

    def remove_versions(self, subject_id: int, versions: Iterable[int]) -> None:
        """Deletes versions permanently, and schemas that no version uses any more. Once a subject has no versions, the
        subject with its configuration and mode is deleted too."""
        for part in batches(sorted(versions)):
            chosen = (VersionRow.subject_id == subject_id, VersionRow.version.in_(part))
            schema_keys = list(self._connection.scalars(sa.select(VersionRow.schema_key).where(*chosen)))
            self._connection.execute(sa.delete(VersionRow).where(*chosen))
            self._remove_unused(schema_keys)
        if self._connection.scalar(sa.select(sa.exists().where(VersionRow.subject_id == subject_id))):
            return
        name = sa.select(SubjectRow.name).where(SubjectRow.id == subject_id).scalar_subquery()
        self._connection.execute(sa.delete(ConfigRow).where(ConfigRow.scope == name))
        self._connection.execute(sa.delete(ModeRow).where(ModeRow.scope == name))
        self._connection.execute(sa.delete(SubjectRow).where(SubjectRow.id == subject_id))

    def _remove_unused(self, schema_keys: Sequence[int]) -> None:
        unused = ~sa.exists().where(VersionRow.schema_key == SchemaRow.row_key)
        self._connection.execute(sa.delete(SchemaRow).where(SchemaRow.row_key.in_(schema_keys), unused))


def reserve_schema_id(connection: Connection, request: IdRequest) -> ReservedIds:
    """Reserves the next id of the request's context, in its own transaction of one statement. Returns a dictionary with
    this context and its id. PostgreSQL only.

    The statement does not wait for the disk. The transaction that uses the id commits later and flushes this one as
    well.

    Raises:
        ContentExists: the schema already has an id, so it needs no new one.
    """
    parameters = {"context": request.context, "fingerprint": request.content.fingerprint}
    next_id = connection.execute(statements.RESERVE_ID, parameters).scalar()
    if next_id is None:
        raise ContentExists(request)
    return {request.context: SchemaId(next_id - 1)}


def _advance_parameters(expected: SubjectState) -> dict[str, int]:
    return {
        "subject_id": expected.subject_id,
        "expected_revision": expected.revision,
        "next_revision": expected.revision + 1,
    }


def _matching(subject_filter: SubjectFilter) -> list[Any]:
    chosen: list[Any] = []
    if subject_filter.context is not None:
        chosen.append(SubjectRow.context == subject_filter.context)
    if subject_filter.prefix:
        # Names in other contexts start with the context between two colons. LIKE would ignore case on SQLite.
        start = sa.case((SubjectRow.context == DEFAULT_CONTEXT, 1), else_=sa.func.length(SubjectRow.context) + 3)
        chosen.append(sa.func.substr(SubjectRow.name, start, len(subject_filter.prefix)) == subject_filter.prefix)
    return chosen


def _scope_values(rows: Mapping[str | None, T]) -> ScopeValues[T]:
    """Returns the cache entry for the configurations or modes that were read from a table, by scope. A query reads at
    most `CACHED_SCOPES_MAX` rows, so a smaller result is the whole table."""
    return ScopeValues({**rows}, is_complete=len(rows) < statements.CACHED_SCOPES_MAX)
