"""Sessions that their user has ended: a signed cookie is valid until its own end, unless its id is here."""

from alembic import op

revision = "0080"
down_revision = "0070"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE holdfast.ended_sessions (
    id       text PRIMARY KEY CHECK (id <> '' AND length(id) <= 100),
    ends_at  timestamptz NOT NULL    -- when the cookie ends by itself: the row is not needed after that
);
CREATE INDEX ended_sessions_over ON holdfast.ended_sessions (ends_at);
"""

DOWNGRADE = """
DROP TABLE holdfast.ended_sessions;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
