"""Which registry this one follows, as a second data centre's does, and how far behind it is.

Revision ID: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

ONLY_ADDS = True


def upgrade() -> None:
    op.create_table(
        "registry_following",
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("asked_ms", sa.BigInteger, nullable=False),
        sa.Column("as_of_ms", sa.BigInteger, nullable=False),
        sa.Column("mode", sa.String(32), nullable=True),
        sa.Column("promoted_ms", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("source", name="pk_registry_following"),
    )


def downgrade() -> None:
    op.drop_table("registry_following")
