"""The SQL that the documents give to autoscalers and to people, word for word, as a role that may only read."""

from __future__ import annotations

from typing import Any

import httpx2

from export_factories import mapping
from factories import add, hold, rows, silence, submit, take

Client = httpx2.AsyncClient
EXPORTS_WAITING = "SELECT COUNT(*) FROM export_jobs WHERE status = 'pending'"
QUEUE_DEPTH = "SELECT COUNT(*) FROM job_queue WHERE claimed_at IS NULL AND visible_at <= NOW()"
STALE = "SELECT * FROM export_jobs WHERE status = 'submitted' AND updated_at < NOW() - INTERVAL '30 minutes'"
CREATING = """SELECT s.id, s.status, COUNT(e.id) as job_count
FROM snapshots s
LEFT JOIN export_jobs e ON s.id = e.snapshot_id
WHERE s.status = 'creating'
GROUP BY s.id;"""
SUBMITTED = """
    UPDATE holdfast.jobs SET submitted_at = clock_timestamp() - make_interval(mins => %s),
        created_at = clock_timestamp() - interval '1 hour', claimed_at = clock_timestamp() - interval '1 hour'
    WHERE id = %s
"""
AS_READER = """
    CREATE ROLE {role};
    GRANT USAGE ON SCHEMA holdfast TO {role};
    GRANT SELECT ON holdfast.export_jobs, holdfast.job_queue, holdfast.snapshots TO {role};
    SET search_path = holdfast;
    SET ROLE {role}
"""


async def test_the_documents_queries_run_unchanged(ops: Client, conn: Any, connect: Any, database: str) -> None:
    """B-01: with `search_path = holdfast`, and no right to read the jobs themselves."""
    made = (await ops.post("/api/mappings", json=mapping())).json()["data"]
    snapshot = (await ops.post("/api/snapshots", json={"mapping_id": made["id"]})).json()["data"]
    role = f"reader_{conn.info.dbname}"
    reader = await connect()
    for statement in AS_READER.format(role=role).split(";"):
        await reader.execute(statement)
    try:
        assert await rows(reader, EXPORTS_WAITING) == await rows(reader, QUEUE_DEPTH) == [(3,)]

        claim = await take(conn, snapshot["exports"][0]["id"])
        silent = await hold(conn, "other.kind")
        await silence(conn, silent)
        await add(conn, "a.kind")

        assert await rows(reader, EXPORTS_WAITING) == [(2,)]
        assert await rows(reader, QUEUE_DEPTH) == [(4,)], "two exports, one that waits, one whose worker is gone"
        assert await rows(reader, CREATING) == [(snapshot["snapshot"]["id"], "creating", 3)]
        assert await rows(reader, "SELECT attempt_count FROM job_queue WHERE job_id = %s", claim.id) == [(1,)]
        assert await rows(reader, STALE) == []
        await submit(conn, claim)
        await conn.execute(SUBMITTED, [29, claim.id])
        assert await rows(reader, STALE) == []
        await conn.execute(SUBMITTED, [31, claim.id])
        assert [row[0] for row in await rows(reader, STALE)] == [claim.id], "the last change counts"
    finally:
        await reader.execute("RESET ROLE")
        await reader.execute(f"DROP OWNED BY {role}")
        await reader.execute(f"DROP ROLE {role}")
