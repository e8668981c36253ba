"""What the runners need to know about jobs and about each other."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

UPGRADE = """
-- Its process died while others ran in it: the cause is unknown, so it runs in a separate process from now on.
ALTER TABLE holdfast.jobs ADD COLUMN alone boolean NOT NULL DEFAULT false;

ALTER TABLE holdfast.workers
    ADD COLUMN pod         text,
    ADD COLUMN runner      text NOT NULL DEFAULT 'worker'
               CHECK (runner IN ('worker', 'executor', 'in process', 'remote')),
    ADD COLUMN kinds       jsonb NOT NULL DEFAULT '{}',     -- kind → the newest version of it that this worker can run
    ADD COLUMN concurrency integer NOT NULL DEFAULT 1;
"""

DOWNGRADE = """
ALTER TABLE holdfast.workers DROP COLUMN concurrency, DROP COLUMN kinds, DROP COLUMN runner, DROP COLUMN pod;
ALTER TABLE holdfast.jobs DROP COLUMN alone;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
