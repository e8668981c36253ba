"""A time limit can be added to the clock: one that cannot made every claim of its kind fail, for every worker.

And a worker says which queues it serves, so that a job in a queue without a worker can be explained.
"""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE holdfast.workers ADD COLUMN queues text[];  -- null: it does not say
UPDATE holdfast.jobs SET max_runtime = interval '36500 days' WHERE max_runtime > interval '36500 days';
ALTER DOMAIN holdfast.a_duration DROP CONSTRAINT a_duration;
ALTER DOMAIN holdfast.a_duration ADD CONSTRAINT a_duration CHECK (VALUE > interval '0' AND VALUE <= interval '36500 days');
"""
DOWNGRADE = """
ALTER TABLE holdfast.workers DROP COLUMN queues;
ALTER DOMAIN holdfast.a_duration DROP CONSTRAINT a_duration;
ALTER DOMAIN holdfast.a_duration ADD CONSTRAINT a_duration CHECK (VALUE > interval '0');
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
