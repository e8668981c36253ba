"""A worker can be told to claim no more while it lives."""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE holdfast.workers ADD COLUMN quiet_at timestamptz;   -- since when it shall claim no more; what it holds, it ends
"""

DOWNGRADE = """
ALTER TABLE holdfast.workers DROP COLUMN quiet_at;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
