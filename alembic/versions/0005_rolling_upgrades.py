"""From which migration on a release may serve these tables: one that is older than the newest migrations, which only
add, may go on and may be started.

Revision ID: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

ONLY_ADDS = True
"""Releases from before it go on beside it: new tables, indexes, and columns that may be null or have a default."""


def upgrade() -> None:
    op.create_table(
        "registry_migrations",
        sa.Column("serves_from", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("serves_from", name="pk_registry_migrations"),
    )


def downgrade() -> None:
    op.drop_table("registry_migrations")
