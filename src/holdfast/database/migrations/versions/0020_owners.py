"""Who made a job over HTTP, and which principal registered a worker over HTTP.

A job's owner was the actor of any `jobs.enqueue` in the audit log that named the job, also of one that only found it by a
key. Jobs from before this migration have no owner: operators act on them, analysts do not. The columns are nullable, without
a default and without a check: no table is rewritten or scanned.
"""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE holdfast.jobs ADD COLUMN owner text;     -- who made it over HTTP; null: it was made in Python
ALTER TABLE holdfast.workers ADD COLUMN owner text;  -- who registered it over HTTP; null: it registered itself in the database
"""
DOWNGRADE = """
ALTER TABLE holdfast.workers DROP COLUMN owner;
ALTER TABLE holdfast.jobs DROP COLUMN owner;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
