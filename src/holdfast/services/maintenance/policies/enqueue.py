"""Enqueue the jobs of one policy, in one transaction with its next due time and the audit entry. Called by: the loop
`maintenance_policies`; the preview uses the same choice of tables.

The policy's row is locked, so a due time is acted on once. A table gets no second job while one of the policy waits or runs
(`choose`), and the slot of the policy and the table merges a trigger into a job that still waits: a late run never doubles.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row

from holdfast.api import audit
from holdfast.api.plane import Principal
from holdfast.crashpoints import crashpoint
from holdfast.services.maintenance import measures
from holdfast.services.maintenance.engines.interface import TableRef
from holdfast.services.maintenance.policies import store
from holdfast.services.maintenance.policies.choose import Choice, Known, Runs, choose
from holdfast.services.maintenance.policies.definition import Policy
from holdfast.services.maintenance.policies.due import is_open, next_run, opening_around
from holdfast.services.maintenance.run.request import OnSigterm, Wanted
from holdfast.services.maintenance.run.submit import submit
from holdfast.services.maintenance.tables import cache
from holdfast.telemetry.log import log

Conn = psycopg.AsyncConnection[Any]
ACTOR: Final = Principal("loop:maintenance_policies", "loop", None)
ACTION: Final = "maintenance_policies.run"


def is_due(stored: store.StoredPolicy, now: datetime) -> bool:
    """Whether a policy has to be looked at: its due time has come, or its tables' health decides. Pure."""
    policy = stored.policy
    if not policy.enabled:
        return False
    if policy.is_scheduled:
        return stored.next_due_at is None or stored.next_due_at <= now
    return is_open(policy, now)


async def run_policy(conn: Conn, name: str, *, engine: str, on_sigterm: OnSigterm) -> list[int]:
    """Enqueue what the policy wants now, and set its next due time. Call it in a transaction. Returns the jobs."""
    stored = await store.hold(conn, name)
    now = await store.clock(conn)
    if stored is None or not is_due(stored, now):
        return []
    policy, due = stored.policy, stored.next_due_at
    opening = opening_around(policy, due or now)
    following = next_run(policy, now, since=due) if policy.is_scheduled else None
    missed = policy.window is not None and (opening is None or opening.end <= now)
    if missed or (policy.is_scheduled and due is None):
        if missed:
            log.warning("maintenance_policy_missed", policy=name, due_at=str(due), now=str(now))
        await store.advance(conn, name, last=None, following=following)
        return []
    chosen = await choices(conn, policy, now)
    jobs: list[int] = []
    for choice in chosen:
        if choice.skipped is None:
            wanted = wanted_of(policy, choice.table, due, None if opening is None else opening.end, engine, on_sigterm)
            made = await submit(conn, wanted, requested_by=f"policy:{name}")
            jobs += [made.id] if made.created else []
    if policy.is_scheduled:
        await store.advance(conn, name, last=due, following=following)
    if jobs or policy.is_scheduled:
        await _note(conn, name, due, chosen, jobs)
    crashpoint("maintenance.policy.enqueued")
    return jobs


async def _note(conn: Conn, name: str, due: datetime | None, chosen: list[Choice], jobs: list[int]) -> None:
    """The audit entry and the log line."""
    skipped = {str(one.table): one.skipped for one in chosen if one.skipped is not None}
    tables = [str(one.table) for one in chosen if one.skipped is None]
    detail = {"due_at": None if due is None else due.isoformat(), "jobs": jobs, "tables": tables[:100]}
    await audit.write(conn, ACTOR, ACTION, f"maintenance-policy/{name}", detail=detail)
    measures.policy_jobs.inc(len(jobs))
    log.info("maintenance_policy_due", policy=name, due_at=str(due), jobs=jobs, skipped=len(skipped))


def wanted_of(
    policy: Policy, table: TableRef, due: datetime | None, not_after: datetime | None, engine: str, on_sigterm: OnSigterm
) -> Wanted:
    """The request of a policy for one table. It waits for the lock: somebody may maintain the table by hand. Pure."""
    return Wanted(
        table=table,
        actions=policy.actions,
        engine=policy.engine or engine,
        wait=True,
        on_sigterm=on_sigterm,
        policy=policy.name,
        due_at=due,
        not_after=not_after,
        permits=policy.max_parallel,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Choices
# ---------------------------------------------------------------------------------------------------------------------

RUNS = """
    SELECT catalog, namespace, name, min(job_id) FILTER (WHERE finished_at IS NULL), max(created_at)
    FROM holdfast.maintenance_runs WHERE policy = %(policy)s GROUP BY catalog, namespace, name
"""


async def choices(conn: Conn, policy: Policy, now: datetime) -> list[Choice]:
    """The tables that a policy matches at this moment. Changes nothing."""
    tables = [Known(row.ref, row.health) for row in await cache.every(conn)]
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(RUNS, {"policy": policy.name})
        runs = {TableRef(*row[:3]): Runs(*row[3:]) for row in await cursor.fetchall()}
    return choose(policy, tables, runs, now)
