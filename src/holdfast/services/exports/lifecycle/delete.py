"""Delete what has expired: a mapping in one transaction, a snapshot in two with the removal of its files between them.

A snapshot is marked, its files go first and its row last. Whatever stops it in between (a crash, a store that fails), the row
stays, marked, and the next pass goes on with it; removing files twice does no harm. With the row first, the only record of the
files would be gone.
"""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.crashpoints import crashpoint
from holdfast.errors import UsageError
from holdfast.schedule.context import Pass
from holdfast.services.exports import measures
from holdfast.services.exports.export.remove import remove_place
from holdfast.services.exports.lifecycle import mappings, snapshots
from holdfast.services.exports.stores.paths import location_of
from holdfast.telemetry.log import log

LONGEST_REMOVAL: Final = 300.0  # seconds for the files of one snapshot; the next pass goes on with the rest


async def delete_snapshot(ctx: Pass, snapshot_id: int) -> bool:
    """Delete a snapshot that has expired; False if by now it has not, or is gone."""
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
    """Remove everything at the place of a snapshot. A place that is not the snapshot's own folder is left alone."""
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
    """Delete a mapping that has expired; False if by now it has not, or is in use, or is gone."""
    async with ctx.transaction() as conn:
        return await mappings.remove_row(conn, mapping_id)
