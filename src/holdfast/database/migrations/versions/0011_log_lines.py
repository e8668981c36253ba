"""What handlers say while they run: the last lines of each attempt, for people who ask why."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

UPGRADE = """
-- By attempt and line: an attempt writes only while it holds the job, so the lines of one all come before those of the next.
-- No foreign key: it would look at the job once for every line. Lines go with their job (jobs/prune.py), like its history.
CREATE TABLE holdfast.log_lines (
    job_id      bigint NOT NULL,
    attempt_no  integer NOT NULL,
    line_no     integer NOT NULL CHECK (line_no > 0),      -- counted by the attempt from 1; older ones than are kept are gone
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    said_at     timestamptz NOT NULL,                      -- by the worker's own clock: a label, nothing is decided by it
    level       text NOT NULL CHECK (level IN ('debug', 'info', 'warning', 'error', 'critical')),
    message     text NOT NULL CHECK (octet_length(message) <= 20000),
    fields      json NOT NULL DEFAULT '{}' CHECK (pg_column_size(fields) <= 100000), -- json: in the order said
    PRIMARY KEY (job_id, attempt_no, line_no)
);
"""

DOWNGRADE = """
DROP TABLE holdfast.log_lines;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
