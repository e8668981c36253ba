"""Who may speak to the control plane, what they did, and what they were answered."""

from alembic import op

revision = "0004"
down_revision = "0002"
branch_labels = None
depends_on = None

UPGRADE = """
-- API tokens: the secret itself is shown once and stored nowhere. A secret of 256 random bits needs no slow hash.
CREATE TABLE holdfast.tokens (
    id            text PRIMARY KEY CHECK (id ~ '^[a-z0-9]{8}$'),
    name          text NOT NULL CHECK (name <> '' AND length(name) <= 200),
    role          text NOT NULL CHECK (role IN ('viewer', 'analyst', 'ops', 'admin', 'worker', 'autoscaler')),
    scopes        text[],                                 -- null: all that the role may do; else only these actions
    secret_hash   bytea NOT NULL CHECK (length(secret_hash) = 32),
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by    text NOT NULL,
    expires_at    timestamptz NOT NULL,
    last_used_at  timestamptz,                            -- to the minute
    revoked_at    timestamptz,
    revoked_by    text
);

-- Every act of a person or a machine through the control plane, in the transaction of the act; and every denial.
CREATE TABLE holdfast.audit (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor           text NOT NULL,
    method          text NOT NULL,                        -- how the actor was known: token, oidc, gateway, command line
    role            text,
    action          text NOT NULL,
    object          text NOT NULL,
    outcome         text NOT NULL CHECK (outcome IN ('done', 'denied')),
    reason          text,
    request_id      text,
    idempotency_key text,
    client          text,
    detail          jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX audit_of_object ON holdfast.audit (object, id);
CREATE INDEX audit_of_actor ON holdfast.audit (actor, id);

CREATE FUNCTION holdfast.refuse_change_of_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit is only ever added to' USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE ON holdfast.audit
    FOR EACH ROW EXECUTE FUNCTION holdfast.refuse_change_of_audit();
CREATE TRIGGER audit_is_not_emptied BEFORE TRUNCATE ON holdfast.audit
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.refuse_change_of_audit();

-- What was answered to an Idempotency-Key, written in the transaction of the act.
CREATE TABLE holdfast.idempotency (
    actor       text NOT NULL,
    key         text NOT NULL,
    fingerprint bytea NOT NULL,                           -- of the method, the path and the body
    status      integer,
    headers     jsonb,
    body        jsonb,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (actor, key)
);
CREATE INDEX idempotency_expired ON holdfast.idempotency (expires_at);

-- One row per principal: the time at which its bucket is full again. Not worth a log: a crash forgives everybody.
CREATE UNLOGGED TABLE holdfast.rate_limits (
    key         text PRIMARY KEY,
    full_at     timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Values that may be changed while everything runs; a key that is not here has its default.
CREATE TABLE holdfast.config (
    key         text PRIMARY KEY,
    value       jsonb NOT NULL,
    version     integer NOT NULL DEFAULT 1,
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_by  text NOT NULL
);

-- Secret keys that all processes of one control plane share.
CREATE TABLE holdfast.secrets (
    name        text PRIMARY KEY,
    value       bytea NOT NULL
);
INSERT INTO holdfast.secrets (name, value)
VALUES ('cursor', decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'));
"""

DOWNGRADE = """
DROP TABLE holdfast.secrets, holdfast.config, holdfast.rate_limits, holdfast.idempotency, holdfast.audit, holdfast.tokens;
DROP FUNCTION holdfast.refuse_change_of_audit();
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
