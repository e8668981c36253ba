"""Exports follow their jobs through the kernel's table of followers. Their own trigger on the jobs is removed.

The change is one transaction, and the functions that write the manifest and settle the snapshot stay: no end of a job is
missed, and programs of the previous version keep working.
"""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

UPGRADE = """
DROP TRIGGER exports_follow_their_jobs ON holdfast.jobs;
DROP FUNCTION holdfast.follow_job();

CREATE FUNCTION holdfast.follow_export_job(job holdfast.jobs, old_state text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF job.state IN ('running', 'completed', 'failed', 'cancelled') OR old_state IN ('failed', 'cancelled') THEN
        PERFORM holdfast.record_export(job);
    END IF;
END $$;
INSERT INTO holdfast.job_followers VALUES ('exports.export', 'holdfast.follow_export_job');
"""

DOWNGRADE = """
DELETE FROM holdfast.job_followers WHERE kind = 'exports.export';
DROP FUNCTION holdfast.follow_export_job(holdfast.jobs, text);

CREATE FUNCTION holdfast.follow_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state IN ('running', 'completed', 'failed', 'cancelled') OR OLD.state IN ('failed', 'cancelled') THEN
        PERFORM holdfast.record_export(NEW);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER exports_follow_their_jobs AFTER UPDATE OF state ON holdfast.jobs FOR EACH ROW
WHEN (NEW.kind = 'exports.export' AND OLD.state <> NEW.state)
EXECUTE FUNCTION holdfast.follow_job();
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
