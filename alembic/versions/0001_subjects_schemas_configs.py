"""Subjects, versions, schemas with their references, and configuration.

Revision ID: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "schemas",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(16), nullable=False),
        sa.Column("lookup_key", sa.LargeBinary(16), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("metadata_json", sa.Text, nullable=True),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_schemas"),
        sa.UniqueConstraint("fingerprint", name="uq_schemas_fingerprint"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "schema_references",
        sa.Column("schema_id", sa.Integer, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("schema_id", "position", name="pk_schema_references"),
        sa.ForeignKeyConstraint(
            ["schema_id"], ["schemas.id"], name="fk_schema_references_schema_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_schema_references_subject_version", "schema_references", ["subject", "version"])
    op.create_table(
        "subjects",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_subjects"),
        sa.UniqueConstraint("name", name="uq_subjects_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "versions",
        sa.Column("subject_id", sa.Integer, nullable=False),
        sa.Column("version", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("schema_id", sa.Integer, nullable=False),
        sa.Column("deleted", sa.Boolean, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("subject_id", "version", name="pk_versions"),
        sa.ForeignKeyConstraint(["subject_id"], ["subjects.id"], name="fk_versions_subject_id"),
        sa.ForeignKeyConstraint(["schema_id"], ["schemas.id"], name="fk_versions_schema_id"),
    )
    op.create_index("ix_versions_schema_id", "versions", ["schema_id"])
    op.create_table(
        "configs",
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("compatibility", sa.String(32), nullable=True),
        sa.Column("normalize", sa.Boolean, nullable=True),
        sa.PrimaryKeyConstraint("scope", name="pk_configs"),
    )


def downgrade() -> None:
    for table in ("configs", "versions", "subjects", "schema_references", "schemas"):
        op.drop_table(table)
