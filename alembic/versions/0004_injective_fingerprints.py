"""Fingerprints that no two contents share: SHA-256 of parts with their lengths, where MD5 of parts run together was.

What was the fingerprint stays beside it as the guid that clients know, of which contents may now be several.

Revision ID: 0004
"""

import hashlib
import json
import struct
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

ROWS = 500  # of schemas that are in memory at once
CHILDREN = ("schema_references", "versions")  # that refer to schemas


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.drop_index("ix_schemas_fingerprint", "schemas")
        op.add_column("schemas", sa.Column("guid", sa.LargeBinary(16), nullable=True))
        op.execute("UPDATE schemas SET guid = fingerprint")
        op.alter_column("schemas", "guid", nullable=False)
    else:
        _make_schemas_anew()
    _write_fingerprints()
    op.create_index("ix_schemas_guid", "schemas", ["guid"])


def _make_schemas_anew() -> None:
    """With the column, which SQLite cannot add without a default value."""
    newest_key = op.get_bind().scalar(sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'schemas'"))
    # What refers to schemas is put aside, since it would go with them.
    for table in ("schemas", *CHILDREN):
        op.execute(f"CREATE TABLE old_{table} AS SELECT * FROM {table}")  # noqa: S608  (names of this file)
    for table in CHILDREN:
        op.execute(f"DELETE FROM {table}")  # noqa: S608
    op.drop_table("schemas")
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
    op.execute("INSERT INTO schemas SELECT *, fingerprint FROM old_schemas")
    for table in CHILDREN:
        op.execute(f"INSERT INTO {table} SELECT * FROM old_{table}")  # noqa: S608
    for table in ("schemas", *CHILDREN):
        op.drop_table(f"old_{table}")
    if newest_key is not None:
        # Keys of schemas that have gone are not given again. The table has no row here where no schema is left.
        op.execute("DELETE FROM sqlite_sequence WHERE name = 'schemas'")
        op.execute(
            sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES ('schemas', :seq)").bindparams(seq=newest_key)
        )


def _write_fingerprints() -> None:
    write = sa.text("UPDATE schemas SET fingerprint = :fingerprint WHERE row_key = :row_key")
    for rows in _portions():
        references = _references(rows[0].row_key, rows[-1].row_key)
        op.get_bind().execute(
            write,
            [
                {"row_key": row.row_key, "fingerprint": _fingerprint(row, references.get(row.row_key, []))}
                for row in rows
            ],
        )


def _portions() -> Iterator[list[Any]]:
    query = sa.text(
        "SELECT row_key, text, metadata_json, rule_set_json FROM schemas WHERE row_key > :after "
        "ORDER BY row_key LIMIT :rows"
    )
    after = -1
    while rows := list(op.get_bind().execute(query, {"after": after, "rows": ROWS})):
        yield rows
        after = rows[-1].row_key


def _references(first: int, last: int) -> dict[int, list[list[Any]]]:
    query = sa.text(
        "SELECT schema_key, name, subject, version FROM schema_references "
        "WHERE schema_key BETWEEN :first AND :last ORDER BY schema_key, position"
    )
    found: dict[int, list[list[Any]]] = {}
    for row in op.get_bind().execute(query, {"first": first, "last": last}):
        found.setdefault(row.schema_key, []).append([row.name, row.subject, row.version])
    return found


def _fingerprint(row: Any, references: list[list[Any]]) -> bytes:
    """As `SchemaContent.fingerprint` was when this was written."""
    digest = hashlib.sha256()
    for part in (row.text, _json(references), _json(_metadata(row.metadata_json)), _json(_rules(row.rule_set_json))):
        encoded = part.encode()
        digest.update(struct.pack(">q", len(encoded)) + encoded)
    return digest.digest()


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _metadata(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    stored = json.loads(text)
    return {
        "properties": stored.get("properties") or {},
        "tags": {path: sorted(set(names)) for path, names in (stored.get("tags") or {}).items()},
        "sensitive": sorted(set(stored.get("sensitive") or ())),
    }


def _rules(text: str | None) -> Any:
    # Always written from rules that were read, so that nothing in it can be said in two ways.
    return None if text is None else json.loads(text)


def downgrade() -> None:
    raise RuntimeError("a guid may stand for several contents since 0004: restore a copy that was made before")
