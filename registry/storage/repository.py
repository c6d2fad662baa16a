"""Questions to the database and changes of it, within one transaction.

Rows come in and go out as the values of `registry.domain`. Nothing here decides: the services do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa

from headrace.registry.domain import (
    LATEST,
    SchemaContent,
    SchemaId,
    StoredSchema,
    StoredVersion,
    SubjectVersion,
)
from headrace.registry.names import DEFAULT_CONTEXT, EVERYTHING, SubjectFilter, context_of, is_storable
from headrace.registry.storage import statements
from headrace.registry.storage.following import FollowingTables
from headrace.registry.storage.footing import names, of_subject, of_version, of_versions, others_grow, rests_on
from headrace.registry.storage.history import Moment
from headrace.registry.storage.kept import SubjectState, SubjectView, VersionMark, ViewAtMoment
from headrace.registry.storage.models import ConfigRow, IdentityRow, ModeRow, SchemaRow, SubjectRow, VersionRow
from headrace.registry.storage.schemas import portions, schema_row, stored_schema
from headrace.registry.storage.scopes import Conflict, RegistryState


@others_grow
class Repository(FollowingTables):
    """The database within one transaction."""

    @rests_on(names)
    def subjects(
        self, wanted: SubjectFilter = EVERYTHING, *, deleted: bool = False, deleted_only: bool = False
    ) -> list[str]:
        """Names of subjects with a version that is not deleted (or any, or only deleted ones), sorted."""
        if not wanted.is_storable:
            return []
        query = (
            sa.select(SubjectRow.name)
            .join(VersionRow, VersionRow.subject_id == SubjectRow.id)
            .where(*_matching(wanted))
            .group_by(SubjectRow.name)
        )
        live = sa.func.sum(sa.case((VersionRow.deleted, 0), else_=1))
        if deleted_only:
            query = query.having(live == 0)
        elif not deleted:
            query = query.having(live > 0)
        # Sorted here and not by the database, whose order depends on its locale.
        return sorted(self._connection.scalars(query))

    def identity(self) -> str:
        """The random name that the database was given when it was made."""
        return self._connection.scalar(sa.select(IdentityRow.identity)) or ""

    def subjects_revision(self) -> int:
        """Greater with every new subject, for as long as the registry's revision is the same."""
        if self._connection.dialect.name == "sqlite":
            # At once, however many there are; on PostgreSQL the row with the highest id may be there before others.
            return self._connection.scalar(sa.select(sa.func.max(SubjectRow.id))) or 0
        return self.subject_count()

    def subject_count(self) -> int:
        return self._connection.scalar(sa.select(sa.func.count()).select_from(SubjectRow)) or 0

    def stored_subjects(self, names: Sequence[str]) -> set[str]:
        """Those of the names under which anything is stored, if only softly deleted."""
        found: set[str] = set()
        for part in portions([name for name in names if is_storable(name)]):
            found.update(self._connection.scalars(sa.select(SubjectRow.name).where(SubjectRow.name.in_(part))))
        return found

    def has_subjects(self, context: str) -> bool:
        """Whether anything is stored in a context, if only softly deleted."""
        return bool(self._connection.scalar(sa.select(sa.exists().where(SubjectRow.context == context))))

    @rests_on(of_subject)
    def subject_state(self, subject: str) -> SubjectState | None:
        if not is_storable(subject):
            return None
        seen = self._seen(("view", subject))
        if seen is not None:
            return cast(SubjectView, seen).state
        row = self._connection.execute(statements.SUBJECT_STATE, {"name": subject}).first()
        return None if row is None else SubjectState(row.id, row.revision)

    @rests_on(of_subject)
    def subject_view(self, subject: str) -> SubjectView:
        """All versions of a subject. On the way a read learns the registry's revision."""
        if not is_storable(subject):
            return SubjectView()
        return self._once(("view", subject), lambda: self._subject_view(subject))

    def _subject_view(self, subject: str) -> SubjectView:
        before = None if self._kept is None else self._kept.view(subject)
        seen, is_whole = self._view_after(subject, before)
        if not is_whole:
            seen, _ = self._view_after(subject, None)
        if self._kept is not None and seen.view.marks:
            self._kept.keep_view(subject, seen)
        return seen.view

    def _view_after(self, subject: str, known: ViewAtMoment | None) -> tuple[ViewAtMoment, bool]:
        """The versions, of which those that are known are not read again, and whether these are all."""
        parameters = {"name": subject, "known_revision": -1, "known_version": 0}
        if known is not None:
            parameters |= {"known_revision": known.moment.revision, "known_version": known.view.marks[-1].version}
        rows = self._connection.execute(statements.SUBJECT_VIEW, parameters).all()
        first = rows[0]
        moment = Moment(first.history, first.registry_revision)
        self._once("state", lambda: RegistryState(moment, first.settings_revision))
        if self._kept is not None:
            self._kept.newest.see(moment)
        if known is not None and known.moment.history != moment.history:
            # It was asked for those after a version that is not, or is another one, in this history.
            return ViewAtMoment(moment, SubjectView()), False
        if first.id is None:
            return ViewAtMoment(moment, SubjectView()), True
        state = SubjectState(first.id, first.revision)
        marks = tuple(VersionMark(*cast(Any, row[5:])) for row in rows if row.version is not None)
        is_whole = True
        if known is not None and known.moment == moment:
            assert known.view.state is not None
            # An import may have filled a gap before the newest version.
            is_whole = state.revision - known.view.state.revision == len(marks)
            marks = known.view.marks + marks
        return ViewAtMoment(moment, SubjectView(state, marks)), is_whole

    @rests_on(of_subject)
    def version_numbers(self, subject: str) -> list[tuple[int, bool]]:
        """(version, is deleted softly) of every stored version, ascending."""
        if not is_storable(subject):
            return []
        query = (
            sa.select(VersionRow.version, VersionRow.deleted)
            .join(SubjectRow, SubjectRow.id == VersionRow.subject_id)
            .where(SubjectRow.name == subject)
            .order_by(VersionRow.version)
        )
        return [(row.version, row.deleted) for row in self._connection.execute(query)]

    @rests_on(of_versions)
    def versions(
        self,
        *,
        subject: str | None = None,
        wanted: SubjectFilter = EVERYTHING,
        schema_key: int | None = None,
        deleted: bool = False,
    ) -> list[StoredVersion]:
        """Versions that match all that is given, ordered by subject and version."""
        if not (is_storable(subject or "") and wanted.is_storable):
            return []
        query = statements.VERSIONS.where(*_matching(wanted))
        if subject is not None:
            query = query.where(SubjectRow.name == subject)
        if schema_key is not None:
            query = query.where(SchemaRow.row_key == schema_key)
        if not deleted:
            query = query.where(VersionRow.deleted.is_(False))
        return sorted(self._stored_versions(query), key=lambda found: (found.subject, found.version))

    def listed_versions(self, wanted: SubjectFilter, *, deleted: bool = False) -> list[SubjectVersion]:
        """Which versions the subjects that are wanted have, in no order."""
        if not wanted.is_storable:
            return []
        query = (
            sa.select(SubjectRow.name, VersionRow.version)
            .join(VersionRow, VersionRow.subject_id == SubjectRow.id)
            .where(*_matching(wanted))
        )
        if not deleted:
            query = query.where(VersionRow.deleted.is_(False))
        return [SubjectVersion(*row) for row in self._connection.execute(query)]

    def load_versions(self, chosen: Sequence[SubjectVersion]) -> list[StoredVersion]:
        """These versions, as far as they are there, ordered by subject and version."""
        found: list[StoredVersion] = []
        for part in portions(chosen):
            pairs = [(item.subject, item.version) for item in part]
            wanted = sa.tuple_(SubjectRow.name, VersionRow.version).in_(pairs)
            found += self._stored_versions(statements.VERSIONS.where(wanted))
        return sorted(found, key=lambda item: (item.subject, item.version))

    @rests_on(of_subject)
    def seen_versions(self, subject: str, marks: Sequence[VersionMark]) -> list[StoredVersion]:
        """Versions of a view, in the order of the marks; without those that have gone since it was read."""
        assert self._kept is not None, "a view is a read's"
        history = self.history()
        schemas = {mark.schema_key: self._kept.schema(history, mark.schema_key) for mark in marks}
        missing = [mark.version for mark in marks if schemas[mark.schema_key] is None]
        for part in portions(missing):
            for found in self._stored_versions(statements.VERSIONS_OF, {"name": subject, "versions": part}):
                self._kept.keep_schema(history, found.schema)
                schemas[found.schema.row_key] = found.schema
        return [
            StoredVersion(subject, mark.version, schema, mark.created_ms, mark.deleted)
            for mark in marks
            if (schema := schemas[mark.schema_key]) is not None
        ]

    @rests_on(of_version, may_be_missing=True)
    def version(self, subject: str, version: int, *, deleted: bool = False) -> StoredVersion | None:
        """One version, or the newest visible one for `LATEST`."""
        if not is_storable(subject):
            return None
        view = cast("SubjectView | None", self._seen(("view", subject)))
        if view is None or self._kept is None:
            return self._once((subject, version, deleted), lambda: self._version(subject, version, deleted))
        mark = view.mark(version, deleted=deleted)
        return None if mark is None else next(iter(self.seen_versions(subject, [mark])), None)

    def _version(self, subject: str, version: int, deleted: bool) -> StoredVersion | None:
        if version == LATEST:
            found = self._stored_versions(statements.LATEST_VERSION[deleted], {"name": subject})
        else:
            found = self._stored_versions(statements.VERSION[deleted], {"name": subject, "version": version})
        return next(iter(found), None)

    def claim_subject(self, subject: str, seen: SubjectState | None) -> int:
        """Makes the subject's next revision this transaction's own and returns the subject's row id.

        Raises:
            Conflict: the subject is no longer as `seen` says (None: it did not exist).
        """
        if seen is None:
            row = {"name": subject, "context": context_of(subject), "revision": 1}
            return int(self._connection.execute(statements.ADD_SUBJECT, row).scalar_one())
        moved = self._connection.execute(statements.MOVE_SUBJECT, _moved(seen))
        if moved.rowcount != 1:
            raise Conflict(f"subject {subject!r} has moved on")
        return seen.subject_id

    def require_settings(self, history_seen: int, settings_seen: int) -> None:
        """Makes sure that configuration and modes are as they were, once a subject is claimed.

        Raises:
            Conflict: they have changed, or the database has gone back.
        """
        state = self._state()
        if (state.moment.history, state.settings_revision) != (history_seen, settings_seen):
            raise Conflict("configuration or modes have changed, or the database has gone back")

    def add_version(self, subject_id: int, version: int, schema_key: int, now_ms: int) -> None:
        row = {"subject_id": subject_id, "version": version, "schema_key": schema_key, "created_ms": now_ms}
        self._connection.execute(statements.ADD_VERSION, {**row, "deleted": False})

    def add_whole_version(
        self,
        subject: str,
        seen: SubjectState | None,
        history_seen: int,
        settings_seen: int,
        version: int,
        schema_id: SchemaId,
        content: SchemaContent,
        lookup_key: bytes,
        now_ms: int,
    ) -> StoredSchema:
        """Adds a content without references, which is new to its context, as the next version of a subject.

        In one statement where the database can do that.

        Raises:
            Conflict: the subject is no longer as `seen` says, nor are history and settings, or the content has come.
        """
        context = context_of(subject)
        if self._connection.dialect.name != "postgresql":
            subject_id = self.claim_subject(subject, seen)
            self.require_settings(history_seen, settings_seen)
            self.list_context(context)
            row_key = self.add_schema(context, schema_id, content, lookup_key, now_ms)
            if row_key is None:
                raise Conflict("the schema has come")
            self.add_version(subject_id, version, row_key, now_ms)
        else:
            row = schema_row(context, schema_id, content, lookup_key, now_ms)
            parameters = {f"new_{name}": value for name, value in row.items()} | {"new_version": version}
            parameters |= {"history_seen": history_seen, "settings_seen": settings_seen}
            parameters |= {"new_name": subject} if seen is None else _moved(seen)
            statement = statements.add_whole_version(new_subject=seen is None)
            row_key = int(self._connection.execute(statement, parameters).scalar_one())
        return StoredSchema(schema_id, content, now_ms, context=context, row_key=row_key)

    def put_version(self, subject_id: int, version: int, schema_key: int, now_ms: int) -> bool:
        """Adds a version, or replaces the one of that number; whether that had another schema."""
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

    def lock_versions(self, subject_id: int, versions: Iterable[int]) -> None:
        """Waits for those who are making schemas that refer to these versions; nobody begins to before the end."""
        # Always in the same order, and the schemas after the versions, as everywhere.
        keys: set[int] = set()
        for part in portions(sorted(versions)):
            chosen = (VersionRow.subject_id == subject_id, VersionRow.version.in_(part))
            query = sa.select(VersionRow.schema_key).where(*chosen).order_by(VersionRow.version)
            keys.update(self._connection.scalars(query.with_for_update()))
        for part in portions(sorted(keys)):
            held = sa.select(SchemaRow.row_key).where(SchemaRow.row_key.in_(part)).order_by(SchemaRow.row_key)
            self._connection.execute(held.with_for_update())

    def hold_reference(self, target: str, version: int, *, deleted: bool = False) -> bool:
        """Whether a version is there (`deleted`: if only softly deleted) and stays so until this transaction ends."""
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
        for part in portions(sorted(versions)):
            chosen = (VersionRow.subject_id == subject_id, VersionRow.version.in_(part))
            self._connection.execute(sa.update(VersionRow).where(*chosen).values(deleted=True))

    def remove_versions(self, subject_id: int, versions: Iterable[int]) -> None:
        """Removes versions for good, and what has no use then: schemas, the subject, its configuration and mode."""
        for part in portions(sorted(versions)):
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

    def totals(self) -> dict[str, int]:
        """How many subjects, schemas, versions and softly deleted versions there are."""
        deleted = sa.select(sa.func.count()).select_from(VersionRow).where(VersionRow.deleted.is_(True))
        counted = {
            "schemas": sa.select(sa.func.count()).select_from(SchemaRow),
            "versions": sa.select(sa.func.count()).select_from(VersionRow),
            "deleted_versions": deleted,
        }
        totals = {name: self._connection.scalar(query) or 0 for name, query in counted.items()}
        return {"subjects": self.subject_count(), **totals}

    def _stored_versions(
        self, query: sa.Select[Any], parameters: Mapping[str, Any] | None = None
    ) -> list[StoredVersion]:
        rows = self._connection.execute(query, parameters).all()
        references = self._references_of(rows)
        return [
            StoredVersion(row.name, row.version, stored_schema(row, references), row.created_ms, row.deleted)
            for row in rows
        ]


def _moved(seen: SubjectState) -> dict[str, int]:
    return {"subject_id": seen.subject_id, "seen": seen.revision, "next_revision": seen.revision + 1}


def _matching(wanted: SubjectFilter) -> list[Any]:
    chosen: list[Any] = []
    if wanted.context is not None:
        chosen.append(SubjectRow.context == wanted.context)
    if wanted.prefix:
        # Names in other contexts have them in front, between two colons. Not LIKE, which ignores case on SQLite.
        start = sa.case((SubjectRow.context == DEFAULT_CONTEXT, 1), else_=sa.func.length(SubjectRow.context) + 3)
        chosen.append(sa.func.substr(SubjectRow.name, start, len(wanted.prefix)) == wanted.prefix)
    return chosen
