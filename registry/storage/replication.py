"""SQL of replication: reads subjects, schemas and contexts as a replica needs them, and stores the replica's state."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy import bindparam

from headrace.registry.domain import ReplicationState, StoredSchema
from headrace.registry.storage.cache import SubjectState
from headrace.registry.storage.models import ContextRow, ReplicationRow, SchemaRow, SubjectRow, VersionRow
from headrace.registry.storage.repository import Repository
from headrace.registry.storage.rows import batches

_SUBJECTS: Final = SubjectRow.name.in_(bindparam("names", expanding=True))
VERSIONS_OF_SUBJECTS: Final = (
    sa.select(
        SubjectRow.name,
        SubjectRow.id.label("subject_id"),
        SubjectRow.revision,
        VersionRow.version,
        VersionRow.deleted,
        VersionRow.created_ms,
        SchemaRow.id,
        SchemaRow.fingerprint,
    )
    .join(VersionRow, VersionRow.subject_id == SubjectRow.id)
    .join(SchemaRow, SchemaRow.row_key == VersionRow.schema_key)
    .where(_SUBJECTS)
    .order_by(SubjectRow.name, VersionRow.version)
)


@dataclass(frozen=True, slots=True)
class ReplicatedVersion:
    """A version with the id of its schema and the SHA-256 of the schema's content, instead of the schema."""

    version: int
    schema_id: int
    fingerprint: bytes
    created_ms: int
    deleted: bool


@dataclass(frozen=True, slots=True)
class ReplicatedSubject:
    """A subject at one revision (`state`), with all versions that it has then, ascending."""

    state: SubjectState
    versions: tuple[ReplicatedVersion, ...]


@dataclass(frozen=True, slots=True)
class ContextState:
    """A context: its name, the id of its next schema (`next_id`), and whether lists of contexts show it (`listed`)."""

    name: str
    next_id: int
    listed: bool


class ReplicationTables:
    """Reads and writes the tables for replication, in a repository's transaction."""

    def __init__(self, repository: Repository) -> None:
        self._connection = repository.connection

    def put_replication_state(self, state: ReplicationState) -> None:
        self._connection.execute(sa.delete(ReplicationRow))
        self._connection.execute(sa.insert(ReplicationRow).values(asdict(state)))

    def lock_replication_state(self) -> None:
        """Blocks other writers of the replication state until this transaction ends."""
        # SQLite has one writer at a time anyway.
        if self._connection.dialect.name == "postgresql":
            self._connection.execute(sa.text(f"LOCK TABLE {ReplicationRow.__tablename__} IN SHARE ROW EXCLUSIVE MODE"))

    def changes(self) -> int:
        """Returns the sum of all subjects' revisions. While the registry's revision is unchanged, the sum grows with
        every added version. A replica that has seen the current revision and the current sum has therefore seen all
        versions."""
        return int(self._connection.scalar(sa.select(sa.func.sum(SubjectRow.revision))) or 0)

    def subject_states(self) -> dict[str, SubjectState]:
        """The state of each subject, by name. A subject that is created again after a permanent deletion has a new id,
        and revision 1."""
        rows = self._connection.execute(sa.select(SubjectRow.name, SubjectRow.id, SubjectRow.revision))
        return {row.name: SubjectState(row.id, row.revision) for row in rows}

    def replicated_subjects(self, names: Sequence[str]) -> dict[str, ReplicatedSubject]:
        """Loads the named subjects; missing ones are omitted."""
        found: dict[str, ReplicatedSubject] = {}
        for part in batches(names):
            rows = self._connection.execute(VERSIONS_OF_SUBJECTS, {"names": part})
            for name, group in itertools.groupby(rows, lambda row: row.name):
                subject = list(group)
                versions = (
                    ReplicatedVersion(row.version, row.id, row.fingerprint, row.created_ms, row.deleted)
                    for row in subject
                )
                found[name] = ReplicatedSubject(
                    SubjectState(subject[0].subject_id, subject[0].revision), tuple(versions)
                )
        return found

    def fingerprints(self, context: str, ids: Sequence[int]) -> dict[int, bytes]:
        """The SHA-256 of the content of each given schema (`SchemaContent.fingerprint`), by id; missing schemas are
        omitted."""
        found: dict[int, bytes] = {}
        for part in batches(ids):
            query = sa.select(SchemaRow.id, SchemaRow.fingerprint).where(SchemaRow.context == context)
            found.update(
                (row.id, row.fingerprint) for row in self._connection.execute(query.where(SchemaRow.id.in_(part)))
            )
        return found

    def lookup_keys(self, schemas: Sequence[StoredSchema]) -> Mapping[int, bytes]:
        """Returns the `lookup_key` of each of these schemas (see `SchemaRow`), by row key."""
        found: dict[int, bytes] = {}
        for part in batches([schema.row_key for schema in schemas]):
            query = sa.select(SchemaRow.row_key, SchemaRow.lookup_key).where(SchemaRow.row_key.in_(part))
            found.update((row.row_key, row.lookup_key) for row in self._connection.execute(query))
        return found

    def context_states(self) -> list[ContextState]:
        query = sa.select(ContextRow.name, ContextRow.next_id, ContextRow.listed).order_by(ContextRow.name)
        return [ContextState(row.name, row.next_id, row.listed) for row in self._connection.execute(query)]
