"""What a single column may hold is said by its type and no longer by a check of the table.

A check of the table is read, prepared and evaluated anew by every statement that writes a row, also by a claim or an end
that does not touch the column: a seventh of their cost. A domain is asked only where its own column is written.
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE DOMAIN holdfast.a_name AS text CONSTRAINT a_name CHECK (VALUE <> '' AND length(VALUE) <= 200);
CREATE DOMAIN holdfast.a_payload AS jsonb CONSTRAINT a_payload CHECK (pg_column_size(VALUE) <= 16000000);
CREATE DOMAIN holdfast.a_budget AS integer CONSTRAINT a_budget CHECK (VALUE > 0);
CREATE DOMAIN holdfast.a_count AS integer CONSTRAINT a_count CHECK (VALUE >= 0);
CREATE DOMAIN holdfast.a_duration AS interval CONSTRAINT a_duration CHECK (VALUE > interval '0');
CREATE DOMAIN holdfast.a_share AS real CONSTRAINT a_share CHECK (VALUE BETWEEN 0 AND 1);
CREATE DOMAIN holdfast.a_trace AS text CONSTRAINT a_trace CHECK (length(VALUE) <= 4000);
CREATE DOMAIN holdfast.what_it_waits_for AS text CONSTRAINT what_it_waits_for CHECK (VALUE IN ('parents', 'lock', 'slot'));
CREATE DOMAIN holdfast.how_long_unique AS text CONSTRAINT how_long_unique CHECK (VALUE IN ('waiting', 'live'));
CREATE DOMAIN holdfast.if_parent_fails AS text CONSTRAINT if_parent_fails CHECK (VALUE IN ('cancel', 'run'));

-- One pass over the table. Not `kind`, whose type a trigger depends on.
ALTER TABLE holdfast.jobs
    DROP CONSTRAINT jobs_queue_check,
    DROP CONSTRAINT jobs_payload_check,
    DROP CONSTRAINT jobs_max_attempts_check,
    DROP CONSTRAINT jobs_max_crashes_check,
    DROP CONSTRAINT jobs_parents_left_check,
    DROP CONSTRAINT jobs_max_runtime_check,
    DROP CONSTRAINT jobs_progress_check,
    DROP CONSTRAINT jobs_trace_check,
    DROP CONSTRAINT jobs_waiting_for_check,
    DROP CONSTRAINT jobs_unique_while_check,
    DROP CONSTRAINT jobs_if_parent_fails_check,
    ALTER COLUMN queue TYPE holdfast.a_name,
    ALTER COLUMN payload TYPE holdfast.a_payload,
    ALTER COLUMN max_attempts TYPE holdfast.a_budget,
    ALTER COLUMN max_crashes TYPE holdfast.a_budget,
    ALTER COLUMN parents_left TYPE holdfast.a_count,
    ALTER COLUMN max_runtime TYPE holdfast.a_duration,
    ALTER COLUMN progress TYPE holdfast.a_share,
    ALTER COLUMN trace TYPE holdfast.a_trace,
    ALTER COLUMN waiting_for TYPE holdfast.what_it_waits_for,
    ALTER COLUMN unique_while TYPE holdfast.how_long_unique,
    ALTER COLUMN if_parent_fails TYPE holdfast.if_parent_fails;
"""

DOWNGRADE = """
ALTER TABLE holdfast.jobs
    ALTER COLUMN queue TYPE text,
    ALTER COLUMN payload TYPE jsonb,
    ALTER COLUMN max_attempts TYPE integer,
    ALTER COLUMN max_crashes TYPE integer,
    ALTER COLUMN parents_left TYPE integer,
    ALTER COLUMN max_runtime TYPE interval,
    ALTER COLUMN progress TYPE real,
    ALTER COLUMN trace TYPE text,
    ALTER COLUMN waiting_for TYPE text,
    ALTER COLUMN unique_while TYPE text,
    ALTER COLUMN if_parent_fails TYPE text,
    ADD CONSTRAINT jobs_queue_check CHECK (queue <> '' AND length(queue) <= 200),
    ADD CONSTRAINT jobs_payload_check CHECK (pg_column_size(payload) <= 16000000),
    ADD CONSTRAINT jobs_max_attempts_check CHECK (max_attempts > 0),
    ADD CONSTRAINT jobs_max_crashes_check CHECK (max_crashes > 0),
    ADD CONSTRAINT jobs_parents_left_check CHECK (parents_left >= 0),
    ADD CONSTRAINT jobs_max_runtime_check CHECK (max_runtime > interval '0'),
    ADD CONSTRAINT jobs_progress_check CHECK (progress BETWEEN 0 AND 1),
    ADD CONSTRAINT jobs_trace_check CHECK (length(trace) <= 4000),
    ADD CONSTRAINT jobs_waiting_for_check CHECK (waiting_for IN ('parents', 'lock', 'slot')),
    ADD CONSTRAINT jobs_unique_while_check CHECK (unique_while IN ('waiting', 'live')),
    ADD CONSTRAINT jobs_if_parent_fails_check CHECK (if_parent_fails IN ('cancel', 'run'));
DROP DOMAIN holdfast.a_name;
DROP DOMAIN holdfast.a_payload;
DROP DOMAIN holdfast.a_budget;
DROP DOMAIN holdfast.a_count;
DROP DOMAIN holdfast.a_duration;
DROP DOMAIN holdfast.a_share;
DROP DOMAIN holdfast.a_trace;
DROP DOMAIN holdfast.what_it_waits_for;
DROP DOMAIN holdfast.how_long_unique;
DROP DOMAIN holdfast.if_parent_fails;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
