"""The periodic loops as the API sees them: the scheduler's rows behind the API's `Loops`. Made by: `apps/api.py`.

The two do not import each other; here they meet.
"""

from __future__ import annotations

from typing import Any

import psycopg

from holdfast.api.periodic import LoopRun, LoopShown, Triggered
from holdfast.schedule import read, steer
from holdfast.schedule.read import LoopView, RunView

Conn = psycopg.AsyncConnection[Any]


class ScheduledLoops:
    """Every loop that a scheduler on this database has registered."""

    async def all(self, conn: Conn) -> list[LoopShown]:
        return [_shown(loop) for loop in await read.list_loops(conn)]

    async def runs(self, conn: Conn, name: str, *, limit: int, before: int | None) -> list[LoopRun]:
        await read.get_loop(conn, name)
        return [_run(run) for run in await read.list_runs(conn, name, limit=limit, before=before)]

    async def trigger(self, conn: Conn, name: str, *, actor: str, reason: str) -> Triggered:
        queued = await steer.trigger(conn, name, actor=actor, reason=reason)
        return Triggered(
            job_name=name,
            status="queued",
            triggered_at=queued.triggered_at,
            triggered_by=actor,
            reason=reason,
            run_id=queued.run_id,
        )

    async def pause(self, conn: Conn, name: str, *, actor: str, reason: str) -> LoopShown:
        await steer.pause(conn, name, actor=actor, reason=reason)
        return _shown(await read.get_loop(conn, name))

    async def resume(self, conn: Conn, name: str) -> LoopShown:
        await steer.resume(conn, name)
        return _shown(await read.get_loop(conn, name))


def _shown(loop: LoopView) -> LoopShown:
    return LoopShown(**read.loop_fields(loop))


def _run(run: RunView) -> LoopRun:
    return LoopRun(
        id=run.id,
        job_name=run.name,
        trigger=run.trigger,
        outcome=run.outcome,
        due_at=run.due_at,
        started_at=run.started_at,
        finished_at=run.finished_at,
        actor=run.actor,
        reason=run.reason,
        error=run.error,
        items=run.items,
        failed_items=run.failed_items,
    )
