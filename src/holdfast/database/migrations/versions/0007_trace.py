"""A job remembers where it came from, for logs and traces."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

UPGRADE = """
-- JSON: the request and the W3C trace context (`traceparent`, `tracestate`) of the code that enqueued it, where there are any.
ALTER TABLE holdfast.jobs ADD COLUMN trace text CHECK (length(trace) <= 4000);
"""

DOWNGRADE = """
ALTER TABLE holdfast.jobs DROP COLUMN trace;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
