"""`exports.remove`: the files of a snapshot that was deleted. A job, so that it is tried until they are gone.

Which files that are stands in the ledger, written with the job by the transaction that deleted the snapshot, and never in
a payload: whoever managed to enqueue this kind would have said nothing about what to remove.
"""

from __future__ import annotations

from holdfast.jobs.effects import Effect
from holdfast.services.exports.snapshots.steer import FILES_EFFECT, REMOVE_KIND
from holdfast.services.exports.stores.opening import opened
from holdfast.services.exports.stores.paths import location_of
from holdfast.settings import settings
from holdfast.worker.context import Context
from holdfast.worker.kinds import cleaner, job


@job(REMOVE_KIND, max_attempts=10, public=False)
async def remove(ctx: Context, snapshot_id: int) -> dict[str, int]:
    """Remove what the ledger names of this snapshot; what is gone already is gone."""
    files = 0
    places = [effect for effect in await ctx.left_behind() if effect.kind == FILES_EFFECT]
    for number, place in enumerate(places):
        await ctx.progress(number / len(places), f"removing the files of snapshot {snapshot_id}")
        files += await remove_place(place.detail["to"])
    return {"places": len(places), "files": files}


@cleaner(FILES_EFFECT)
async def confirm_removed(effect: Effect) -> bool:
    """Once more when the job has ended, however it did: it may have failed, or somebody cancelled it."""
    await remove_place(effect.detail["to"])
    return True


async def remove_place(to: str) -> int:
    """Remove everything at this place; how many files that were."""
    location = location_of(to)
    above, _, folder = location.prefix.rpartition("/")
    async with opened(location._replace(prefix=above), settings()) as store:
        return await store.delete_prefix(folder)
