"""`graphs.remove`: remove the graph server of an instance; for a deletion also its row, last. And the cleaner of graph servers.

It is done when the runtime confirms that nothing is left. Until then the job is tried again.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg

from holdfast.crashpoints import crashpoint
from holdfast.jobs.effects import Effect
from holdfast.jobs.outcome import Backoff, Done, RetryPolicy, Snooze
from holdfast.services.graphs.instances import delete
from holdfast.services.graphs.instances.jobs import REMOVE_KIND, SERVER_EFFECT, Purpose
from holdfast.services.graphs.runtimes.interface import Unknown
from holdfast.services.graphs.setup import graphs_here
from holdfast.worker.context import Context
from holdfast.worker.kinds import cleaner, job

RETRY = RetryPolicy(Backoff(timedelta(seconds=1), timedelta(seconds=60)))


@job(REMOVE_KIND, retry=RETRY, public=False, locks=["graph:{instance_id}"], max_attempts=20)
async def remove(ctx: Context, instance_id: int, purpose: Purpose, start_token: str | None = None) -> Done | Snooze:
    """Remove the graph server of an instance, and for a deletion its row."""
    crashpoint("graphs.before_remove")
    await ctx.checkpoint()
    try:
        is_gone = await graphs_here().runtime.remove(instance_id, start_token=start_token)
    except Unknown as error:
        return Snooze(timedelta(seconds=error.retry_after or 2.0), str(error))
    if not is_gone:
        return Snooze(timedelta(seconds=0.5), "the runtime has not confirmed the removal yet")
    crashpoint("graphs.after_remove")
    if purpose == "suspend":
        return Done({"instance_id": instance_id})

    async def publish(conn: psycopg.AsyncConnection[Any]) -> None:
        await delete.remove_row(conn, instance_id)

    return Done({"instance_id": instance_id}, publish=publish)


@cleaner(SERVER_EFFECT)
async def confirm_removed(effect: Effect) -> bool:
    """Remove the graph server of a start that failed or was cancelled, or of an instance that was deleted."""
    given = effect.detail
    return await graphs_here().runtime.remove(given["instance_id"], start_token=given["start_token"])
