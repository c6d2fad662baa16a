"""The registry's tables.

Invariants; the first two are enforced by constraints, the others by `repository` and the services:

- `schemas` has one row per content (by `fingerprint`) and context, and one per id and context. So fifty clients that
  register the same schema concurrently get one id. Only an import or a replication may store a content again under a
  second id, because other registries contain such pairs; these rows differ in `copy`.
- `versions` has one row per (subject, version), so that two registrations cannot take the same number.
- `subjects.revision` grows with every change of the subject's versions. A registration that was decided on an older
  revision (next version number, versions to be compatible with) detects the change and is decided again.
- `registry_state.revision` grows in the transaction of every change that can alter a response other than by adding a
  version: deletions, versions that restore a deleted schema or subject, configuration, modes, aliases, and imports that
  replace a version.
- `registry_state.settings_revision` grows with configuration, modes and aliases only. A registration that was decided
  under older settings is not written.

Ids count up per context (`contexts.next_id`) and are not reused after a permanent deletion, because clients cache
schemas by id for ever. Only types that SQLite and PostgreSQL share are used.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

GLOBAL_SCOPE = "__GLOBAL"
"""Value of the `scope` columns for the default context. No subject can have this name."""

STATE_ID = 1
"""Id of the one row of `registry_state`."""


class Base(DeclarativeBase):
    # Constraints are named, because a migration can change only constraints that have a name.
    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        }
    )


class StateRow(Base):
    """The registry's revisions, which cached responses and registrations in progress depend on."""

    __tablename__ = "registry_state"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    revision: Mapped[int] = mapped_column(BigInteger)
    settings_revision: Mapped[int] = mapped_column(BigInteger)


class IdentityRow(Base):
    """One row with a random name that identifies this database; created with the tables."""

    __tablename__ = "registry_identity"

    identity: Mapped[str] = mapped_column(Text, primary_key=True)


class MigrationRow(Base):
    """The name of the migration that a release must have to serve these tables; all later migrations only add to them.
    The table has one row, and an upgrade replaces it."""

    __tablename__ = "registry_migrations"

    serves_from: Mapped[str] = mapped_column(Text, primary_key=True)


class ReplicationRow(Base):
    """One row if this registry is or was a replica; see `domain.ReplicationState`."""

    __tablename__ = "registry_replication"

    source: Mapped[str] = mapped_column(Text, primary_key=True)
    url: Mapped[str] = mapped_column(Text)
    holder: Mapped[str] = mapped_column(Text)
    polled_ms: Mapped[int] = mapped_column(BigInteger)
    as_of_ms: Mapped[int] = mapped_column(BigInteger)
    mode: Mapped[str | None] = mapped_column(String(32))
    promoted_ms: Mapped[int | None] = mapped_column(BigInteger)


class ContextRow(Base):
    """One row per context. `next_id` is the next id that the registry assigns in the context.

    The deletion of a context only clears `listed`, because the ids must not be reused. Other tables name contexts
    without a foreign key: with one each registration would take a shared lock on this row, which is written all the
    time.
    """

    __tablename__ = "contexts"

    name: Mapped[str] = mapped_column(Text, primary_key=True)
    next_id: Mapped[int] = mapped_column(BigInteger)
    listed: Mapped[bool] = mapped_column(Boolean)


class SchemaRow(Base):
    """A schema in a context, with references, metadata and rules, which together are its content. Clients know `id` and
    `guid`; `row_key` is internal.

    `fingerprint` identifies the content. Several contexts may share a `guid`. `lookup_key` is an MD5 that equal schemas
    share even when they are written differently. `copy` is usually 0. An import or a replication may store the same
    content again with another id; the second row has this id as `copy`.
    """

    __tablename__ = "schemas"
    __table_args__ = (
        UniqueConstraint("context", "id"),
        UniqueConstraint("context", "fingerprint", "copy"),
        # Processes cache schemas by row_key, so it must not be reused either.
        {"sqlite_autoincrement": True},
    )

    row_key: Mapped[int] = mapped_column(Integer, primary_key=True)
    context: Mapped[str] = mapped_column(Text)
    id: Mapped[int] = mapped_column(Integer)
    fingerprint: Mapped[bytes] = mapped_column(LargeBinary(32))
    copy: Mapped[int] = mapped_column(Integer)
    lookup_key: Mapped[bytes] = mapped_column(LargeBinary(16))
    text: Mapped[str] = mapped_column(Text)
    metadata_json: Mapped[str | None] = mapped_column(Text)
    rule_set_json: Mapped[str | None] = mapped_column(Text)
    created_ms: Mapped[int] = mapped_column(BigInteger)
    guid: Mapped[bytes] = mapped_column(LargeBinary(16), index=True)


class ReferenceRow(Base):
    """A reference of a schema; `position` is its index in the schema's list of references.

    The referenced version is stored by its name and not as a foreign key, because an import may add the two schemas in
    any order. `subject` is the name as the client wrote it, which is part of the schema's identity; `target` is the
    qualified subject.
    """

    __tablename__ = "schema_references"
    __table_args__ = (Index("ix_schema_references_target_version", "target", "version"),)

    schema_key: Mapped[int] = mapped_column(ForeignKey("schemas.row_key", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(Text)
    subject: Mapped[str] = mapped_column(Text)
    version: Mapped[int] = mapped_column(Integer)
    target: Mapped[str] = mapped_column(Text)


class SubjectRow(Base):
    """One row per subject, with its qualified name. `revision` grows with every change of its versions."""

    __tablename__ = "subjects"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(Text, unique=True)
    context: Mapped[str] = mapped_column(Text)
    revision: Mapped[int] = mapped_column(BigInteger)


class VersionRow(Base):
    __tablename__ = "versions"

    subject_id: Mapped[int] = mapped_column(ForeignKey("subjects.id"), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    schema_key: Mapped[int] = mapped_column(ForeignKey("schemas.row_key"), index=True)
    deleted: Mapped[bool] = mapped_column(Boolean)
    created_ms: Mapped[int] = mapped_column(BigInteger)


class ConfigRow(Base):
    """Configuration of a subject, which need not exist yet, of a context (`:.context:`), of all contexts
    (`:.__GLOBAL:`) or of the default context (`GLOBAL_SCOPE`).

    Null columns are inherited or not set.
    """

    __tablename__ = "configs"

    scope: Mapped[str] = mapped_column(Text, primary_key=True)
    compatibility: Mapped[str | None] = mapped_column(String(32))
    compatibility_policy: Mapped[str | None] = mapped_column(String(32))
    compatibility_group: Mapped[str | None] = mapped_column(Text)
    normalize: Mapped[bool | None] = mapped_column(Boolean)
    validate_fields: Mapped[bool | None] = mapped_column(Boolean)
    validate_new_schemas: Mapped[bool | None] = mapped_column(Boolean)
    validate_rules: Mapped[bool | None] = mapped_column(Boolean)
    alias: Mapped[str | None] = mapped_column(Text)
    alias_for_deks: Mapped[str | None] = mapped_column(Text)
    default_metadata_json: Mapped[str | None] = mapped_column(Text)
    override_metadata_json: Mapped[str | None] = mapped_column(Text)
    default_rule_set_json: Mapped[str | None] = mapped_column(Text)
    override_rule_set_json: Mapped[str | None] = mapped_column(Text)


class ModeRow(Base):
    """Mode of a subject, which need not exist yet, of a context (`:.context:`), of all contexts (`:.__GLOBAL:`) or of
    the default context (`GLOBAL_SCOPE`)."""

    __tablename__ = "modes"

    scope: Mapped[str] = mapped_column(Text, primary_key=True)
    mode: Mapped[str] = mapped_column(String(32))
