"""A key fits into its index: one that does not was an error of the database at a bad moment, such as the end of an attempt.

New rows only: a job that is there already with a longer key, which its index could compress, must still be claimed and ended.
"""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE FUNCTION holdfast.refuse_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a key or step of a job has more than 1500 bytes'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'keys_fit_their_index';
END $$;
-- AFTER and not BEFORE: COPY would write row by row. In the WHEN, so that a short key costs an expression and no function call.
CREATE TRIGGER keys_fit_their_index AFTER INSERT ON holdfast.jobs FOR EACH ROW
WHEN (greatest(octet_length(NEW.unique_key), octet_length(NEW.slot_key), octet_length(NEW.idempotency_key),
               octet_length(NEW.step)) > 1500)
EXECUTE FUNCTION holdfast.refuse_key();
"""
DOWNGRADE = """
DROP TRIGGER keys_fit_their_index ON holdfast.jobs;
DROP FUNCTION holdfast.refuse_key();
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
