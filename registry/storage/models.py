"""The registry's tables.

Invariants, each held by a constraint and not by code alone:
- one row of `schemas` per content (`fingerprint` is unique), so that fifty clients that register the same schema at
  once get one id;
- one row of `versions` per (subject, version), so that two registrations cannot take the same number;
- `subjects.revision` grows with every change of the subject's versions: whoever decided on an older revision (which
  version is next, which versions to be compatible with) finds that it has moved on and decides again.

Ids are never used again after a permanent delete, because clients keep schemas by id for ever. Only types that SQLite
and PostgreSQL share are used.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, ForeignKey, Index, Integer, LargeBinary, MetaData, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

GLOBAL_SCOPE = "__GLOBAL"
"""Scope of the configuration that holds for all subjects; it is no legal subject name."""


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


class SchemaRow(Base):
    """A schema's content. `lookup_key` is the MD5 by which equal schemas written differently find each other."""

    __tablename__ = "schemas"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    fingerprint: Mapped[bytes] = mapped_column(LargeBinary(16), unique=True)
    lookup_key: Mapped[bytes] = mapped_column(LargeBinary(16))
    text: Mapped[str] = mapped_column(Text)
    metadata_json: Mapped[str | None] = mapped_column(Text)
    created_ms: Mapped[int] = mapped_column(BigInteger)


class ReferenceRow(Base):
    """Reference number `position` of a schema, by names: imports may bring the two schemas in any order."""

    __tablename__ = "schema_references"
    __table_args__ = (Index("ix_schema_references_subject_version", "subject", "version"),)

    schema_id: Mapped[int] = mapped_column(ForeignKey("schemas.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    subject: Mapped[str] = mapped_column(Text)
    version: Mapped[int] = mapped_column(Integer)


class SubjectRow(Base):
    __tablename__ = "subjects"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(Text, unique=True)
    revision: Mapped[int] = mapped_column(BigInteger)


class VersionRow(Base):
    __tablename__ = "versions"

    subject_id: Mapped[int] = mapped_column(ForeignKey("subjects.id"), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    schema_id: Mapped[int] = mapped_column(ForeignKey("schemas.id"), index=True)
    deleted: Mapped[bool] = mapped_column(Boolean)
    created_ms: Mapped[int] = mapped_column(BigInteger)


class ConfigRow(Base):
    """Configuration of a subject, which need not exist yet, or of `GLOBAL_SCOPE`. Null columns are inherited."""

    __tablename__ = "configs"

    scope: Mapped[str] = mapped_column(Text, primary_key=True)
    compatibility: Mapped[str | None] = mapped_column(String(32))
    normalize: Mapped[bool | None] = mapped_column(Boolean)
