"""Followers of jobs: SQL functions that run when a job of their kind changes its state, in the transaction that changes it.

A service registers its function with one row. The rows become one trigger on the jobs, with the list of kinds as a constant in
its condition, and one function that calls the follower of a kind. Both are rebuilt when a row changes, so no update of a job
reads the table. Without rows there is no trigger.
"""

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

UPGRADE = r"""
CREATE TABLE holdfast.job_followers (
    kind     text PRIMARY KEY CHECK (kind <> ''),
    function text NOT NULL CHECK (function ~ '^[a-z_][a-z0-9_]*[.][a-z_][a-z0-9_]*$')  -- its arguments: (holdfast.jobs, text)
);

CREATE FUNCTION holdfast.install_job_followers() RETURNS trigger LANGUAGE plpgsql AS $install$
DECLARE
    missing text; kinds text[]; calls text;
BEGIN
    SELECT function INTO missing FROM holdfast.job_followers WHERE to_regprocedure(function || '(holdfast.jobs, text)') IS NULL;
    IF FOUND THEN
        RAISE EXCEPTION 'the function %(holdfast.jobs, text) does not exist', missing
            USING ERRCODE = 'undefined_function', HINT = 'create the function before you register it as a follower';
    END IF;
    SELECT array_agg(kind ORDER BY kind),
           string_agg(format('WHEN %L THEN PERFORM %s(NEW, OLD.state);', kind, function), E'\n    ' ORDER BY kind)
    INTO kinds, calls FROM holdfast.job_followers;
    IF kinds IS NULL THEN
        DROP TRIGGER IF EXISTS run_job_followers ON holdfast.jobs;
        DROP FUNCTION IF EXISTS holdfast.run_job_followers();
        RETURN NULL;
    END IF;
    EXECUTE format(
        'CREATE OR REPLACE FUNCTION holdfast.run_job_followers() RETURNS trigger LANGUAGE plpgsql AS %L', format($body$
BEGIN
    CASE NEW.kind
    %s
    END CASE;
    RETURN NULL;
END $body$, calls));
    -- By its name it fires after `legal_moves_only`: a follower never sees an illegal move.
    EXECUTE format('CREATE OR REPLACE TRIGGER run_job_followers AFTER UPDATE OF state ON holdfast.jobs FOR EACH ROW
        WHEN (NEW.kind = ANY (%L::text[]) AND OLD.state <> NEW.state) EXECUTE FUNCTION holdfast.run_job_followers()', kinds);
    RETURN NULL;
END $install$;
CREATE TRIGGER install_job_followers AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON holdfast.job_followers
FOR EACH STATEMENT EXECUTE FUNCTION holdfast.install_job_followers();
"""

DOWNGRADE = """
DELETE FROM holdfast.job_followers;  -- removes the trigger on the jobs
DROP TABLE holdfast.job_followers;
DROP FUNCTION holdfast.install_job_followers();
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
