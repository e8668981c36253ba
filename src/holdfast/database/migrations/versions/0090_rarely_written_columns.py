"""Rules about columns that are written once are checked only by statements that write them.

Postgres reads, plans and compiles every check and every condition of a trigger anew for each statement that writes a row. A
claim and an end write none of these columns, so these checks become one trigger of the columns, with the same rules. An
update of the state is checked by `legal_moves_only`, and a job is blocked exactly while `waiting_for` is set
(`blocked_says_why`): the trigger need not fire for an update of the state.
"""

from alembic import op

revision = "0090"
down_revision = "0080"
branch_labels = None
depends_on = None
oldest_code = "0060"  # the rules stay, only their kind changes

VALID_VALUES_ONLY = """
CREATE FUNCTION holdfast.refuse_values() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    broken text := CASE
        WHEN NEW.state <> ALL ('{blocked,pending,running,submitted,completed,failed,cancelled}') THEN 'jobs_state_check'
        WHEN length(NEW.kind) NOT BETWEEN 1 AND 200 THEN 'jobs_kind_check'
        WHEN (NEW.unique_key IS NULL) <> (NEW.unique_while IS NULL) THEN 'unique_is_whole'
        WHEN (NEW.parent_id IS NULL) <> (NEW.step IS NULL) THEN 'step_has_a_parent'
        WHEN NEW.is_current AND NEW.slot_key IS NULL THEN 'current_has_a_slot'
        WHEN NEW.ties & 32 <> 0 AND coalesce(NEW.waiting_for, NEW.slot_key) IS NOT NULL THEN 'holders_wait_for_nothing'
        ELSE 'keys_fit_their_index' END;
BEGIN
    RAISE EXCEPTION 'the row of a job breaks the rule %', broken USING ERRCODE = 'check_violation', CONSTRAINT = broken;
END $$;
-- AFTER and not BEFORE: COPY would write row by row. In the WHEN, so that a valid row costs an expression and no function call.
CREATE TRIGGER valid_values_only
AFTER INSERT OR UPDATE OF kind, unique_key, unique_while, idempotency_key, parent_id, step, slot_key, is_current, ties,
                          waiting_for ON holdfast.jobs FOR EACH ROW
WHEN (
    NEW.state <> ALL ('{blocked,pending,running,submitted,completed,failed,cancelled}')
    OR length(NEW.kind) NOT BETWEEN 1 AND 200
    OR (NEW.unique_key IS NULL) <> (NEW.unique_while IS NULL)
    OR (NEW.parent_id IS NULL) <> (NEW.step IS NULL)
    OR (NEW.is_current AND NEW.slot_key IS NULL)
    OR (NEW.ties & 32 <> 0 AND coalesce(NEW.waiting_for, NEW.slot_key) IS NOT NULL)
    OR greatest(octet_length(NEW.unique_key), octet_length(NEW.slot_key), octet_length(NEW.idempotency_key),
                octet_length(NEW.step)) > 1500
)
EXECUTE FUNCTION holdfast.refuse_values();
DROP TRIGGER keys_fit_their_index ON holdfast.jobs;
DROP FUNCTION holdfast.refuse_key();
ALTER TABLE holdfast.jobs
    DROP CONSTRAINT jobs_state_check,
    DROP CONSTRAINT jobs_kind_check,
    DROP CONSTRAINT unique_is_whole,
    DROP CONSTRAINT step_has_a_parent,
    DROP CONSTRAINT current_has_a_slot,
    DROP CONSTRAINT holders_wait_for_nothing;
"""

# An array that is one constant is read in a fraction of the time that an array of constants takes.
COUNT_STALE_CLAIMS = """
CREATE OR REPLACE TRIGGER count_stale_export_claims AFTER INSERT ON holdfast.history FOR EACH ROW
WHEN (NEW.move = ANY ({moves}))
EXECUTE FUNCTION holdfast.count_stale_export_claim();
"""
UPGRADE = VALID_VALUES_ONLY + COUNT_STALE_CLAIMS.format(moves="'{rescue,quarantine,recover}'")

DOWNGRADE = (
    COUNT_STALE_CLAIMS.format(moves="ARRAY['rescue', 'quarantine', 'recover']")
    + """
ALTER TABLE holdfast.jobs
    ADD CONSTRAINT jobs_state_check
        CHECK (state = ANY ('{blocked,pending,running,submitted,completed,failed,cancelled}')),
    ADD CONSTRAINT jobs_kind_check CHECK (kind <> '' AND length(kind) <= 200),
    ADD CONSTRAINT unique_is_whole CHECK ((unique_key IS NULL) = (unique_while IS NULL)),
    ADD CONSTRAINT step_has_a_parent CHECK ((parent_id IS NULL) = (step IS NULL)),
    ADD CONSTRAINT current_has_a_slot CHECK (NOT is_current OR slot_key IS NOT NULL),
    ADD CONSTRAINT holders_wait_for_nothing
        CHECK (ties & 32 = 0 OR (state <> 'blocked' AND slot_key IS NULL)) NOT VALID;
CREATE FUNCTION holdfast.refuse_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a key or step of a job has more than 1500 bytes'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'keys_fit_their_index';
END $$;
CREATE TRIGGER keys_fit_their_index AFTER INSERT ON holdfast.jobs FOR EACH ROW
WHEN (greatest(octet_length(NEW.unique_key), octet_length(NEW.slot_key), octet_length(NEW.idempotency_key),
               octet_length(NEW.step)) > 1500)
EXECUTE FUNCTION holdfast.refuse_key();
DROP TRIGGER valid_values_only ON holdfast.jobs;
DROP FUNCTION holdfast.refuse_values();
"""
)


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
