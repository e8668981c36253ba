"""Periodic jobs: one row for each kind that declares a schedule. Jobs: the parents that they waited for, in order."""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE holdfast.periodic_jobs (
    kind             text PRIMARY KEY CHECK (length(kind) BETWEEN 1 AND 200),
    every            interval CHECK (every > interval '0'),
    cron             text,
    timezone         text NOT NULL DEFAULT 'UTC',
    catch_up         text NOT NULL CHECK (catch_up IN ('skip', 'last', 'all')),
    payload          jsonb NOT NULL CHECK (jsonb_typeof(payload) = 'object'),  -- the arguments of each run
    gives_due_at     boolean NOT NULL,                     -- each run gets its due time as the argument `due_at`
    next_due_at      timestamptz NOT NULL,                 -- by the database's clock
    missed           bigint NOT NULL DEFAULT 0,            -- due times that were not enqueued
    last_due_at      timestamptz,
    last_enqueued_at timestamptz,
    last_job_id      bigint,                               -- no reference: jobs are pruned
    last_error       text,                                 -- why the last due time could not be enqueued
    disabled_at      timestamptz,                          -- when a worker published the kind without a schedule
    paused_at        timestamptz,
    paused_by        text,
    paused_reason    text,
    published_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    published_by     text NOT NULL,                        -- the name of a worker
    CONSTRAINT interval_or_cron CHECK ((every IS NULL) <> (cron IS NULL))
) WITH (fillfactor = 50);

ALTER TABLE holdfast.jobs ADD COLUMN parents bigint[];     -- the jobs that it waited for, in the order of `after`
"""

DOWNGRADE = """
ALTER TABLE holdfast.jobs DROP COLUMN parents;
DROP TABLE holdfast.periodic_jobs;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
