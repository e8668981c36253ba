"""Work in remote engines: recorded before it is started, looked up and stopped before a rerun, and cleaned up after the job.

The attempt's tag is on every statement that the engine gets. An attempt that finds the work of an earlier one stops it first:
two attempts must never rewrite the same table at the same time.
"""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.crashpoints import crashpoint
from holdfast.jobs.effects import Effect
from holdfast.services.maintenance.engines.interface import Engine
from holdfast.services.maintenance.run.watch import Watched
from holdfast.services.maintenance.setup import Maintenance, maintenance_here
from holdfast.telemetry.log import log
from holdfast.threads import in_thread
from holdfast.worker.context import Context
from holdfast.worker.kinds import cleaner

EFFECT: Final = "maintenance.remote_work"
RELEASE_WITHIN: Final = 0.5  # seconds: the attempt may have to end within 2 s
EMBEDDED: Final = frozenset({"pyiceberg"})  # runs in the worker: it ends with its process


async def stop_earlier_work(ctx: Context, engine: Engine, watched: Watched) -> None:
    """Stop what earlier attempts of this job have started and what still runs."""
    for effect in await ctx.left_behind():
        if effect.kind == EFFECT:
            await watched.call(_stop, engine, effect, ctx.job.id)


async def announce(ctx: Context, engine: Engine, watched: Watched) -> None:
    """Record that this attempt may start remote work, before it does, and the reference by which the work is found.

    The record is unwanted when the job ends, whatever its end.
    """
    if engine.name in EMBEDDED:
        return
    detail = {"engine": engine.name}
    async with ctx.effect(EFFECT, tag=watched.fence.tag, detail=detail, temporary=True, adoptable=True) as effect:
        effect.made({"work": await watched.call(engine.begin, watched.fence.tag)})
    crashpoint("maintenance.remote.announced")


async def release(engine: Engine, watched: Watched) -> None:
    """Tell the engine that this attempt is over. It gets `RELEASE_WITHIN`: what it leaves, the effects ledger stops."""
    if engine.name in EMBEDDED:
        return
    ending = asyncio.ensure_future(in_thread(engine.end, watched.fence.tag))
    await asyncio.wait({ending}, timeout=RELEASE_WITHIN)
    if not ending.done():
        ending.cancel()
    elif not ending.cancelled() and (error := ending.exception()) is not None:
        log.warning("maintenance_remote_work_not_released", tag=watched.fence.tag, engine=engine.name, error=str(error))


def _stop(engine: Engine, effect: Effect, job_id: int) -> None:
    """Stop the work of this effect, if there is any, and return when it has stopped. Blocks."""
    recorded = effect.handle if isinstance(effect.handle, dict) else {}
    handle = engine.find(recorded.get("work", effect.tag))
    if handle is None:
        return
    shown = handle.partition(".")[0]  # what follows is the secret of a session
    about = {"job_id": job_id, "engine": engine.name, "tag": effect.tag, "handle": shown}
    log.warning("maintenance_remote_work_found", **about)
    engine.stop(handle)
    log.warning("maintenance_remote_work_stopped", **about)


@cleaner(EFFECT)
async def stop_unwanted(effect: Effect) -> bool:
    """Stop the remote work of a job that failed or was cancelled. Called by: the loop `effects`."""
    here: Maintenance = maintenance_here()
    engine = await here.remote_engine(effect.detail["engine"])
    await in_thread(_stop, engine, effect, effect.job_id)
    return True
