"""The statements of registrations and lookups, built once because building one takes longer than running it.

Parameters have the names of the columns that they are compared with (in the plural for lists), unless a statement
contains both.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import bindparam
from sqlalchemy.dialects import postgresql, sqlite

from headrace.registry.storage.models import (
    STATE_ID,
    ConfigRow,
    ContextRow,
    ModeRow,
    ReferenceRow,
    SchemaRow,
    StateRow,
    SubjectRow,
    VersionRow,
)
from headrace.registry.storage.revision import History

_SCHEMA_COLUMNS: Final[tuple[Any, ...]] = (
    SchemaRow.row_key,
    SchemaRow.context,
    SchemaRow.id,
    SchemaRow.text,
    SchemaRow.metadata_json,
    SchemaRow.rule_set_json,
    SchemaRow.created_ms.label("schema_created_ms"),
    # Most schemas have no references, so these are read only where this flag is set.
    sa.exists().where(ReferenceRow.schema_key == SchemaRow.row_key).label("has_references"),
)

SUBJECT_VIEW: Final = (
    sa.select(
        History().label("history"),
        StateRow.revision.label("registry_revision"),
        StateRow.settings_revision,
        SubjectRow.id,
        SubjectRow.revision,
        VersionRow.version,
        VersionRow.deleted,
        VersionRow.created_ms,
        VersionRow.schema_key,
        SchemaRow.lookup_key,
    )
    .select_from(StateRow)
    .outerjoin(SubjectRow, SubjectRow.name == bindparam("name"))
    .outerjoin(
        VersionRow,
        sa.and_(
            VersionRow.subject_id == SubjectRow.id,
            VersionRow.version
            > sa.case((StateRow.revision == bindparam("known_revision"), bindparam("known_version")), else_=0),
        ),
    )
    .outerjoin(SchemaRow, SchemaRow.row_key == VersionRow.schema_key)
    .where(StateRow.id == STATE_ID)
    .order_by(VersionRow.version)
)
"""One row for each version of a subject; a subject without versions has one row with nulls.

Every row has the history and the registry's revisions. A reader that knows the registry's current revision gets only
the versions after `known_version`.
"""

SUBJECT_STATE: Final = sa.select(SubjectRow.id, SubjectRow.revision).where(SubjectRow.name == bindparam("name"))
STATE: Final = sa.select(History().label("history"), StateRow.revision, StateRow.settings_revision).where(
    StateRow.id == STATE_ID
)
CONFIGS: Final = sa.select(ConfigRow.__table__).where(ConfigRow.scope.in_(bindparam("scopes", expanding=True)))
MODES: Final = sa.select(ModeRow.scope, ModeRow.mode).where(ModeRow.scope.in_(bindparam("scopes", expanding=True)))

CACHED_SCOPES_MAX: Final = 200  # rows that the cache reads at once, after every change of the registry's revision
FIRST_CONFIGS: Final = sa.select(ConfigRow.__table__).limit(CACHED_SCOPES_MAX)
FIRST_MODES: Final = sa.select(ModeRow.scope, ModeRow.mode).limit(CACHED_SCOPES_MAX)

VERSIONS: Final = (
    sa.select(SubjectRow.name, VersionRow.version, VersionRow.deleted, VersionRow.created_ms, *_SCHEMA_COLUMNS)
    .join(VersionRow, VersionRow.subject_id == SubjectRow.id)
    .join(SchemaRow, SchemaRow.row_key == VersionRow.schema_key)
)
_OF_SUBJECT: Final = VERSIONS.where(SubjectRow.name == bindparam("name"))
_LIVE: Final = VersionRow.deleted.is_(False)

VERSION: Final = {
    True: _OF_SUBJECT.where(VersionRow.version == bindparam("version")),
    False: _OF_SUBJECT.where(VersionRow.version == bindparam("version"), _LIVE),
}
"""Selects one version of a subject by its number. `VERSION[True]` and `LATEST_VERSION[True]` include soft-deleted
versions, `VERSION[False]` and `LATEST_VERSION[False]` do not."""

LATEST_VERSION: Final = {
    True: _OF_SUBJECT.order_by(VersionRow.version.desc()).limit(1),
    False: _OF_SUBJECT.where(_LIVE).order_by(VersionRow.version.desc()).limit(1),
}
VERSIONS_OF: Final = _OF_SUBJECT.where(VersionRow.version.in_(bindparam("versions", expanding=True)))

SCHEMAS: Final = sa.select(
    *_SCHEMA_COLUMNS, sa.exists().where(VersionRow.schema_key == SchemaRow.row_key, _LIVE).label("live")
)
SCHEMA: Final = SCHEMAS.where(SchemaRow.context == bindparam("context"), SchemaRow.id == bindparam("id"))
SCHEMAS_BY_ID: Final = SCHEMAS.where(
    SchemaRow.context == bindparam("context"), SchemaRow.id.in_(bindparam("ids", expanding=True))
)
SCHEMA_OF: Final = SCHEMAS.where(
    SchemaRow.context == bindparam("context"), SchemaRow.fingerprint == bindparam("fingerprint")
)

REFERENCES: Final = (
    sa.select(ReferenceRow.schema_key, ReferenceRow.name, ReferenceRow.subject, ReferenceRow.version)
    .where(ReferenceRow.schema_key.in_(bindparam("schema_keys", expanding=True)))
    .order_by(ReferenceRow.schema_key, ReferenceRow.position)
)

ADD_SUBJECT: Final = sa.insert(SubjectRow).returning(SubjectRow.id)
ADVANCE_SUBJECT: Final = (
    sa.update(SubjectRow)
    .where(SubjectRow.id == bindparam("subject_id"), SubjectRow.revision == bindparam("expected_revision"))
    .values(revision=bindparam("next_revision"))
)
ADD_VERSION: Final = sa.insert(VersionRow)
LOCK_SCHEMA: Final = (
    sa.select(SchemaRow.row_key).where(SchemaRow.row_key == bindparam("row_key")).with_for_update(read=True)
)
SUBJECT_LOCK_CLASS: Final = 1_920_034_171  # class of PostgreSQL advisory locks; an arbitrary number
LOCK_SUBJECT: Final = sa.select(
    sa.func.pg_advisory_xact_lock(sa.literal_column(str(SUBJECT_LOCK_CLASS)), bindparam("key", type_=sa.Integer))
)
WRITERS: Final = sa.text(
    "SELECT pid, virtualtransaction FROM pg_locks WHERE mode = 'RowExclusiveLock' AND granted "
    "AND relation = 'subjects'::regclass "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
"""Selects the transactions that write rows of `subjects`, as every write of versions does. PostgreSQL only."""

CONTEXT_LISTED: Final = sa.select(ContextRow.listed).where(ContextRow.name == bindparam("name"))


def insert_for(dialect: str, table: Any) -> Any:
    """An INSERT into the table, with support for ON CONFLICT; `dialect` is SQLAlchemy's name of the database, such as
    `postgresql`."""
    return (postgresql if dialect == "postgresql" else sqlite).insert(table)


@cache
def add_schema(dialect: str) -> Any:
    """The statement that adds a schema and returns its row key. It adds and returns nothing if a concurrent transaction
    has added the same content. `dialect` is as for `insert_for`."""
    return (
        insert_for(dialect, SchemaRow)
        .on_conflict_do_nothing(index_elements=["context", "fingerprint", "copy"])
        .returning(SchemaRow.row_key)
    )


@cache
def add_version_with_schema(*, new_subject: bool) -> Any:
    """The statement that adds a schema and, as the next version of a subject, a version with it. PostgreSQL only.

    If another transaction has changed the subject, the settings or the schema meanwhile, the statement fails and
    changes nothing: the subquery for a key of the new version then returns no row, and a null key violates a
    constraint.

    Args:
        new_subject: adds the subject too; otherwise the subject must exist, and its revision increases.
    """
    are_settings_unchanged = sa.and_(
        StateRow.id == STATE_ID,
        StateRow.settings_revision == bindparam("expected_settings"),
        History() == bindparam("expected_history"),
    )
    if new_subject:
        names = (bindparam("new_name", type_=sa.Text), bindparam("new_context", type_=sa.Text))
        adding = sa.select(*names, sa.literal(1)).where(are_settings_unchanged)
        inserted = sa.insert(SubjectRow).from_select(["name", "context", "revision"], adding)
        claimed = inserted.returning(SubjectRow.id).cte("claimed")
    else:
        advanced = ADVANCE_SUBJECT.where(sa.exists().where(are_settings_unchanged))
        claimed = advanced.returning(SubjectRow.id).cte("claimed")
    content: dict[str, Any] = {name: bindparam(f"new_{name}") for name in CONTENT_COLUMNS}
    stored = add_schema("postgresql").values(**content).cte("stored")
    row = sa.select(
        sa.select(claimed.c.id).scalar_subquery(),
        bindparam("new_version", type_=sa.Integer),
        sa.select(stored.c.row_key).scalar_subquery(),
        sa.false(),
        bindparam("new_created_ms", type_=sa.BigInteger),
    )
    columns = ["subject_id", "version", "schema_key", "deleted", "created_ms"]
    return sa.insert(VersionRow).from_select(columns, row).returning(VersionRow.schema_key)


CONTENT_COLUMNS: Final = tuple(column.name for column in SchemaRow.__table__.columns if not column.primary_key)


def _reservation() -> Any:
    unflushed = (
        sa.select(sa.func.set_config("synchronous_commit", "off", True)).cte("unflushed").prefix_with("MATERIALIZED")
    )
    context = bindparam("context", type_=sa.Text)
    stored = sa.exists().where(SchemaRow.context == context, SchemaRow.fingerprint == bindparam("fingerprint"))
    row = sa.select(context, sa.literal(2), sa.true()).select_from(unflushed).where(~stored)
    return (
        postgresql.insert(ContextRow)
        .from_select(["name", "next_id", "listed"], row)
        .on_conflict_do_update(index_elements=["name"], set_={"next_id": ContextRow.next_id + 1, "listed": sa.true()})
        .returning(ContextRow.next_id)
    )


RESERVE_ID: Final = _reservation()
"""Reserves the next id of a context for a schema and lists the context. Does nothing if the context already has the
schema.

PostgreSQL only. The commit does not wait for the disk.
"""
