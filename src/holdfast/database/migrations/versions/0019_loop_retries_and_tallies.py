"""Loops are retried before their next tick, and what exports count is counted in the database.

A counter of one process knows only what that process did, and is lost when it ends. Who finalises a snapshot (a trigger, in
any session) or resets a stale claim (any worker, any loop) varies, so the count is written where the row changes.
"""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE holdfast.loops ADD COLUMN retry_at timestamptz;  -- a run before next_due_at, mostly after a failure

-- Counters for /metrics. Rows are only inserted, so that writers never wait for each other; the loop `prune` sums them up.
CREATE TABLE holdfast.tallies (
    name  text NOT NULL CHECK (name <> ''),
    count bigint NOT NULL CHECK (count > 0)
);

CREATE FUNCTION holdfast.count_finalized_snapshot() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO holdfast.tallies VALUES ('snapshots_finalized', 1);
    RETURN NULL;
END $$;
CREATE TRIGGER count_finalized_snapshots AFTER UPDATE OF state ON holdfast.snapshots FOR EACH ROW
WHEN (OLD.state IN ('pending', 'creating') AND NEW.state IN ('ready', 'failed', 'cancelled'))
EXECUTE FUNCTION holdfast.count_finalized_snapshot();

-- An export whose claim was taken from its holder. One that ended with that (no attempts left) was detected, not reset.
CREATE FUNCTION holdfast.count_stale_export_claim() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM holdfast.jobs WHERE id = NEW.job_id AND kind = 'exports.export') THEN
        INSERT INTO holdfast.tallies VALUES ('stale_export_claims_detected', 1);
        IF NEW.state IN ('pending', 'submitted') THEN
            INSERT INTO holdfast.tallies VALUES ('stale_export_claims_reset', 1);
        END IF;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER count_stale_export_claims AFTER INSERT ON holdfast.history FOR EACH ROW
WHEN (NEW.move IN ('rescue', 'quarantine', 'recover'))
EXECUTE FUNCTION holdfast.count_stale_export_claim();

CREATE INDEX exports_by_outcome ON holdfast.exports (outcome, job_id);  -- null: those that go on
CREATE INDEX snapshots_by_state ON holdfast.snapshots (state);
"""

DOWNGRADE = """
DROP INDEX holdfast.snapshots_by_state, holdfast.exports_by_outcome;
DROP TRIGGER count_stale_export_claims ON holdfast.history;
DROP FUNCTION holdfast.count_stale_export_claim();
DROP TRIGGER count_finalized_snapshots ON holdfast.snapshots;
DROP FUNCTION holdfast.count_finalized_snapshot();
DROP TABLE holdfast.tallies;
ALTER TABLE holdfast.loops DROP COLUMN retry_at;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
