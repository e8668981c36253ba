"""Expiry of mappings and snapshots, and claims over the export protocol whose answer was lost.

A snapshot is marked before its files are removed and its row goes last, so a process that dies in between leaves a row that the
next pass finds. A marked snapshot has ended and stays as it is: nothing may begin to use it or run it again. A claim that was
acknowledged by an update is not given again.

The views have the names and columns by which autoscalers and runbooks ask for the work. They show neither SQL nor addresses of
engines. `snapshots.status` is a column and no view, because `GROUP BY id` allows other columns only of a table.
"""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

VIEWS = """
ALTER TABLE holdfast.snapshots ADD COLUMN status text GENERATED ALWAYS AS (state) STORED;

CREATE VIEW holdfast.export_jobs AS
SELECT e.job_id AS id, e.snapshot_id, e.job_type, e.entity_name,
       coalesce(e.outcome, CASE WHEN j.state = 'running' AND j.handle IS NOT NULL THEN 'submitted'
                                WHEN j.state = 'running' THEN 'claimed' WHEN j.state = 'blocked' THEN 'pending'
                                ELSE coalesce(j.state, 'pending') END) AS status,
       e.location AS gcs_path, w.name AS claimed_by, CASE WHEN j.state = 'running' THEN j.claimed_at END AS claimed_at,
       j.handle #>> '{query,query_id}' AS starburst_query_id, j.next_poll_at, coalesce(j.poll_count, 0) AS poll_count,
       j.submitted_at, e.finished_at AS completed_at, e.row_count, e.size_bytes, e.error AS error_message, j.created_at,
       greatest(j.created_at, j.claimed_at, j.submitted_at, e.finished_at) AS updated_at
FROM holdfast.exports e
LEFT JOIN holdfast.jobs j ON j.id = e.job_id
LEFT JOIN holdfast.workers w ON w.id = j.worker_id;

-- One row per job that has not ended. A claim whose lease has expired is shown as none, so that it is counted. What is blocked
-- or paused is not visible before the end of time.
CREATE VIEW holdfast.job_queue AS
SELECT j.id AS job_id, NULL::timestamptz AS claimed_at, NULL::text AS claimed_by, NULL::uuid AS attempt_id,
       CASE WHEN EXISTS (SELECT FROM holdfast.controls c WHERE c.kind IN (j.kind, '*') AND c.paused_at IS NOT NULL)
            THEN 'infinity' ELSE coalesce(j.run_after, j.created_at) END AS visible_at, j.attempt_no AS attempt_count
FROM holdfast.jobs j WHERE j.state = 'pending'
UNION ALL
SELECT j.id, NULL, NULL, NULL, 'infinity', j.attempt_no FROM holdfast.jobs j WHERE j.state = 'blocked'
UNION ALL
SELECT j.id, NULL, NULL, NULL, j.next_poll_at, j.attempt_no FROM holdfast.jobs j WHERE j.state = 'submitted'
UNION ALL
SELECT j.id, CASE WHEN w.lease_until >= clock_timestamp() THEN j.claimed_at END, w.name, j.attempt_id, w.lease_until,
       j.attempt_no
FROM holdfast.jobs j LEFT JOIN holdfast.workers w ON w.id = j.worker_id WHERE j.worker_id IS NOT NULL;
"""
UPGRADE = (
    VIEWS
    + """
ALTER TABLE holdfast.mappings ADD COLUMN last_used_at timestamptz;  -- when a snapshot of it was made or deleted
ALTER TABLE holdfast.snapshots ADD COLUMN deleting_since timestamptz;
ALTER TABLE holdfast.snapshots ADD CONSTRAINT deleted_only_after_its_end
    CHECK (deleting_since IS NULL OR state IN ('ready', 'failed', 'cancelled'));
ALTER TABLE holdfast.workers ADD COLUMN acknowledged_at timestamptz;  -- only of claims over /export-jobs
"""
)
DOWNGRADE = """
DROP VIEW holdfast.job_queue, holdfast.export_jobs;
ALTER TABLE holdfast.snapshots DROP COLUMN status;
ALTER TABLE holdfast.workers DROP COLUMN acknowledged_at;
ALTER TABLE holdfast.snapshots DROP COLUMN deleting_since;
ALTER TABLE holdfast.mappings DROP COLUMN last_used_at;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
