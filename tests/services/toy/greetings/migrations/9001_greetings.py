"""Greetings, and how each job of the kind ended."""

from alembic import op

from holdfast.database import locations

revision = "9001"
# The newest revision without this one. A service in the repository writes it down as a number.
down_revision = max(file.name for folder in locations.folders() for file in folder.glob("0*.py")).partition("_")[0]
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE holdfast.greetings (name text PRIMARY KEY, text text NOT NULL);
CREATE TABLE holdfast.greeting_ends (job_id bigint PRIMARY KEY, state text NOT NULL);

CREATE FUNCTION holdfast.follow_greeting(job holdfast.jobs, old_state text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO holdfast.greeting_ends SELECT job.id, job.state WHERE job.finished_at IS NOT NULL
$$;
INSERT INTO holdfast.job_followers VALUES ('greetings.write', 'holdfast.follow_greeting');
"""
DOWNGRADE = """
DELETE FROM holdfast.job_followers WHERE kind = 'greetings.write';
DROP FUNCTION holdfast.follow_greeting(holdfast.jobs, text);
DROP TABLE holdfast.greeting_ends, holdfast.greetings;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
