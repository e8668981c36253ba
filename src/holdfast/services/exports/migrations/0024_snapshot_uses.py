"""Uses of snapshots:

while another service uses a snapshot, it cannot be deleted, neither by a user nor because it has expired.
"""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE holdfast.snapshot_uses (
    snapshot_id bigint NOT NULL REFERENCES holdfast.snapshots ON DELETE RESTRICT,
    used_by     text NOT NULL CHECK (length(used_by) BETWEEN 1 AND 200),  -- such as graphs/17
    since       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (snapshot_id, used_by)
);
"""
DOWNGRADE = "DROP TABLE holdfast.snapshot_uses;"


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
