"""Table maintenance: the cache of tables, one row per run and per action, and policies.

A run is what stays when its job has been pruned. It follows its job in the transaction that changes the job, whoever changes
it, so a run is never open when its job has ended. Results are written only under the attempt that holds the job.
"""

from alembic import op

revision = "0040"
down_revision = "0030"
branch_labels = None
depends_on = None

TABLES = r"""
CREATE TABLE holdfast.maintenance_tables (
    catalog      text NOT NULL CHECK (catalog <> '' AND length(catalog) <= 255),
    namespace    text NOT NULL CHECK (namespace <> '' AND length(namespace) <= 1000),
    name         text NOT NULL CHECK (name <> '' AND length(name) <= 255),
    inputs       jsonb CHECK (jsonb_typeof(inputs) = 'object'),  -- what the health score is computed from; null: not measured
    health       smallint CHECK (health BETWEEN 0 AND 100),
    measured_at  timestamptz,
    error        text,                                           -- why the last measurement failed
    found_at     timestamptz NOT NULL DEFAULT clock_timestamp(), -- when it was first seen
    seen_at      timestamptz NOT NULL DEFAULT clock_timestamp(), -- when the catalog last listed it
    PRIMARY KEY (catalog, namespace, name),
    CONSTRAINT measured_as_a_whole CHECK ((inputs IS NULL) = (health IS NULL) AND (inputs IS NULL) = (measured_at IS NULL))
);

CREATE TABLE holdfast.maintenance_policies (
    name        text PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,99}$'),
    definition  jsonb NOT NULL CHECK (jsonb_typeof(definition) = 'object'),
    version     integer NOT NULL DEFAULT 1 CHECK (version > 0),
    created_by  text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_by  text NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_due_at timestamptz,  -- null: not scheduled; the health of the tables decides
    last_due_at timestamptz   -- the due time that was last acted on
);

CREATE TABLE holdfast.maintenance_runs (
    job_id       bigint PRIMARY KEY,  -- no foreign key: jobs are pruned, runs stay
    catalog      text NOT NULL,
    namespace    text NOT NULL,
    name         text NOT NULL,
    engine       text NOT NULL CHECK (engine <> ''),
    dry_run      boolean NOT NULL,
    requested_by text NOT NULL CHECK (requested_by <> ''),
    reason       text CHECK (length(reason) <= 500),
    policy       text,                -- the policy that asked for it, which may be deleted by now
    due_at       timestamptz,         -- the due time of the policy
    not_after    timestamptz,         -- the end of its window: no action begins later
    state        text NOT NULL
                 CHECK (state IN ('pending', 'blocked', 'running', 'submitted', 'completed', 'failed', 'cancelled')),
    error        text,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at   timestamptz,
    finished_at  timestamptz,
    CONSTRAINT ended_has_a_time CHECK ((state IN ('completed', 'failed', 'cancelled')) = (finished_at IS NOT NULL)),
    CONSTRAINT due_times_are_of_policies CHECK (due_at IS NULL OR policy IS NOT NULL)
);
CREATE INDEX maintenance_runs_of_table ON holdfast.maintenance_runs (catalog, namespace, name, job_id DESC);
CREATE INDEX maintenance_runs_ended ON holdfast.maintenance_runs (finished_at) WHERE finished_at IS NOT NULL;
CREATE UNIQUE INDEX one_run_per_due_time ON holdfast.maintenance_runs (policy, due_at, catalog, namespace, name)
    WHERE due_at IS NOT NULL;

CREATE TABLE holdfast.maintenance_actions (
    job_id         bigint NOT NULL REFERENCES holdfast.maintenance_runs ON DELETE CASCADE,
    position       smallint NOT NULL CHECK (position > 0),
    action         text NOT NULL CHECK (action <> ''),
    parameters     jsonb NOT NULL CHECK (jsonb_typeof(parameters) = 'object'),
    status         text NOT NULL DEFAULT 'pending'
                   CHECK (status IN ('pending', 'running', 'completed', 'failed', 'skipped', 'cancelled')),
    attempt_id     uuid,               -- the attempt that wrote this row last
    before         jsonb,              -- before the first attempt at it
    after          jsonb,
    details        jsonb NOT NULL DEFAULT '{}',
    engine_seconds double precision NOT NULL DEFAULT 0 CHECK (engine_seconds >= 0),  -- of all attempts at it
    error          text,
    error_code     text,
    started_at     timestamptz,
    finished_at    timestamptz,
    PRIMARY KEY (job_id, position),
    CONSTRAINT each_action_once UNIQUE (job_id, action),
    CONSTRAINT completed_has_figures CHECK (status <> 'completed' OR (before IS NOT NULL AND finished_at IS NOT NULL)),
    CONSTRAINT failed_says_why CHECK (status <> 'failed' OR error IS NOT NULL)
);
"""
# An action that was begun by an attempt that did not end it is pending again, with the figures from before its first attempt.
FOLLOWER = r"""
CREATE FUNCTION holdfast.follow_maintenance(job holdfast.jobs, old_state text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.maintenance_runs
    SET state = job.state, finished_at = job.finished_at,
        started_at = CASE WHEN job.state = 'running' THEN coalesce(started_at, clock_timestamp()) ELSE started_at END,
        error = CASE WHEN job.state IN ('failed', 'cancelled') THEN coalesce(job.error, job.state) END
    WHERE job_id = job.id;
    IF job.state IN ('completed', 'failed', 'cancelled') THEN
        UPDATE holdfast.maintenance_actions
        SET status = CASE WHEN job.state = 'cancelled' THEN 'cancelled' WHEN status = 'running' THEN 'failed'
                          ELSE 'skipped' END,
            error = coalesce(error, job.error, job.state), finished_at = clock_timestamp()
        WHERE job_id = job.id AND status IN ('pending', 'running');
    ELSIF job.state IN ('pending', 'blocked') THEN
        UPDATE holdfast.maintenance_actions SET status = 'pending', finished_at = NULL
        WHERE job_id = job.id AND status IN ('running', 'failed', 'skipped', 'cancelled');
    END IF;
END $$;
INSERT INTO holdfast.job_followers VALUES ('maintenance.run', 'holdfast.follow_maintenance');
"""
UPGRADE = TABLES + FOLLOWER

DOWNGRADE = """
DELETE FROM holdfast.job_followers WHERE kind = 'maintenance.run';
DROP FUNCTION holdfast.follow_maintenance(holdfast.jobs, text);
DROP TABLE holdfast.maintenance_actions, holdfast.maintenance_runs, holdfast.maintenance_policies, holdfast.maintenance_tables;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
