"""Snapshots: the list, and one snapshot with the progress of each node and edge."""

from __future__ import annotations

from typing import Final

from holdfast.api.problems import Problem
from holdfast.console.view import Shown, View
from holdfast.services.exports.api.snapshots import visible
from holdfast.services.exports.snapshots import read
from holdfast.services.exports.snapshots.states import OPEN, SnapshotState

LENGTH: Final = 50


async def show_list(view: View) -> Shown:
    """Snapshots, newest first."""
    status = view.given("status") or None
    if status not in (None, *SnapshotState):
        raise Problem("invalid-request", f"no status {status!r}; there are: {', '.join(SnapshotState)}")
    found = await read.listed(view.conn, limit=LENGTH, before=view.number("before"), status=status)
    shown = found[:LENGTH]
    values = {
        "snapshots": shown,
        "status": status,
        "statuses": list(SnapshotState),
        "older": view.here(before=shown[-1].id) if len(found) > LENGTH else None,
        "newest": view.here(before=None) if view.number("before") else None,
    }
    return Shown("snapshots.html", values)


async def show_one(view: View) -> Shown:
    """One snapshot. Looking at it in the console does not count as a use."""
    snapshot = await read.get(view.conn, view.path_number("snapshot_id"))
    exports = [visible(one, snapshot.owner, view.caller) for one in await read.exports_of(view.conn, snapshot.id)]
    values = {
        "snapshot": snapshot,
        "exports": exports,
        "progress": read.progress_of(exports),
        "is_open": SnapshotState(snapshot.status) in OPEN,
    }
    return Shown("snapshot.html", values, title=snapshot.name)
