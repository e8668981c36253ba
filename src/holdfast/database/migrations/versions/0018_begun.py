"""A job that is held is not always one that has begun: the database knows when the handler of an attempt started.

`begun_at` belongs to the attempt that is held if it is not before `claimed_at`. `confirm_start`: the job was lost by a worker
that could not say whether it had begun; from then on its start is written before its handler runs (docs/decisions/0018).
"""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE holdfast.jobs ADD COLUMN begun_at timestamptz,
    ADD COLUMN confirm_start boolean NOT NULL DEFAULT false;
"""
DOWNGRADE = """
ALTER TABLE holdfast.jobs DROP COLUMN begun_at, DROP COLUMN confirm_start;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
