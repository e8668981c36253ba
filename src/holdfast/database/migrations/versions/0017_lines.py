"""A job that was woken for a lock keeps its place in the line for a while, and a job that holds locks waits for nothing.

`ties & 32`: it has its locks from its enqueue to its end. Such a job could wait for one that waits for it.
"""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE holdfast.lock_wants ADD COLUMN woken_at timestamptz;  -- null: it is not woken
ALTER TABLE holdfast.jobs ADD CONSTRAINT holders_wait_for_nothing
    CHECK (ties & 32 = 0 OR (state <> 'blocked' AND slot_key IS NULL)) NOT VALID;
"""
DOWNGRADE = """
ALTER TABLE holdfast.jobs DROP CONSTRAINT holders_wait_for_nothing;
ALTER TABLE holdfast.lock_wants DROP COLUMN woken_at;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
