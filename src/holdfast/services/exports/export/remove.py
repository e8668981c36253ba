"""`exports.remove`: the files of a snapshot that was deleted. A job, so that it is tried until they are gone."""

from __future__ import annotations

from holdfast.services.exports.snapshots.steer import REMOVE_KIND
from holdfast.services.exports.stores.opening import open_store
from holdfast.services.exports.stores.paths import location_of
from holdfast.settings import settings
from holdfast.worker.context import Context
from holdfast.worker.kinds import job


@job(REMOVE_KIND, max_attempts=10)
async def remove(ctx: Context, places: list[str]) -> dict[str, int]:
    """Remove everything below these places; what is gone already is gone."""
    files = 0
    for number, place in enumerate(places):
        location = location_of(place)
        above, _, folder = location.prefix.rpartition("/")
        store = open_store(location._replace(prefix=above), settings())
        try:
            await ctx.progress(number / len(places), f"removing {folder}")
            files += await store.delete_prefix(folder)
        finally:
            await store.close()
    return {"places": len(places), "files": files}
