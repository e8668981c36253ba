"""Checks and triggers of jobs, said shorter: Postgres reads their text anew for every statement that writes a job.

A list that is one constant is read in a fraction of the time that a list of constants takes; what only matters for exports is
asked once it is one. They say what they said before.
"""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

CHECKS = """
ALTER TABLE holdfast.jobs
    DROP CONSTRAINT jobs_state_check,
    DROP CONSTRAINT ended_has_a_time,
    ADD CONSTRAINT jobs_state_check CHECK (state = ANY {states}),
    ADD CONSTRAINT ended_has_a_time CHECK ((state = ANY {ended}) = (finished_at IS NOT NULL));
DROP TRIGGER legal_moves_only ON holdfast.jobs;
CREATE TRIGGER legal_moves_only AFTER UPDATE ON holdfast.jobs FOR EACH ROW
WHEN (
    (OLD.state <> NEW.state AND (OLD.state || '>' || NEW.state) <> ALL {moves})
    OR NEW.attempt_no < OLD.attempt_no
    OR NEW.fence_token < OLD.fence_token
    OR (OLD.attempt_id <> NEW.attempt_id)
)
EXECUTE FUNCTION holdfast.refuse_move();
"""
STATES = ["blocked", "pending", "running", "submitted", "completed", "failed", "cancelled"]
ENDED = ["completed", "failed", "cancelled"]
MOVES = [
    *("blocked>cancelled", "blocked>pending", "cancelled>pending", "failed>pending", "pending>blocked"),
    *("pending>cancelled", "pending>running", "running>cancelled", "running>completed", "running>failed"),
    *("running>pending", "running>submitted", "submitted>cancelled", "submitted>running"),
]

FOLLOW = """
CREATE OR REPLACE FUNCTION holdfast.follow_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state IN ('running', 'completed', 'failed', 'cancelled') OR OLD.state IN ('failed', 'cancelled') THEN
        PERFORM holdfast.record_export(NEW);
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER exports_follow_their_jobs ON holdfast.jobs;
CREATE TRIGGER exports_follow_their_jobs AFTER UPDATE OF state ON holdfast.jobs FOR EACH ROW
WHEN (NEW.kind = 'exports.export' AND OLD.state <> NEW.state)
EXECUTE FUNCTION holdfast.follow_job();
"""
FOLLOW_AS_BEFORE = """
CREATE OR REPLACE FUNCTION holdfast.follow_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM holdfast.record_export(NEW);
    RETURN NULL;
END $$;
DROP TRIGGER exports_follow_their_jobs ON holdfast.jobs;
CREATE TRIGGER exports_follow_their_jobs AFTER UPDATE OF state ON holdfast.jobs FOR EACH ROW
WHEN (NEW.kind = 'exports.export' AND OLD.state <> NEW.state
      AND (NEW.state IN ('running', 'completed', 'failed', 'cancelled') OR OLD.state IN ('failed', 'cancelled')))
EXECUTE FUNCTION holdfast.follow_job();
"""


def _one(values: list[str]) -> str:
    return f"('{{{','.join(values)}}}'::text[])"


def _many(values: list[str]) -> str:
    return f"""(ARRAY[{", ".join(f"'{value}'" for value in values)}])"""


UPGRADE = CHECKS.format(states=_one(STATES), ended=_one(ENDED), moves=_one(MOVES)) + FOLLOW
DOWNGRADE = CHECKS.format(states=_many(STATES), ended=_many(ENDED), moves=_many(MOVES)) + FOLLOW_AS_BEFORE


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
