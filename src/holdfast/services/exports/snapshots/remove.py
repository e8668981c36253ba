"""`exports.remove`: remove the files of a deleted snapshot. It is a job so that it is retried until they are gone.

The location is in the effects ledger, written by the transaction that deleted the snapshot, and never in the payload: a job of
this kind that comes from anywhere else removes nothing.
"""

from __future__ import annotations

from holdfast.jobs.effects import Effect
from holdfast.services.exports.setup import exports_here
from holdfast.services.exports.snapshots.change import FILES_EFFECT, REMOVE_KIND
from holdfast.stores.opening import opened_store
from holdfast.stores.paths import location_of
from holdfast.worker.context import Context
from holdfast.worker.kinds import cleaner, job


@job(REMOVE_KIND, max_attempts=10, public=False)
async def remove(ctx: Context, snapshot_id: int) -> dict[str, int]:
    """Remove the locations that the ledger has for this job."""
    files = 0
    places = [effect for effect in await ctx.left_behind() if effect.kind == FILES_EFFECT]
    for number, place in enumerate(places):
        await ctx.progress(number / len(places), f"removing the files of snapshot {snapshot_id}")
        files += await remove_place(place.detail["to"])
    return {"places": len(places), "files": files}


@cleaner(FILES_EFFECT)
async def confirm_removed(effect: Effect) -> bool:
    """Remove the files again after the job has ended: it may have failed or been cancelled."""
    await remove_place(effect.detail["to"])
    return True


async def remove_place(to: str) -> int:
    """Remove everything at this location; the number of files."""
    location = location_of(to)
    above, _, folder = location.prefix.rpartition("/")
    async with opened_store(location._replace(prefix=above), exports_here().stores) as store:
        return await store.delete_prefix(folder)
