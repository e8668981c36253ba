"""Periodic loops: a row per loop is the authority over its ticks, a row per run is their history."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

UPGRADE = """
-- A loop. The process that takes its row under a new term runs its tick; the term is the fence of all that the tick writes.
CREATE TABLE holdfast.loops (
    name            text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_]{0,99}$'),
    every           interval CHECK (every > interval '0'),
    cron            text,
    timezone        text NOT NULL DEFAULT 'UTC',
    catch_up        integer NOT NULL DEFAULT 0 CHECK (catch_up >= 0),
    next_due_at     timestamptz NOT NULL,                 -- by the database's clock, on the grid of `every` or `cron`
    term            bigint NOT NULL DEFAULT 0,            -- one more with every taking; never falls
    holder          text,                                 -- who runs it now
    held_until      timestamptz,                          -- renewed while it runs; past: the holder went silent
    run_id          bigint,                               -- the run that the holder is at, or the last one
    queued_run_id   bigint,                               -- a requested run that has not begun
    triggered_at    timestamptz,                          -- when a run was last requested
    failures        integer NOT NULL DEFAULT 0,           -- one after another; 3 make a loop unhealthy
    last_started_at timestamptz,
    last_finished_at timestamptz,
    last_success_at timestamptz,
    last_outcome    text,
    last_error      text,
    paused_at       timestamptz,
    paused_by       text,
    paused_reason   text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT interval_or_cron CHECK ((every IS NULL) <> (cron IS NULL)),
    CONSTRAINT held_is_whole CHECK ((holder IS NULL) = (held_until IS NULL))
) WITH (fillfactor = 50);

CREATE FUNCTION holdfast.refuse_term() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the term of loop % may not go from % to %', OLD.name, OLD.term, NEW.term
        USING ERRCODE = 'check_violation', CONSTRAINT = 'terms_only_rise';
END $$;
CREATE TRIGGER terms_only_rise AFTER UPDATE ON holdfast.loops FOR EACH ROW
WHEN (NEW.term < OLD.term OR (NEW.term = OLD.term AND OLD.holder <> NEW.holder))
EXECUTE FUNCTION holdfast.refuse_term();

-- One run of a loop: a tick of its schedule, or a requested run.
CREATE TABLE holdfast.loop_runs (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL REFERENCES holdfast.loops ON DELETE CASCADE,
    trigger     text NOT NULL CHECK (trigger IN ('schedule', 'manual')),
    due_at      timestamptz,                              -- which tick; null for a requested run
    tries       integer NOT NULL DEFAULT 1,               -- 2: its first holder went silent
    actor       text,
    reason      text,
    term        bigint,                                   -- null while queued
    holder      text,
    queued_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at  timestamptz,
    finished_at timestamptz,
    outcome     text NOT NULL CHECK (outcome IN ('queued', 'running', 'success', 'failed', 'interrupted', 'abandoned')),
    items       integer NOT NULL DEFAULT 0,
    failed_items integer NOT NULL DEFAULT 0,
    skipped_items integer NOT NULL DEFAULT 0,
    error       text,
    CONSTRAINT queued_has_no_term CHECK ((outcome = 'queued') = (term IS NULL)),
    CONSTRAINT tick_has_a_time CHECK ((trigger = 'schedule') = (due_at IS NOT NULL)),
    UNIQUE (name, term)
);
-- The second wall behind the row: two runs of a loop at once, or one tick that succeeds twice, would need the same key.
CREATE UNIQUE INDEX one_run_at_a_time ON holdfast.loop_runs (name) WHERE outcome = 'running';
CREATE UNIQUE INDEX one_success_per_tick ON holdfast.loop_runs (name, due_at) WHERE outcome = 'success' AND due_at IS NOT NULL;
CREATE INDEX runs_of_loop ON holdfast.loop_runs (name, id);

-- Keys of a reconciler that failed, and when each may be tried again. A key that succeeds has no row.
CREATE TABLE holdfast.loop_keys (
    name        text NOT NULL REFERENCES holdfast.loops ON DELETE CASCADE,
    key         text NOT NULL,
    failures    integer NOT NULL,
    retry_at    timestamptz NOT NULL,
    error       text NOT NULL,
    PRIMARY KEY (name, key)
);

-- What the loop `pipeline_status` found when it last looked; the rows of the jobs have the last word.
ALTER TABLE holdfast.pipelines
    ADD COLUMN status      text NOT NULL DEFAULT 'running'
               CHECK (status IN ('running', 'completed', 'partial', 'failed', 'cancelled')),
    ADD COLUMN finished_at timestamptz,
    ADD COLUMN checked_at  timestamptz NOT NULL DEFAULT clock_timestamp();
CREATE INDEX pipelines_running ON holdfast.pipelines (id) WHERE status = 'running';
CREATE INDEX pipelines_ended ON holdfast.pipelines (checked_at) WHERE status <> 'running';
"""

DOWNGRADE = """
DROP INDEX holdfast.pipelines_ended, holdfast.pipelines_running;
ALTER TABLE holdfast.pipelines DROP COLUMN checked_at, DROP COLUMN finished_at, DROP COLUMN status;
DROP TABLE holdfast.loop_keys, holdfast.loop_runs, holdfast.loops;
DROP FUNCTION holdfast.refuse_term();
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
