"""Ingestion: data models, files, data entries, factors, emissions, statistics, and the record of each ingestion job.

Every table has one writer on the bulk path: ingestion writes entries, recalculation writes emissions, aggregation writes
statistics. Staging tables are in a schema of their own, one pair per attempt, unlogged: they are never needed after a crash.
"""

from alembic import op

revision = "0050"
down_revision = "0040"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE SCHEMA holdfast_staging;

CREATE TABLE holdfast.data_models (
    id              integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name            text NOT NULL UNIQUE CHECK (name ~ '^[a-z][a-z0-9_]*$'),
    current_version integer NOT NULL DEFAULT 0,  -- 0 only within the transaction that creates it
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE holdfast.data_model_versions (
    model_id           integer NOT NULL REFERENCES holdfast.data_models ON DELETE CASCADE,
    version            integer NOT NULL CHECK (version > 0),
    change_description text,
    definition         jsonb NOT NULL,
    created_by         text NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (model_id, version)
);
CREATE TABLE holdfast.data_entry_types (
    id       integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    model_id integer NOT NULL REFERENCES holdfast.data_models,
    module   text NOT NULL,
    name     text NOT NULL,
    UNIQUE (model_id, module, name)
);

-- Files that were uploaded: where they are, and what they are.
CREATE TABLE holdfast.ingestion_files (
    id          bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    path        text NOT NULL UNIQUE,  -- below HOLDFAST_INGESTION_TO
    name        text NOT NULL,         -- as the uploader calls it
    bytes       bigint NOT NULL CHECK (bytes >= 0),
    sha256      text NOT NULL CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    uploaded_by text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE holdfast.reference_values (
    list             text NOT NULL,
    code             text NOT NULL,
    label            text,
    attributes       jsonb,
    last_seen_job_id bigint NOT NULL,
    PRIMARY KEY (list, code)
);
-- A year is provisioned by the unit sync that was for it.
CREATE TABLE holdfast.ingestion_years (
    year           smallint PRIMARY KEY,
    job_id         bigint NOT NULL,
    provisioned_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Entries and emissions have no foreign keys: a check of each row would take longer than its insert, and each of the two
-- tables has one writer, which takes the ids from the referenced table in the same statement.
CREATE TABLE holdfast.data_entries (
    id             bigint NOT NULL GENERATED ALWAYS AS IDENTITY,  -- joined by hash, so it needs no index
    det_id         integer NOT NULL,
    year           smallint NOT NULL,
    key            text COLLATE "C" NOT NULL,  -- the natural key; job and line if the type has none
    unit_code      text,
    classification text NOT NULL,
    amount         numeric,
    attributes     jsonb,  -- columns without a role
    job_id         bigint NOT NULL,
    line           bigint NOT NULL,
    CONSTRAINT one_entry_per_key PRIMARY KEY (det_id, year, key)
);
CREATE TABLE holdfast.factors (
    id               integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    det_id           integer NOT NULL REFERENCES holdfast.data_entry_types,
    year             smallint NOT NULL,
    emission_type    text NOT NULL,
    classification   text NOT NULL,
    value            numeric NOT NULL,
    unit             text,
    last_seen_job_id bigint NOT NULL,
    updated_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT one_factor_per_key UNIQUE (det_id, year, emission_type, classification)
);
CREATE TABLE holdfast.data_entry_emissions (
    entry_id  bigint NOT NULL,
    factor_id integer NOT NULL,
    kg        numeric NOT NULL,
    PRIMARY KEY (entry_id, factor_id)
);
CREATE TABLE holdfast.emission_stats (
    det_id        integer NOT NULL REFERENCES holdfast.data_entry_types,
    year          smallint NOT NULL,
    unit_code     text NOT NULL,  -- '' for entries without a unit
    emission_type text NOT NULL,
    entries       bigint NOT NULL,
    kg            numeric NOT NULL,
    PRIMARY KEY (det_id, year, unit_code, emission_type)
);
-- What is due for each type and year: a recalculation if `changes` is larger than `recalculated`, an aggregation if it is
-- larger than `aggregated`. `structure` counts the changes after which emissions have to be added or removed, not only updated.
CREATE TABLE holdfast.emission_scopes (
    det_id         integer NOT NULL REFERENCES holdfast.data_entry_types,
    year           smallint NOT NULL,
    changes        bigint NOT NULL DEFAULT 0,
    structure      bigint NOT NULL DEFAULT 0,
    recalculated   bigint NOT NULL DEFAULT 0,
    restructured   bigint NOT NULL DEFAULT 0,
    aggregated     bigint NOT NULL DEFAULT 0,
    changed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    recalculated_at timestamptz,
    aggregated_at  timestamptz,
    PRIMARY KEY (det_id, year),
    CONSTRAINT nothing_is_recalculated_before_it_changes CHECK (recalculated <= changes AND restructured <= structure),
    CONSTRAINT nothing_is_aggregated_before_it_is_recalculated CHECK (aggregated <= recalculated)
);
CREATE TABLE holdfast.ingestion_cursors (
    det_id     integer NOT NULL REFERENCES holdfast.data_entry_types,
    year       smallint NOT NULL,
    cursor     text,  -- null: from the beginning
    pages      bigint NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (det_id, year)
);

-- The state names of ingestion jobs, one row for each state of the kernel. `result` is for a job that reports none.
CREATE TABLE holdfast.ingestion_states (
    job_state text PRIMARY KEY,
    state     text NOT NULL CHECK (state IN ('NOT_STARTED', 'QUEUED', 'RUNNING', 'FINISHED')),
    number    smallint NOT NULL,
    result    text CHECK (result IN ('SUCCESS', 'WARNING', 'ERROR')),
    CONSTRAINT only_finished_jobs_have_a_result CHECK ((state = 'FINISHED') = (result IS NOT NULL))
);
INSERT INTO holdfast.ingestion_states VALUES
    ('blocked', 'NOT_STARTED', 0, NULL), ('pending', 'NOT_STARTED', 0, NULL), ('running', 'RUNNING', 2, NULL),
    ('submitted', 'RUNNING', 2, NULL), ('completed', 'FINISHED', 3, 'SUCCESS'), ('failed', 'FINISHED', 3, 'ERROR'),
    ('cancelled', 'FINISHED', 3, 'ERROR');

CREATE TABLE holdfast.ingestion_job_types (
    job_type text PRIMARY KEY,
    target   text NOT NULL CHECK (target IN ('DATA_ENTRIES', 'FACTORS', 'REDUCTION_OBJECTIVES', 'REFERENCE_DATA')),
    method   text NOT NULL CHECK (method IN ('api', 'csv', 'manual', 'computed'))
);
INSERT INTO holdfast.ingestion_job_types VALUES
    ('csv_ingest', 'DATA_ENTRIES', 'csv'), ('api_ingest', 'DATA_ENTRIES', 'api'), ('factor_ingest', 'FACTORS', 'csv'),
    ('unit_sync', 'REFERENCE_DATA', 'csv'), ('reference_ingest', 'REFERENCE_DATA', 'csv'),
    ('emission_recalc', 'DATA_ENTRIES', 'computed'), ('module_emission_recalc', 'DATA_ENTRIES', 'computed'),
    ('aggregation', 'DATA_ENTRIES', 'computed');

-- One row for each job of the service. It stays when the job is pruned.
CREATE TABLE holdfast.ingestions (
    job_id       bigint PRIMARY KEY,
    job_type     text NOT NULL REFERENCES holdfast.ingestion_job_types,
    pipeline_id  uuid,
    module       text,
    det          text,
    year         smallint,
    is_dry_run   boolean NOT NULL DEFAULT false,
    file_id      bigint REFERENCES holdfast.ingestion_files,
    requested_by text,
    job_state    text NOT NULL REFERENCES holdfast.ingestion_states,
    result       text CHECK (result IN ('SUCCESS', 'WARNING', 'ERROR')),
    message      text,
    outcome      jsonb,  -- counts, dialect, and what else the handler reports
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at   timestamptz,  -- of the first attempt; it never moves
    finished_at  timestamptz
);
CREATE INDEX ingestions_of_a_year ON holdfast.ingestions (year, job_id DESC);
CREATE INDEX ingestions_of_a_scope ON holdfast.ingestions (module, det, year, job_type, job_id DESC);
CREATE INDEX ingestions_of_a_pipeline ON holdfast.ingestions (pipeline_id);

-- Bad rows. Only those of the newest attempt are shown: a replaced attempt has a smaller fence token.
CREATE TABLE holdfast.ingestion_errors (
    job_id      bigint NOT NULL,
    fence_token bigint NOT NULL,
    line        bigint NOT NULL,
    number      integer NOT NULL,
    column_name text,  -- null: the row as a whole
    value       text,
    reason      text NOT NULL,
    PRIMARY KEY (job_id, fence_token, line, number)
);

CREATE FUNCTION holdfast.follow_ingestion(job holdfast.jobs, old_state text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO holdfast.ingestions AS i
        (job_id, job_type, pipeline_id, module, det, year, is_dry_run, file_id, job_state, result, message, outcome, created_at,
         started_at, finished_at)
    SELECT job.id, split_part(job.kind, '.', 2), job.pipeline_id, job.payload ->> 'module', job.payload ->> 'det',
        (job.payload ->> 'year')::smallint,
        coalesce((job.payload ->> 'dry_run')::boolean, false), (job.payload ->> 'file_id')::bigint, job.state,
        CASE WHEN s.state = 'FINISHED' THEN coalesce(job.result ->> 'result', s.result) END,
        coalesce(job.error, job.result ->> 'message'), job.result, job.created_at,
        CASE WHEN s.state <> 'NOT_STARTED' THEN clock_timestamp() END, job.finished_at
    FROM holdfast.ingestion_states s WHERE s.job_state = job.state
    ON CONFLICT (job_id) DO UPDATE SET pipeline_id = excluded.pipeline_id, job_state = excluded.job_state,
        result = excluded.result, message = excluded.message, outcome = coalesce(excluded.outcome, i.outcome),
        started_at = coalesce(i.started_at, excluded.started_at), finished_at = excluded.finished_at
$$;
-- Tells the client that runs a long statement that one more step of it is done. A notice is sent at once, without a commit.
CREATE FUNCTION holdfast.ingestion_step(kg numeric) RETURNS numeric LANGUAGE plpgsql SET client_min_messages = notice AS $$
BEGIN
    RAISE NOTICE 'ingestion step';
    RETURN kg;
END
$$;
INSERT INTO holdfast.job_followers
SELECT 'ingestion.' || job_type, 'holdfast.follow_ingestion' FROM holdfast.ingestion_job_types;
"""

DOWNGRADE = """
DELETE FROM holdfast.job_followers WHERE kind LIKE 'ingestion.%';
DROP FUNCTION holdfast.follow_ingestion(holdfast.jobs, text);
DROP FUNCTION holdfast.ingestion_step(numeric);
DROP TABLE holdfast.ingestion_errors, holdfast.ingestions, holdfast.ingestion_job_types, holdfast.ingestion_states,
    holdfast.ingestion_cursors,
    holdfast.emission_scopes, holdfast.emission_stats, holdfast.data_entry_emissions, holdfast.factors, holdfast.data_entries,
    holdfast.ingestion_years, holdfast.reference_values, holdfast.ingestion_files, holdfast.data_entry_types,
    holdfast.data_model_versions, holdfast.data_models;
DROP SCHEMA holdfast_staging CASCADE;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
