"""What each kind declares: options, key templates and the schema of its arguments, published by workers when they start."""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE holdfast.kinds (
    kind             text NOT NULL CHECK (length(kind) BETWEEN 1 AND 200),
    version          integer NOT NULL CHECK (version > 0),
    declaration      jsonb NOT NULL CONSTRAINT declaration_is_an_object CHECK (jsonb_typeof(declaration) = 'object'),
    digest           text NOT NULL CHECK (digest ~ '^[0-9a-f]{64}$'),  -- of the declaration, as its publisher wrote it
    published_at     timestamptz NOT NULL DEFAULT clock_timestamp(),   -- last: refreshed once a day, see jobs/kinds.py
    published_by     text NOT NULL,                                    -- the name of a worker
    replaced_at      timestamptz,                                      -- when another declaration of this version was replaced
    replaced_digest  text CHECK (replaced_digest ~ '^[0-9a-f]{64}$'),
    PRIMARY KEY (kind, version),
    CONSTRAINT declares_its_own_kind CHECK (declaration ->> 'kind' = kind AND (declaration ->> 'version')::integer = version),
    CONSTRAINT replaced_once_or_never CHECK ((replaced_at IS NULL) = (replaced_digest IS NULL))
);
"""

DOWNGRADE = """
DROP TABLE holdfast.kinds;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
