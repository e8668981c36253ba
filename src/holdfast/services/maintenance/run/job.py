"""`maintenance.run`: the actions of one table, one after the other in a fixed order, under the lock of the table.

A completed action is recorded at once and never repeated: an attempt that follows a crash, a release or a retry goes on with
the first action that is not completed. An action that fails does not keep the others from running; then the job has failed in
part.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from holdfast.crashpoints import crashpoint
from holdfast.errors import ClaimLost, ShutdownRequested
from holdfast.jobs.outcome import Backoff, Done, Fail, Retry, RetryPolicy, Snooze
from holdfast.services.maintenance import measures
from holdfast.services.maintenance.engines.interface import (
    Action,
    ActionResult,
    Engine,
    MaintenanceError,
    TableRef,
    parse_actions,
)
from holdfast.services.maintenance.engines.limits import planner_of
from holdfast.services.maintenance.run import record, remote
from holdfast.services.maintenance.run.record import Failure
from holdfast.services.maintenance.run.request import KIND, OnSigterm
from holdfast.services.maintenance.run.watch import ShuttingDown, Watched, is_about_the_job
from holdfast.services.maintenance.setup import Maintenance, NoTurn, maintenance_here
from holdfast.telemetry.error_text import error_text
from holdfast.telemetry.log import log
from holdfast.worker.context import Context
from holdfast.worker.kinds import job

RETRY = RetryPolicy(Backoff(first=timedelta(seconds=10), longest=timedelta(minutes=10)))
COMES_BACK = Backoff(first=timedelta(seconds=5), longest=timedelta(minutes=1))
RELEASED = "the worker received SIGTERM; the job continues on another one"

Outcome = Done | Fail | Retry | Snooze


@job(KIND, retry=RETRY, extra="maintenance", public=False)
async def run(
    ctx: Context,
    catalog: str,
    namespace: str,
    name: str,
    actions: list[dict[str, Any]],
    engine: str,
    dry_run: bool = False,
    on_sigterm: OnSigterm = "release",
) -> Outcome:
    """Maintain a table: rewrite data files, rewrite manifests, expire snapshots, remove orphan files, compute statistics."""
    here = maintenance_here()
    table = TableRef(catalog, namespace, name)
    try:
        async with here.turn():
            return await _maintain(ctx, here, table, engine, parse_actions(actions), dry_run=dry_run)
    except NoTurn as busy:
        return Snooze(COMES_BACK.delay(ctx.job.attempt_no - 1, random.random()), str(busy))  # noqa: S311 - no secret
    except ShuttingDown:
        log.warning("maintenance_stopped_for_shutdown", job_id=ctx.job.id, table=str(table), on_sigterm=on_sigterm)
        if on_sigterm == "fail":
            raise ShutdownRequested(ctx.job.id) from None
        return Snooze(timedelta(0), RELEASED)


async def _maintain(
    ctx: Context, here: Maintenance, table: TableRef, engine_name: str, actions: list[Action], *, dry_run: bool
) -> Outcome:
    """Every action that is not completed yet, then the outcome of the job."""
    watched = Watched(ctx)
    engine = await here.engine(engine_name, ctx.connection)
    await remote.stop_earlier_work(ctx, engine, watched)
    run = Run(ctx, here, watched, engine, table, dry_run, total=len(actions))
    async with ctx.connection() as conn:
        done = await record.statuses(conn, ctx.job)
    try:
        if not dry_run:
            await remote.announce(ctx, engine, watched)
        for position, action in enumerate(actions, 1):
            if done.get(position) != "completed":
                await ctx.checkpoint()
                await run.act(position, action)
    finally:
        await remote.release(engine, watched)
    async with ctx.connection() as conn:
        found = await record.results(conn, ctx.job)
    return outcome_of(table, found, may_work_later=run.transient)


@dataclass(slots=True)
class Run:
    """One attempt at the actions of a table."""

    ctx: Context
    here: Maintenance
    watched: Watched
    engine: Engine
    table: TableRef
    dry_run: bool
    total: int
    transient: bool = field(default=False)  # an action failed in a way that may work later

    async def act(self, position: int, action: Action) -> None:
        """Run one action and record its end. Errors of the action are recorded; those of the job are raised."""
        started = time.monotonic()
        try:
            if not await self._begin(position, action):
                return
            result = await self.watched.call(await self._work(action), share=partial(self._share, position))
        except BaseException as error:
            if is_about_the_job(error) or not isinstance(error, Exception):
                await self._note_part(position)
                raise
            await self._failed(position, action, started, error)
            return
        crashpoint("maintenance.action.done")
        await self._completed(position, action, result)
        crashpoint("maintenance.action.recorded")

    async def _begin(self, position: int, action: Action) -> bool:
        """Record that the action begins, with the figures of the table; False: its window is over."""
        before = await self.watched.call(self.engine.stats, self.table)
        about = {"job_id": self.ctx.job.id, "table": str(self.table), "action": action.name}
        async with self.ctx.connection() as conn:
            begins = await record.begin(conn, self.ctx.job, position, before)
        if begins:
            log.info("maintenance_action_started", **about)
            crashpoint("maintenance.action.started")
        else:
            log.info("maintenance_action_skipped", **about)
        return begins

    async def _work(self, action: Action) -> Callable[[], ActionResult]:
        if self.dry_run:
            name = planner_of(self.engine.name, action, embedded=self.here.embeds(self.table.catalog))
            planner = self.engine if name == self.engine.name else await self.here.engine(name, self.ctx.connection)
            return partial(planner.plan, self.table, action)
        watched = self.watched
        run = partial(self.engine.run, self.table, action, watched.fence)
        return partial(run, progress=watched.report, cancelled=watched.is_cancelled)

    def _share(self, position: int, done: float) -> float:
        return (position - 1 + done) / self.total

    async def _completed(self, position: int, action: Action, result: ActionResult) -> None:
        async with self.ctx.connection() as conn:
            await record.finish(
                *(conn, self.ctx.job, position), status="completed", result=result, engine_seconds=result.engine_seconds
            )
        measures.actions.labels(action.name, "completed").inc()
        measures.action_seconds.labels(action.name).observe(result.engine_seconds)
        figures = {f"figure_{name}": value for name, value in result.details.items() if isinstance(value, (int, float, str))}
        log.info(
            "maintenance_action_completed",
            job_id=self.ctx.job.id,
            table=str(self.table),
            action=action.name,
            engine_seconds=round(result.engine_seconds, 3),
            **figures,
        )

    async def _note_part(self, position: int) -> None:
        """Keep what a stopped action has committed. If the claim is lost, the next attempt measures again."""
        part = self.watched.done_in_part
        if part is None:
            return
        with contextlib.suppress(ClaimLost):
            async with self.ctx.connection() as conn:
                await record.finish(
                    *(conn, self.ctx.job, position), status="running", result=part, engine_seconds=part.engine_seconds
                )

    async def _failed(self, position: int, action: Action, started: float, error: Exception) -> None:
        code = error.code if isinstance(error, MaintenanceError) else type(error).__name__
        self.transient = self.transient or not isinstance(error, MaintenanceError) or error.transient
        failure = Failure(code, error_text(error))
        async with self.ctx.connection() as conn:
            await record.finish(
                *(conn, self.ctx.job, position), status="failed", engine_seconds=time.monotonic() - started, failure=failure
            )
        measures.actions.labels(action.name, "failed").inc()
        log.error(
            "maintenance_action_failed",
            job_id=self.ctx.job.id,
            table=str(self.table),
            action=action.name,
            code=code,
            error=failure.message,
            exc_info=error,
        )


def outcome_of(table: TableRef, found: list[dict[str, Any]], *, may_work_later: bool) -> Outcome:
    """The outcome of the job from those of its actions: failed if one failed, whatever the others did. Pure."""
    failed = [one for one in found if one["status"] == "failed"]
    if not failed:
        return Done({"table": str(table), "actions": found, "partial": any(one["status"] != "completed" for one in found)})
    completed = [one["action"] for one in found if one["status"] == "completed"]
    said = "; ".join(f"{one['action']}: {one['error']}" for one in failed)
    kept = f" (completed: {', '.join(completed)})" if completed else ""
    reason = f"{len(failed)} of {len(found)} actions failed{kept}: {said}"
    return Retry(reason) if may_work_later else Fail(reason)
