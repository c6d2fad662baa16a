"""Schemas by id, content, guid and row key, what they refer to, and who uses them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from headrace.registry.domain import (
    SCHEMA_ID_MAX,
    SchemaContent,
    SchemaId,
    SchemaReference,
    StoredSchema,
    SubjectVersion,
)
from headrace.registry.names import DEFAULT_CONTEXT, in_context_of, is_storable, qualified
from headrace.registry.storage import statements
from headrace.registry.storage.footing import rests_on, settled
from headrace.registry.storage.models import ReferenceRow, SchemaRow, SubjectRow, VersionRow
from headrace.registry.storage.scopes import ScopeTables, metadata_json, read_metadata, read_rule_set, rule_set_json

T = TypeVar("T")


class SchemaTables(ScopeTables):
    """The part of the repository that knows schemas apart from their subjects."""

    @rests_on(settled, may_be_missing=True)
    def schema(self, context: str, schema_id: int) -> StoredSchema | None:
        # A database driver would refuse a larger number, or a control character, in its own way.
        if not 0 <= schema_id <= SCHEMA_ID_MAX or not is_storable(context):
            return None
        return next(iter(self._schemas(statements.SCHEMA, {"context": context, "id": schema_id})), None)

    def schema_of(self, context: str, content: SchemaContent) -> StoredSchema | None:
        """The schema with that content; of several, which only imports bring, the one that was there first."""
        found = self._schemas(statements.SCHEMA_OF, {"context": context, "fingerprint": content.fingerprint})
        same = (schema for schema in found if schema.content.parts == content.parts)
        return min(same, key=lambda schema: schema.row_key, default=None)

    def hold_schema(self, row_key: int) -> bool:
        """Whether a schema is there, and nobody deletes it or its versions before the end of this transaction."""
        return self._connection.scalar(statements.HOLD_SCHEMA, {"row_key": row_key}) is not None

    def is_hidden(self, row_key: int, subject: str) -> bool:
        """Whether all versions of a schema are deleted softly, or one under a subject is."""
        of_subject = sa.select(SubjectRow.id).where(SubjectRow.name == subject).scalar_subquery()
        live = sa.func.max(sa.case((VersionRow.deleted, 0), else_=1))
        hidden_here = sa.func.max(
            sa.case((sa.and_(VersionRow.deleted, VersionRow.subject_id == of_subject), 1), else_=0)
        )
        row = self._connection.execute(sa.select(live, hidden_here).where(VersionRow.schema_key == row_key)).one()
        # Both are null for a schema without versions.
        return bool(row[0] == 0 or row[1] == 1)

    def schemas_by_guid(self, guid: bytes) -> list[StoredSchema]:
        """The schemas of a guid in each context that has them, the default context first, in the order of their ids."""
        found = self._schemas(statements.SCHEMAS.where(SchemaRow.guid == guid))
        return sorted(found, key=lambda item: (item.context != DEFAULT_CONTEXT, item.context, item.schema_id))

    def _schemas(self, query: sa.Select[Any], parameters: Mapping[str, Any] | None = None) -> list[StoredSchema]:
        rows = self._connection.execute(query, parameters).all()
        references = self._references_of(rows)
        return [stored_schema(row, references, deleted=not row.live) for row in rows]

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
        """Stores a content and returns its row key; None when another transaction has just stored it.

        `is_copy` says that the content is there already, under another id.
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
                "target": in_context_of(parent, reference.subject),
            }
            for position, reference in enumerate(references)
        ]
        if rows:
            self._connection.execute(sa.insert(ReferenceRow), rows)

    def referencing(self, subject: str, version: int, *, deleted: bool) -> list[StoredSchema]:
        """Schemas that refer to a version, by id; unless `deleted`, only those with a live version."""
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
        """Which of a subject's versions are referred to, and by which versions; unless `deleted`, only by live ones."""
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

    def users(self, schema: StoredSchema, *, deleted: bool) -> list[SubjectVersion]:
        """The versions that use a schema, sorted."""
        query = (
            sa.select(SubjectRow.name, VersionRow.version)
            .join(VersionRow, VersionRow.subject_id == SubjectRow.id)
            .where(VersionRow.schema_key == schema.row_key)
        )
        if not deleted:
            query = query.where(VersionRow.deleted.is_(False))
        return sorted(SubjectVersion(row.name, row.version) for row in self._connection.execute(query))

    # It grows with registrations, but it decides only who may read a schema: by more of them nobody loses that, and
    # refusals are not kept.
    @rests_on(settled)
    def subjects_using(self, row_key: int) -> list[str]:
        """The subjects that have a schema, also where it is deleted softly."""
        query = sa.select(SubjectRow.name).join(VersionRow, VersionRow.subject_id == SubjectRow.id)
        return list(self._connection.scalars(query.where(VersionRow.schema_key == row_key).distinct()))

    def _references_of(self, rows: Sequence[Any]) -> dict[int, tuple[SchemaReference, ...]]:
        """By row key of the schemas in the rows, those that have references."""
        found: dict[int, tuple[SchemaReference, ...]] = {}
        for part in portions(sorted({row.row_key for row in rows if row.has_references})):
            for row in self._connection.execute(statements.REFERENCES, {"schema_keys": part}):
                reference = SchemaReference(row.name, row.subject, row.version)
                found[row.schema_key] = (*found.get(row.schema_key, ()), reference)
        return found


def portions(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Parts of a list, because databases bound the number of parameters of one statement."""
    return (items[start : start + 500] for start in range(0, len(items), 500))


def schema_row(
    context: str, schema_id: SchemaId, content: SchemaContent, lookup_key: bytes, now_ms: int, *, is_copy: bool = False
) -> dict[str, Any]:
    return {
        "context": context,
        "id": schema_id,
        "fingerprint": content.fingerprint,
        "copy": schema_id if is_copy else 0,
        "lookup_key": lookup_key,
        "text": content.text,
        "metadata_json": metadata_json(content.metadata),
        "rule_set_json": rule_set_json(content.rule_set),
        "created_ms": now_ms,
        "guid": content.guid_bytes,
    }


def stored_schema(
    row: Any, references: Mapping[int, tuple[SchemaReference, ...]], *, deleted: bool = False
) -> StoredSchema:
    content = SchemaContent(
        row.text, references.get(row.row_key, ()), read_metadata(row.metadata_json), read_rule_set(row.rule_set_json)
    )
    return StoredSchema(row.id, content, row.schema_created_ms, deleted, row.context, row.row_key)
