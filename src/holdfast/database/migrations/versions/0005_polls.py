"""Looks at an external engine that came to nothing have a budget of their own."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

UPGRADE = """
-- Looks at its engine in a row that came to nothing; one that comes to something sets it back to 0.
ALTER TABLE holdfast.jobs ADD COLUMN poll_errors integer NOT NULL DEFAULT 0;
"""

DOWNGRADE = """
ALTER TABLE holdfast.jobs DROP COLUMN poll_errors;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
