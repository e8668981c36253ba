"""Workers: what each can run and holds, its heartbeat, version and commit; a warning if they run different code."""

from __future__ import annotations

from typing import Final

from holdfast.console.view import Shown, View
from holdfast.jobs.views.workers import list_workers

LENGTH: Final = 100


async def show(view: View) -> Shown:
    """Live workers, and with `all=1` also those that have stopped."""
    everyone = view.given("all") == "1"
    found = await list_workers(view.conn, alive=False, after=view.given("after") or None, limit=LENGTH + 1)
    more = found[LENGTH - 1].id if len(found) > LENGTH else None
    workers = [one for one in found[:LENGTH] if everyone or one.stopped_at is None]
    alive = [one for one in workers if one.alive]
    values = {
        "workers": sorted(workers, key=lambda one: (one.stopped_at is not None, one.alive, one.name)),
        "everyone": everyone,
        "versions": sorted({one.version for one in alive}),
        "commits": sorted({one.git_sha[:8] for one in alive if one.git_sha}),
        "more": None if more is None else view.here(after=more),
    }
    return Shown("workers.html", values)
