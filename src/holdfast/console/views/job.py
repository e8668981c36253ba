"""What belongs to one job: its effects, its locks, the worker that holds it, its parents and its children."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

MOST = 100

# Without the handle: it may have a secret of the external engine.
EFFECTS = f"""
    SELECT kind, tag, state, error, gone_at FROM holdfast.effects
    WHERE job_id = %(id)s ORDER BY id LIMIT {MOST}
"""
LOCKS = f"""
    SELECT w.key, w.most, w.waiting, h.taken_at, h.job_id IS NOT NULL AS held,
           (SELECT o.job_id FROM holdfast.lock_holders o WHERE o.key = w.key AND o.job_id <> w.job_id ORDER BY o.permit LIMIT 1)
               AS other
    FROM holdfast.lock_wants w LEFT JOIN holdfast.lock_holders h ON h.key = w.key AND h.job_id = w.job_id
    WHERE w.job_id = %(id)s ORDER BY w.key LIMIT {MOST}
"""
WORKER = """
    SELECT w.id::text, w.name, w.host, w.pid, w.pod, w.version, w.git_sha, w.beat_at, w.lease_until, w.stopped_at,
           w.lease_until > clock_timestamp() AS alive
    FROM holdfast.jobs j JOIN holdfast.workers w ON w.id = j.worker_id WHERE j.id = %(id)s
"""
FAMILY = f"""
    (SELECT 'waited for' AS role, p.id, p.kind, p.state FROM holdfast.dependencies d JOIN holdfast.jobs p ON p.id = d.parent_id
     WHERE d.job_id = %(id)s ORDER BY p.id LIMIT {MOST})
    UNION ALL
    (SELECT 'made by', p.id, p.kind, p.state FROM holdfast.jobs j JOIN holdfast.jobs p ON p.id = j.parent_id
     WHERE j.id = %(id)s)
    UNION ALL
    (SELECT 'made', c.id, c.kind, c.state FROM holdfast.jobs c WHERE c.parent_id = %(id)s ORDER BY c.id LIMIT {MOST})
"""


@dataclass(frozen=True, slots=True)
class Belongings:
    """What belongs to a job."""

    effects: list[dict[str, Any]]
    locks: list[dict[str, Any]]
    worker: dict[str, Any] | None
    family: list[dict[str, Any]]


async def read_belongings(conn: psycopg.AsyncConnection[Any], job_id: int) -> Belongings:
    """Four short statements."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        found = []
        for statement in (EFFECTS, LOCKS, WORKER, FAMILY):
            await cursor.execute(statement, {"id": job_id})
            found.append(await cursor.fetchall())
    effects, locks, workers, family = found
    return Belongings(effects, locks, workers[0] if workers else None, family)
