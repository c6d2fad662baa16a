"""Contexts with ids of their own, modes, whole configuration, rule sets, and the registry's revision.

Every table changes its keys, so the rows are put aside in tables without constraints, the tables made anew under
their own names, and the rows brought back. What was there belongs to the default context.

Revision ID: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

OLD_TABLES = ("configs", "versions", "subjects", "schema_references", "schemas")  # those that refer to others first


def upgrade() -> None:
    newest_id = _newest_id()
    for table in OLD_TABLES:
        op.execute(f"CREATE TABLE old_{table} AS SELECT * FROM {table}")  # noqa: S608  (names of this file)
    for table in OLD_TABLES:
        op.drop_table(table)
    _create_schemas()
    _create_subjects()
    _create_settings()
    _bring_back(newest_id)
    for table in OLD_TABLES:
        op.drop_table(f"old_{table}")


def _newest_id() -> int:
    """The highest id ever given, also to a schema that has gone since."""
    connection = op.get_bind()
    given = [connection.scalar(sa.text("SELECT max(id) FROM schemas"))]
    if connection.dialect.name == "sqlite":
        given.append(connection.scalar(sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'schemas'")))
    else:
        sequence = connection.scalar(sa.text("SELECT pg_get_serial_sequence('schemas', 'id')"))
        asked = f"SELECT CASE WHEN is_called THEN last_value END FROM {sequence}"  # noqa: S608  (the database's own)
        given.append(connection.scalar(sa.text(asked)))
    return max((number for number in given if number is not None), default=0)


def _create_schemas() -> None:
    op.create_table(
        "schemas",
        sa.Column("row_key", sa.Integer, nullable=False),
        sa.Column("context", sa.Text, nullable=False),
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(16), nullable=False),
        sa.Column("copy", sa.Integer, nullable=False),
        sa.Column("lookup_key", sa.LargeBinary(16), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("metadata_json", sa.Text, nullable=True),
        sa.Column("rule_set_json", sa.Text, nullable=True),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("row_key", name="pk_schemas"),
        sa.UniqueConstraint("context", "id", name="uq_schemas_context_id"),
        sa.UniqueConstraint("context", "fingerprint", "copy", name="uq_schemas_context_fingerprint_copy"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_schemas_fingerprint", "schemas", ["fingerprint"])
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
    op.create_table(
        "registry_state",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("settings_revision", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_registry_state"),
    )
    op.create_table(
        "contexts",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("next_id", sa.BigInteger, nullable=False),
        sa.Column("listed", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_contexts"),
    )
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


def _bring_back(newest_id: int) -> None:
    op.execute(
        "INSERT INTO schemas (row_key, context, id, fingerprint, copy, lookup_key, text, metadata_json, created_ms) "
        "SELECT id, '.', id, fingerprint, 0, lookup_key, text, metadata_json, created_ms FROM old_schemas"
    )
    op.execute(
        "INSERT INTO schema_references (schema_key, position, name, subject, version, target) "
        "SELECT schema_id, position, name, subject, version, subject FROM old_schema_references"
    )
    op.execute("INSERT INTO subjects (id, name, context, revision) SELECT id, name, '.', revision FROM old_subjects")
    op.execute(
        "INSERT INTO versions (subject_id, version, schema_key, deleted, created_ms) "
        "SELECT subject_id, version, schema_id, deleted, created_ms FROM old_versions"
    )
    op.execute(
        "INSERT INTO configs (scope, compatibility, normalize) SELECT scope, compatibility, normalize FROM old_configs"
    )
    op.execute("INSERT INTO registry_state (id, revision, settings_revision) VALUES (1, 1, 1)")
    op.execute(
        sa.text("INSERT INTO contexts (name, next_id, listed) VALUES ('.', :next_id, true)").bindparams(
            next_id=newest_id + 1
        )
    )
    if op.get_bind().dialect.name == "postgresql":
        for table, column in (("schemas", "row_key"), ("subjects", "id")):
            following = f"SELECT coalesce(max({column}), 0) + 1 FROM {table}"  # noqa: S608  (names of this file)
            op.execute(f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), ({following}), false)")


def downgrade() -> None:
    raise RuntimeError("the tables before 0002 have no room for contexts: restore a copy that was made before")
