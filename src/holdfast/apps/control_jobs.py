"""The control plane's own jobs. Run by: `holdfast serve`, beside the API, and `--dsn` without it."""

from __future__ import annotations

from typing import Any

from holdfast.jobs import bulk
from holdfast.jobs.bulk import BulkAction, Tally
from holdfast.worker.context import Context
from holdfast.worker.kinds import job
from holdfast.worker.loop import Worker
from holdfast.worker.options import WorkerOptions


@job(bulk.KIND, queue=bulk.QUEUE, max_attempts=10, max_crashes=10, public=False)
async def act_in_bulk(
    ctx: Context, action: str, filter: dict[str, Any], matched: int, newest: int, actor: str, reason: str
) -> dict[str, Any]:
    """Do one act to every job that a filter finds, in bites, and say how far it is after each."""
    tally, more = Tally(), True
    while more:
        async with ctx.connection() as conn:
            more = await bulk.run_batch(conn, BulkAction(action), filter, tally, newest=newest, actor=actor, reason=reason)
        seen = tally.done + tally.failed
        await ctx.progress(min(1.0, seen / max(matched, 1)), f"{seen} of {matched}")
    return {"done": tally.done, "failed": tally.failed, "failures": tally.failures}


async def run_until_empty(url: str) -> None:
    """Run these jobs in this process until there are none left."""
    worker = Worker(url, [act_in_bulk], WorkerOptions(queues=(bulk.QUEUE,), runner="in process"))
    await worker.run(until_empty=True)
