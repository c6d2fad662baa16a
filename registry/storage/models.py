"""The registry's tables.

Invariants, each held by a constraint and not by code alone:
- one row of `schemas` per content (by its `fingerprint`) and context, so that fifty clients that register the same
  schema at once get one id, and one per id and context. Only an import may bring a content again under a second id,
  because other registries hold such pairs: those rows differ in `copy`;
- one row of `versions` per (subject, version), so that two registrations cannot take the same number;
- `subjects.revision` grows with every change of the subject's versions: whoever decided on an older revision (which
  version is next, which versions to be compatible with) finds that it has moved on and decides again;
- `registry_state.revision` grows in the transaction of everything that may change an answer other than by adding a
  version: deletions, versions that bring back a deleted schema or subject, configuration, modes, aliases, imports that
  replace;
- `registry_state.settings_revision` grows with configuration, modes and aliases alone: a registration that was decided
  under other ones is not written.

Ids count up per context (`contexts.next_id`) and are never used again after a permanent delete, because clients keep
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
"""Scope of what holds for all subjects of the default context; it is no legal subject name."""

STATE_ID = 1
"""The one row of `registry_state`."""


class Base(DeclarativeBase):
    # Named constraints, because a migration can only change what it can name.
    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        }
    )


class StateRow(Base):
    """The registry's revisions, which answers kept by any process and registrations under way rest on."""

    __tablename__ = "registry_state"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    revision: Mapped[int] = mapped_column(BigInteger)
    settings_revision: Mapped[int] = mapped_column(BigInteger)


class IdentityRow(Base):
    """The one row that names this database among all others; made with it."""

    __tablename__ = "registry_identity"

    identity: Mapped[str] = mapped_column(Text, primary_key=True)


class MigrationRow(Base):
    """The one row that names the oldest migration whose release may serve these tables."""

    __tablename__ = "registry_migrations"

    serves_from: Mapped[str] = mapped_column(Text, primary_key=True)


class ReplicationRow(Base):
    """The one row of a registry that follows another one, or did; see `domain.ReplicationState`."""

    __tablename__ = "registry_replication"

    source: Mapped[str] = mapped_column(Text, primary_key=True)
    url: Mapped[str] = mapped_column(Text)
    holder: Mapped[str] = mapped_column(Text)
    polled_ms: Mapped[int] = mapped_column(BigInteger)
    as_of_ms: Mapped[int] = mapped_column(BigInteger)
    mode: Mapped[str | None] = mapped_column(String(32))
    promoted_ms: Mapped[int | None] = mapped_column(BigInteger)


class ContextRow(Base):
    """`next_id` is the next schema's. A deleted context is only not `listed`, so that its ids stay used up.

    Other tables name contexts without a foreign key: each registration would lock this row in a shared way, and it is
    written all the time.
    """

    __tablename__ = "contexts"

    name: Mapped[str] = mapped_column(Text, primary_key=True)
    next_id: Mapped[int] = mapped_column(BigInteger)
    listed: Mapped[bool] = mapped_column(Boolean)


class SchemaRow(Base):
    """A schema's content in a context. `row_key` is known only in here, `id` is what clients know.

    `fingerprint` is that of the content and no other's; of one `guid`, which clients know, there may be several.
    `lookup_key` is the MD5 by which equal schemas written differently find each other. `copy` is 0, or the id where an
    import brought a content that had one already.
    """

    __tablename__ = "schemas"
    __table_args__ = (
        UniqueConstraint("context", "id"),
        UniqueConstraint("context", "fingerprint", "copy"),
        # What a process keeps of a schema in its memory goes by row_key, so that must not come back either.
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
    """Reference number `position` of a schema, by names: imports may bring the two schemas in any order.

    `subject` is as the client wrote it, which is part of the schema's identity; `target` the subject that it means.
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
    """A subject by its qualified name."""

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
    """Configuration of a subject, which need not exist yet, a context (`:.context:`) or `GLOBAL_SCOPE`.

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
    """Mode of a subject, a context or `GLOBAL_SCOPE`, like `ConfigRow`."""

    __tablename__ = "modes"

    scope: Mapped[str] = mapped_column(Text, primary_key=True)
    mode: Mapped[str] = mapped_column(String(32))
