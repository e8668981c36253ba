"""Expiry of mappings and snapshots, and claims over the export protocol whose answer was lost.

A snapshot is marked before its files are removed and its row goes last, so a process that dies in between leaves a row that the
next pass finds. A marked snapshot has ended and stays as it is: nothing may begin to use it or run it again. A claim that was
acknowledged by an update is not given again.
"""

from alembic import op

revision = "0022"
down_revision = "0015"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE holdfast.mappings ADD COLUMN last_used_at timestamptz;  -- when a snapshot of it was made or deleted
ALTER TABLE holdfast.snapshots ADD COLUMN deleting_since timestamptz;
ALTER TABLE holdfast.snapshots ADD CONSTRAINT deleted_only_after_its_end
    CHECK (deleting_since IS NULL OR state IN ('ready', 'failed', 'cancelled'));
ALTER TABLE holdfast.workers ADD COLUMN acknowledged_at timestamptz;  -- only of claims over /export-jobs
"""
DOWNGRADE = """
ALTER TABLE holdfast.workers DROP COLUMN acknowledged_at;
ALTER TABLE holdfast.snapshots DROP COLUMN deleting_since;
ALTER TABLE holdfast.mappings DROP COLUMN last_used_at;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
