"""Work in remote engines: recorded before it is started, looked up and stopped before a rerun, and cleaned up after the job.

The attempt's tag is on every statement that the engine gets. An attempt that finds the work of an earlier one stops it first:
two attempts must never rewrite the same table at the same time.
"""

from __future__ import annotations

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
EMBEDDED: Final = frozenset({"pyiceberg"})  # runs in the worker: it ends with its process


async def stop_earlier_work(ctx: Context, engine: Engine, watched: Watched) -> None:
    """Stop what earlier attempts of this job have started and what still runs."""
    for effect in await ctx.left_behind():
        if effect.kind == EFFECT:
            await watched.call(_stop, engine, effect.tag, ctx.job.id)


async def announce(ctx: Context, engine: Engine, watched: Watched) -> None:
    """Record that this attempt may start remote work, before it does. Unwanted when the job ends, whatever its end."""
    if engine.name in EMBEDDED:
        return
    detail = {"engine": engine.name}
    async with ctx.effect(EFFECT, tag=watched.fence.tag, detail=detail, temporary=True, adoptable=True) as effect:
        effect.made({"tag": watched.fence.tag})
    crashpoint("maintenance.remote.announced")


def _stop(engine: Engine, tag: str, job_id: int) -> None:
    """Stop the work under this tag, if there is any, and return when it has stopped. Blocks."""
    handle = engine.find(tag)
    if handle is None:
        return
    about = {"job_id": job_id, "engine": engine.name, "tag": tag, "handle": handle}
    log.warning("maintenance_remote_work_found", **about)
    engine.stop(handle)
    log.warning("maintenance_remote_work_stopped", **about)


@cleaner(EFFECT)
async def stop_unwanted(effect: Effect) -> bool:
    """Stop the remote work of a job that failed or was cancelled. Called by: the loop `effects`."""
    here: Maintenance = maintenance_here()
    engine = await here.remote_engine(effect.detail["engine"])
    await in_thread(_stop, engine, effect.tag, effect.job_id)
    return True
