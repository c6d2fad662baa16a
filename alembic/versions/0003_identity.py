"""The registry's identity: a name that no other database of a registry has.

Whoever keeps schemas by id learns from it that ids may begin again.

Revision ID: 0003
"""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    table = op.create_table(
        "registry_identity",
        sa.Column("identity", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("identity", name="pk_registry_identity"),
    )
    op.bulk_insert(table, [{"identity": secrets.token_hex(16)}])


def downgrade() -> None:
    op.drop_table("registry_identity")
