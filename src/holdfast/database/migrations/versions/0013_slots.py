"""Of a slot one job of each kind may wait, and beside it any number that have parents: no trigger is lost in another's run."""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

# 16 in `ties`: a job of a slot that has parents. It is a separate run; no trigger merges into it.
UPGRADE = """
DROP INDEX holdfast.one_waiting_per_slot;
CREATE UNIQUE INDEX one_waiting_per_slot ON holdfast.jobs (slot_key, kind, (CASE WHEN ties & 16 = 0 THEN 0 ELSE id END))
    WHERE slot_key IS NOT NULL AND NOT is_current AND state IN ('blocked', 'pending');
"""

DOWNGRADE = """
DROP INDEX holdfast.one_waiting_per_slot;
CREATE UNIQUE INDEX one_waiting_per_slot ON holdfast.jobs (slot_key)
    WHERE slot_key IS NOT NULL AND NOT is_current AND state IN ('blocked', 'pending');
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
