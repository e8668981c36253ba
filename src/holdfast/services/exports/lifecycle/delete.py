"""Delete expired mappings in one transaction, and snapshots in two, with the removal of their files in between.

A snapshot is marked, then its files are removed, then its row. If a crash or an error of the store interrupts this, the marked
row stays, and the next pass continues; removing files twice does no harm. If the row were deleted first, the only record of the
files would be lost.
"""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.crashpoints import crashpoint
from holdfast.errors import UsageError
from holdfast.schedule.context import Pass
from holdfast.services.exports import measures
from holdfast.services.exports.lifecycle import mappings, snapshots
from holdfast.services.exports.snapshots.remove import remove_place
from holdfast.stores.paths import location_of
from holdfast.telemetry.log import log

LONGEST_REMOVAL: Final = 300.0  # seconds for the files of one snapshot; the next pass continues


async def delete_snapshot(ctx: Pass, snapshot_id: int) -> bool:
    """Delete an expired snapshot; False if it was deleted, or has not expired any more."""
    async with ctx.transaction() as conn:
        location = await snapshots.mark(conn, snapshot_id)
    if location is None:
        return False
    crashpoint("lifecycle.marked")
    ctx.check()
    await _remove_files(snapshot_id, location)
    crashpoint("lifecycle.files_removed")
    async with ctx.transaction() as conn:
        return await snapshots.remove_row(conn, snapshot_id)


async def _remove_files(snapshot_id: int, location: str) -> None:
    """Remove all files of a snapshot. Raises if the location is not the folder of this snapshot."""
    try:
        if location_of(location).prefix.rpartition("/")[2] != str(snapshot_id):
            raise UsageError(f"{location} is not the folder of snapshot {snapshot_id}; correct its location")
        async with asyncio.timeout(LONGEST_REMOVAL):
            await remove_place(location)
    except Exception as error:
        measures.cleanup_failures.inc()
        log.error("snapshot_cleanup_failed", snapshot_id=snapshot_id, location=location, error=str(error) or repr(error))
        raise


async def delete_mapping(ctx: Pass, mapping_id: int) -> bool:
    """Delete an expired mapping; False if it was deleted, is in use, or has not expired any more."""
    async with ctx.transaction() as conn:
        return await mappings.remove_row(conn, mapping_id)
