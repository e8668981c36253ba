"""Failures: failed jobs grouped by kind, cause and error, with the hours in which they failed."""

from __future__ import annotations

from holdfast.console.view import Shown, View
from holdfast.console.views.failures import NEWEST, group_failures, read_traceback


async def show(view: View) -> Shown:
    """The groups, the latest first; one of them open with its traceback."""
    groups = await group_failures(view.conn)
    chosen = next((group for group in groups if group.fingerprint == view.given("group")), None)
    traceback = None if chosen is None else await read_traceback(view.conn, chosen.newest[0])
    return Shown("failures.html", {"groups": groups, "chosen": chosen, "traceback": traceback, "cap": NEWEST})
