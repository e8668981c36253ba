"""The loop `maintenance_policies`: finds the policies that are due, and enqueues the jobs of each in one transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import psycopg

from holdfast.errors import Draining
from holdfast.schedule.context import Pass
from holdfast.schedule.items import act_on_each
from holdfast.schedule.registry import Result
from holdfast.services.maintenance.policies import store
from holdfast.services.maintenance.policies.enqueue import is_due, run_policy
from holdfast.services.maintenance.run.submit import refuse_while_draining
from holdfast.services.maintenance.setup import maintenance_here

NAME: Final = "maintenance_policies"
EVERY: Final = timedelta(seconds=30)
Conn = psycopg.AsyncConnection[Any]


async def enqueue_due(ctx: Pass) -> Result:
    """One pass over all policies."""
    here = maintenance_here()
    async with ctx.connection() as conn:
        stored = await store.listed(conn, limit=10_000)
        now = await store.clock(conn)
    due = [one.name for one in stored if is_due(one, now)]
    if due and await _is_draining(ctx):
        return Result(skipped=len(due))
    made: list[int] = []

    async def act(conn: Conn, name: str) -> None:
        made.extend(await run_policy(conn, name, engine=here.default_engine, on_sigterm=here.on_sigterm))

    acted = await act_on_each(ctx, due, act)
    return Result(len(made), len(acted.failed), fields={"policies": len(due), "jobs": len(made)})


async def _is_draining(ctx: Pass) -> bool:
    """Whether new jobs are refused: what is due stays due until they are accepted again."""
    try:
        async with ctx.connection() as conn:
            await refuse_while_draining(conn)
    except Draining:
        return True
    return False
