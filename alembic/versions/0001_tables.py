"""Creates all tables of the registry, with the row of the registry's revisions, its identity and the default context.

Revision ID: 0001
"""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_schemas()
    _create_subjects()
    _create_settings()
    _create_administration()


def _create_schemas() -> None:
    op.create_table(
        "schemas",
        sa.Column("row_key", sa.Integer, nullable=False),
        sa.Column("context", sa.Text, nullable=False),
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(32), nullable=False),
        sa.Column("copy", sa.Integer, nullable=False),
        sa.Column("lookup_key", sa.LargeBinary(16), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("metadata_json", sa.Text, nullable=True),
        sa.Column("rule_set_json", sa.Text, nullable=True),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("guid", sa.LargeBinary(16), nullable=False),
        sa.PrimaryKeyConstraint("row_key", name="pk_schemas"),
        sa.UniqueConstraint("context", "id", name="uq_schemas_context_id"),
        sa.UniqueConstraint("context", "fingerprint", "copy", name="uq_schemas_context_fingerprint_copy"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_schemas_guid", "schemas", ["guid"])
    op.create_table(
        "schema_references",
        sa.Column("schema_key", sa.Integer, nullable=False),
        sa.Column("position", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("schema_key", "position", name="pk_schema_references"),
        sa.ForeignKeyConstraint(
            ["schema_key"], ["schemas.row_key"], name="fk_schema_references_schema_key", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_schema_references_target_version", "schema_references", ["target", "version"])


def _create_subjects() -> None:
    op.create_table(
        "subjects",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("context", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_subjects"),
        sa.UniqueConstraint("name", name="uq_subjects_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "versions",
        sa.Column("subject_id", sa.Integer, nullable=False),
        sa.Column("version", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("schema_key", sa.Integer, nullable=False),
        sa.Column("deleted", sa.Boolean, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("subject_id", "version", name="pk_versions"),
        sa.ForeignKeyConstraint(["subject_id"], ["subjects.id"], name="fk_versions_subject_id"),
        sa.ForeignKeyConstraint(["schema_key"], ["schemas.row_key"], name="fk_versions_schema_key"),
    )
    op.create_index("ix_versions_schema_key", "versions", ["schema_key"])


def _create_settings() -> None:
    state = op.create_table(
        "registry_state",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("settings_revision", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_registry_state"),
    )
    op.bulk_insert(state, [{"id": 1, "revision": 1, "settings_revision": 1}])
    contexts = op.create_table(
        "contexts",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("next_id", sa.BigInteger, nullable=False),
        sa.Column("listed", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_contexts"),
    )
    op.bulk_insert(contexts, [{"name": ".", "next_id": 1, "listed": True}])
    op.create_table(
        "configs",
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("compatibility", sa.String(32), nullable=True),
        sa.Column("compatibility_policy", sa.String(32), nullable=True),
        sa.Column("compatibility_group", sa.Text, nullable=True),
        sa.Column("normalize", sa.Boolean, nullable=True),
        sa.Column("validate_fields", sa.Boolean, nullable=True),
        sa.Column("validate_new_schemas", sa.Boolean, nullable=True),
        sa.Column("validate_rules", sa.Boolean, nullable=True),
        sa.Column("alias", sa.Text, nullable=True),
        sa.Column("alias_for_deks", sa.Text, nullable=True),
        sa.Column("default_metadata_json", sa.Text, nullable=True),
        sa.Column("override_metadata_json", sa.Text, nullable=True),
        sa.Column("default_rule_set_json", sa.Text, nullable=True),
        sa.Column("override_rule_set_json", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("scope", name="pk_configs"),
    )
    op.create_table(
        "modes",
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("mode", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("scope", name="pk_modes"),
    )


def _create_administration() -> None:
    identity = op.create_table(
        "registry_identity",
        sa.Column("identity", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("identity", name="pk_registry_identity"),
    )
    # Clients that cache schemas by id detect a replaced registry by its identity.
    op.bulk_insert(identity, [{"identity": secrets.token_hex(16)}])
    op.create_table(
        "registry_migrations",
        sa.Column("serves_from", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("serves_from", name="pk_registry_migrations"),
    )
    op.create_table(
        "registry_replication",
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("polled_ms", sa.BigInteger, nullable=False),
        sa.Column("as_of_ms", sa.BigInteger, nullable=False),
        sa.Column("mode", sa.String(32), nullable=True),
        sa.Column("promoted_ms", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("source", name="pk_registry_replication"),
    )


def downgrade() -> None:
    for table in (
        "registry_replication",
        "registry_migrations",
        "registry_identity",
        "modes",
        "configs",
        "contexts",
        "registry_state",
        "versions",
        "subjects",
        "schema_references",
        "schemas",
    ):
        op.drop_table(table)
