"""Questions to the database and changes of it, within one transaction.

Rows come in and go out as the values of `registry.domain`. Nothing here decides: the services do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from registry.domain import (
    LATEST,
    ConfigEntry,
    Metadata,
    SchemaContent,
    SchemaId,
    SchemaReference,
    StoredSchema,
    StoredVersion,
    SubjectVersion,
    is_storable,
)
from registry.storage.models import GLOBAL_SCOPE, ConfigRow, ReferenceRow, SchemaRow, SubjectRow, VersionRow


class Conflict(Exception):
    """Another transaction changed first what this one rests on; decide again."""


@dataclass(frozen=True, slots=True)
class SubjectState:
    """A subject's row: every change of its versions makes `revision` greater."""

    subject_id: int
    revision: int


_VERSION_COLUMNS = (
    SubjectRow.name,
    VersionRow.version,
    VersionRow.deleted,
    VersionRow.created_ms,
    SchemaRow.id,
    SchemaRow.text,
    SchemaRow.metadata_json,
    SchemaRow.created_ms.label("schema_created_ms"),
)


class Repository:
    """The database within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def subjects(self, *, prefix: str = "", deleted: bool = False, deleted_only: bool = False) -> list[str]:
        """Names of subjects with a version that is not deleted (or any, or only deleted ones), sorted."""
        if not is_storable(prefix):
            return []
        query = (
            sa.select(SubjectRow.name)
            .join(VersionRow, VersionRow.subject_id == SubjectRow.id)
            # Not LIKE, which ignores case on SQLite.
            .where(sa.func.substr(SubjectRow.name, 1, len(prefix)) == prefix)
            .group_by(SubjectRow.name)
        )
        live = sa.func.sum(sa.case((VersionRow.deleted, 0), else_=1))
        if deleted_only:
            query = query.having(live == 0)
        elif not deleted:
            query = query.having(live > 0)
        # Sorted here and not by the database, whose order depends on its locale.
        return sorted(self._connection.scalars(query))

    def subject_state(self, subject: str) -> SubjectState | None:
        if not is_storable(subject):
            return None
        query = sa.select(SubjectRow.id, SubjectRow.revision).where(SubjectRow.name == subject)
        row = self._connection.execute(query).first()
        return None if row is None else SubjectState(row.id, row.revision)

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

    def versions(
        self,
        *,
        subject: str | None = None,
        prefix: str = "",
        lookup_key: bytes | None = None,
        schema_id: int | None = None,
        deleted: bool = False,
    ) -> list[StoredVersion]:
        """Versions that match all that is given, ordered by subject and version."""
        if not (is_storable(subject or "") and is_storable(prefix)):
            return []
        query = _version_query()
        if subject is not None:
            query = query.where(SubjectRow.name == subject)
        if prefix:
            query = query.where(sa.func.substr(SubjectRow.name, 1, len(prefix)) == prefix)
        if lookup_key is not None:
            query = query.where(SchemaRow.lookup_key == lookup_key)
        if schema_id is not None:
            query = query.where(SchemaRow.id == schema_id)
        if not deleted:
            query = query.where(VersionRow.deleted.is_(False))
        return sorted(self._stored_versions(query), key=lambda found: (found.subject, found.version))

    def version(self, subject: str, version: int, *, deleted: bool = False) -> StoredVersion | None:
        """One version, or the newest visible one for `LATEST`."""
        if not is_storable(subject):
            return None
        query = _version_query().where(SubjectRow.name == subject)
        if version == LATEST:
            query = query.order_by(VersionRow.version.desc()).limit(1)
        else:
            query = query.where(VersionRow.version == version)
        if not deleted:
            query = query.where(VersionRow.deleted.is_(False))
        return next(iter(self._stored_versions(query)), None)

    def claim_subject(self, subject: str, seen: SubjectState | None) -> int:
        """Makes the subject's next revision this transaction's own and returns the subject's row id.

        Raises:
            Conflict: the subject is no longer as `seen` says (None: it did not exist).
        """
        if seen is None:
            result = self._connection.execute(sa.insert(SubjectRow).values(name=subject, revision=1))
            return int(_inserted_id(result))
        moved = self._connection.execute(
            sa.update(SubjectRow)
            .where(SubjectRow.id == seen.subject_id, SubjectRow.revision == seen.revision)
            .values(revision=seen.revision + 1)
        )
        if moved.rowcount != 1:
            raise Conflict(f"subject {subject!r} has moved on")
        return seen.subject_id

    def add_version(self, subject_id: int, version: int, schema_id: SchemaId, now_ms: int) -> None:
        self._connection.execute(
            sa.insert(VersionRow).values(
                subject_id=subject_id, version=version, schema_id=schema_id, deleted=False, created_ms=now_ms
            )
        )

    def mark_deleted(self, subject_id: int, versions: Iterable[int]) -> None:
        self._connection.execute(
            sa.update(VersionRow)
            .where(VersionRow.subject_id == subject_id, VersionRow.version.in_(list(versions)))
            .values(deleted=True)
        )

    def remove_versions(self, subject_id: int, versions: Iterable[int]) -> None:
        """Removes versions for good, and what nothing uses any more: schemas, the subject and its configuration."""
        chosen = (VersionRow.subject_id == subject_id, VersionRow.version.in_(list(versions)))
        schema_ids = list(self._connection.scalars(sa.select(VersionRow.schema_id).where(*chosen)))
        self._connection.execute(sa.delete(VersionRow).where(*chosen))
        unused = ~sa.exists().where(VersionRow.schema_id == SchemaRow.id)
        self._connection.execute(sa.delete(SchemaRow).where(SchemaRow.id.in_(schema_ids), unused))
        if self._connection.scalar(sa.select(sa.exists().where(VersionRow.subject_id == subject_id))):
            return
        name = sa.select(SubjectRow.name).where(SubjectRow.id == subject_id).scalar_subquery()
        self._connection.execute(sa.delete(ConfigRow).where(ConfigRow.scope == name))
        self._connection.execute(sa.delete(SubjectRow).where(SubjectRow.id == subject_id))

    def schema(self, schema_id: int) -> StoredSchema | None:
        live = sa.exists().where(VersionRow.schema_id == SchemaRow.id, VersionRow.deleted.is_(False))
        query = sa.select(
            SchemaRow.id, SchemaRow.text, SchemaRow.metadata_json, SchemaRow.created_ms, live.label("live")
        ).where(SchemaRow.id == schema_id)
        row = self._connection.execute(query).first()
        if row is None:
            return None
        references = self._references([row.id]).get(row.id, ())
        return StoredSchema(row.id, _content(row, references), row.created_ms, deleted=not row.live)

    def schema_id_max(self) -> int:
        return self._connection.scalar(sa.select(sa.func.max(SchemaRow.id))) or 0

    def schema_id_of(self, content: SchemaContent) -> SchemaId | None:
        query = sa.select(SchemaRow.id).where(SchemaRow.fingerprint == content.fingerprint)
        found = self._connection.scalar(query)
        return None if found is None else SchemaId(found)

    def add_schema(self, content: SchemaContent, lookup_key: bytes, now_ms: int) -> SchemaId:
        """Stores a content that is not there yet; the database raises when another transaction just did."""
        result = self._connection.execute(
            sa.insert(SchemaRow).values(
                fingerprint=content.fingerprint,
                lookup_key=lookup_key,
                text=content.text,
                metadata_json=_metadata_json(content.metadata),
                created_ms=now_ms,
            )
        )
        schema_id = SchemaId(int(_inserted_id(result)))
        for position, reference in enumerate(content.references):
            self._connection.execute(
                sa.insert(ReferenceRow).values(
                    schema_id=schema_id,
                    position=position,
                    name=reference.name,
                    subject=reference.subject,
                    version=reference.version,
                )
            )
        return schema_id

    def referencing(self, subject: str, version: int, *, deleted: bool) -> list[int]:
        """Ids of schemas that refer to a version, sorted; unless `deleted`, only those with a live version."""
        if not is_storable(subject):
            return []
        query = sa.select(ReferenceRow.schema_id).where(
            ReferenceRow.subject == subject, ReferenceRow.version == version
        )
        if not deleted:
            query = query.where(
                sa.exists().where(VersionRow.schema_id == ReferenceRow.schema_id, VersionRow.deleted.is_(False))
            )
        return sorted(set(self._connection.scalars(query)))

    def users(self, schema_ids: Sequence[int], *, deleted: bool) -> list[SubjectVersion]:
        """The versions that use one of these schemas, sorted."""
        query = (
            sa.select(SubjectRow.name, VersionRow.version)
            .join(VersionRow, VersionRow.subject_id == SubjectRow.id)
            .where(VersionRow.schema_id.in_(schema_ids))
        )
        if not deleted:
            query = query.where(VersionRow.deleted.is_(False))
        return sorted(SubjectVersion(row.name, row.version) for row in self._connection.execute(query))

    def config(self, subject: str | None) -> ConfigEntry | None:
        """What is configured for a subject, or for all when None."""
        scope = GLOBAL_SCOPE if subject is None else subject
        if not is_storable(scope):
            return None
        query = sa.select(ConfigRow.compatibility, ConfigRow.normalize).where(ConfigRow.scope == scope)
        row = self._connection.execute(query).first()
        return None if row is None else ConfigEntry(row.compatibility, row.normalize)

    def put_config(self, subject: str | None, entry: ConfigEntry) -> None:
        self.remove_config(subject)
        if not entry.is_empty:
            self._connection.execute(
                sa.insert(ConfigRow).values(
                    scope=GLOBAL_SCOPE if subject is None else subject,
                    compatibility=entry.compatibility,
                    normalize=entry.normalize,
                )
            )

    def remove_config(self, subject: str | None) -> None:
        scope = GLOBAL_SCOPE if subject is None else subject
        self._connection.execute(sa.delete(ConfigRow).where(ConfigRow.scope == scope))

    def _stored_versions(self, query: sa.Select[Any]) -> list[StoredVersion]:
        rows = self._connection.execute(query).all()
        references = self._references([row.id for row in rows])
        return [
            StoredVersion(
                row.name,
                row.version,
                StoredSchema(row.id, _content(row, references.get(row.id, ())), row.schema_created_ms),
                row.created_ms,
                row.deleted,
            )
            for row in rows
        ]

    def _references(self, schema_ids: Sequence[int]) -> dict[int, tuple[SchemaReference, ...]]:
        found: dict[int, tuple[SchemaReference, ...]] = {}
        chosen = sorted(set(schema_ids))
        # In portions, because databases bound the number of parameters of one statement.
        for start in range(0, len(chosen), 500):
            query = (
                sa.select(ReferenceRow)
                .with_only_columns(
                    ReferenceRow.schema_id, ReferenceRow.name, ReferenceRow.subject, ReferenceRow.version
                )
                .where(ReferenceRow.schema_id.in_(chosen[start : start + 500]))
                .order_by(ReferenceRow.schema_id, ReferenceRow.position)
            )
            for row in self._connection.execute(query):
                reference = SchemaReference(row.name, row.subject, row.version)
                found[row.schema_id] = (*found.get(row.schema_id, ()), reference)
        return found


def _version_query() -> sa.Select[Any]:
    columns: tuple[Any, ...] = _VERSION_COLUMNS
    return (
        sa.select(*columns)
        .join(VersionRow, VersionRow.subject_id == SubjectRow.id)
        .join(SchemaRow, SchemaRow.id == VersionRow.schema_id)
    )


def _inserted_id(result: Any) -> Any:
    return result.inserted_primary_key[0]


def _content(row: Any, references: tuple[SchemaReference, ...]) -> SchemaContent:
    return SchemaContent(row.text, references, _metadata(row.metadata_json))


def _metadata_json(metadata: Metadata | None) -> str | None:
    if metadata is None:
        return None
    return json.dumps(
        {
            "properties": dict(metadata.properties),
            "tags": {path: list(names) for path, names in metadata.tags},
            "sensitive": list(metadata.sensitive),
        }
    )


def _metadata(text: str | None) -> Metadata | None:
    return None if text is None else Metadata.of(**json.loads(text))
