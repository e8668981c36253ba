"""An API and a schema of another version: ready as long as this code has what it needs."""

from __future__ import annotations

from typing import Any

import psycopg

from holdfast.database import revision


def newer(url: str, oldest: str) -> None:
    """The schema after the migrations of a version that does not exist yet."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("UPDATE holdfast.alembic_version SET version_num = '9999'")
        conn.execute(f"COMMENT ON TABLE holdfast.alembic_version IS 'oldest code: {oldest}'".encode())


async def test_api_stays_ready_during_a_rollout(as_role: Any, app: Any, database: str) -> None:
    """Otherwise all replicas would be taken out of the Service as soon as the migration has run."""
    app.state.plane.wanted_revision = revision.wanted()
    caller = await as_role(None)
    assert (await caller.get("/ready")).status_code == 200

    newer(database, revision.wanted())
    assert (await caller.get("/ready")).status_code == 200

    newer(database, "9000")
    refused = await caller.get("/ready")
    assert refused.status_code == 503
    assert "this code is older" in refused.json()["detail"]
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("UPDATE holdfast.alembic_version SET version_num = %s", [revision.wanted()])
        conn.execute(f"COMMENT ON TABLE holdfast.alembic_version IS 'oldest code: {revision.wanted()}'".encode())
