"""Periodic jobs and loops: the next run, the last one, the last success, and health."""

from __future__ import annotations

from typing import Final

from holdfast.api import periodic
from holdfast.api.periodic import loops_of
from holdfast.console.view import Shown, View
from holdfast.jobs.periodic.read import list_periodic

RUNS: Final = 20


async def show(view: View) -> Shown:
    """All of them, jobs first; one of them open with its runs."""
    jobs = [periodic.shown(job) for job in await list_periodic(view.conn)]
    loops = await loops_of(view.plane).all(view.conn)
    chosen = view.given("name")
    is_loop = any(loop.job_name == chosen for loop in loops)
    runs = await loops_of(view.plane).runs(view.conn, chosen, limit=RUNS, before=None) if is_loop else []
    return Shown("periodic.html", {"entries": [*jobs, *loops], "chosen": chosen, "runs": runs})
