"""Which database session stands for a worker, where it says so: its end is seen before its lease is over."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE holdfast.workers
    ADD COLUMN session_pid     integer,       -- with the next: a row of pg_stat_activity, for as long as it lives
    ADD COLUMN session_began   timestamptz,
    ADD COLUMN session_gone_at timestamptz,   -- when it was first seen to have ended
    ADD CHECK ((session_pid IS NULL) = (session_began IS NULL)),
    ADD CHECK (session_gone_at IS NULL OR session_pid IS NOT NULL);
"""

DOWNGRADE = """
ALTER TABLE holdfast.workers DROP COLUMN session_pid, DROP COLUMN session_began, DROP COLUMN session_gone_at;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
