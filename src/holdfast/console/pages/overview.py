"""Overview: what needs attention, how many jobs are in each state, charts, kinds, workers, locks, and the next loops."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from psycopg.rows import dict_row

from holdfast.api import periodic
from holdfast.api.periodic import loops_of
from holdfast.api.problems import Problem
from holdfast.console.attention import MOST, Seen, attention
from holdfast.console.charts import HEIGHT, LOW, WIDTH, charts_of
from holdfast.console.view import Shown, View
from holdfast.console.views.kinds import list_kinds
from holdfast.console.views.overview import read_numbers, read_tiles, sample
from holdfast.jobs.control import controls
from holdfast.jobs.periodic.read import list_periodic
from holdfast.jobs.views.figures import OLDEST

WINDOWS: Final = {"1h": timedelta(hours=1), "6h": timedelta(hours=6), "24h": timedelta(hours=24)}
TILES: Final = (
    ("pending", "state:pending"),
    ("delayed", "state:pending"),
    ("blocked", "state:blocked"),
    ("running", "state:running"),
    ("submitted", "state:submitted"),
    ("retrying", "cond:retrying"),
    ("stale", "cond:stale"),
    ("failed", "state:failed"),
    ("cancelled", "state:cancelled"),
)
QUIET: Final = frozenset({"delayed", "submitted", "retrying", "stale", "cancelled"})  # not shown at zero
NEXT: Final = 5


async def show(view: View) -> Shown:
    """The first page."""
    name = view.given("window", "1h")
    if name not in WINDOWS:
        raise Problem("invalid-request", f"no window {name!r}; there are: {', '.join(WINDOWS)}")
    conn = view.conn
    tiles, numbers = await read_tiles(conn), await read_numbers(conn)
    kinds, loops = await list_kinds(conn), await _loops(view)
    charts = charts_of(await sample(conn, WINDOWS[name]), WINDOWS[name] / timedelta(minutes=1))
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(OLDEST)
        oldest = await cursor.fetchall()
    said = [one._asdict() for one in await controls(conn)]
    draining = next((one for one in said if one["kind"] == "*" and one["drained"]), None)
    found = attention(Seen(tiles, numbers.facts, numbers.workers, kinds, oldest, loops, draining))
    values: dict[str, Any] = {
        "attention": found[:MOST],
        "more_attention": max(0, len(found) - MOST),
        "tiles": [(one, query, tiles[one]) for one, query in TILES if tiles[one].count or one not in QUIET],
        "charts": charts,
        "width": WIDTH,
        "height": HEIGHT,
        "low": LOW,
        "window": name,
        "windows": list(WINDOWS),
        "kinds": _kinds(kinds, numbers, charts, {one["kind"]: one["seconds"] for one in oldest}),
        "workers": numbers.workers,
        "alive": sum(one["alive"] for one in numbers.workers),
        "slots": sum(one["concurrency"] for one in numbers.workers if one["alive"]),
        "busy": sum(one["holds"] for one in numbers.workers if one["alive"]),
        "versions": sorted({one["version"] for one in numbers.workers if one["alive"]}),
        "facts": numbers.facts,
        "loops": sorted(_scheduled(loops), key=lambda one: one.next_run or view.now)[:NEXT],
    }
    return Shown("overview.html", values)


async def _loops(view: View) -> list[periodic.LoopShown]:
    jobs = [periodic.shown(job) for job in await list_periodic(view.conn)]
    return [*jobs, *await loops_of(view.plane).all(view.conn)]


def _scheduled(loops: list[periodic.LoopShown]) -> list[periodic.LoopShown]:
    return [one for one in loops if one.next_run is not None and not one.paused]


def _kinds(kinds: Any, numbers: Any, charts: Any, oldest: dict[str, float]) -> list[dict[str, Any]]:
    """One row for each kind that is known or has run in the window. Pure."""
    known = {one.kind: one for one in kinds}
    names = sorted({*known, *numbers.running, *numbers.failed, *charts.by_kind})
    return [
        {
            "name": name,
            "view": known.get(name),
            "running": numbers.running.get(name, 0),
            "failed": numbers.failed.get(name, 0),
            "times": charts.by_kind.get(name),
            "oldest": oldest.get(name),
        }
        for name in names
    ]
