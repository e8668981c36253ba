"""Every page of the console on a table of a million jobs beside an empty one: `python -m benchmarks.console_pages`.

Two real `holdfast serve` processes on two databases of one Postgres. One reader asks for one page after the other, and the two
planes take turns, so that a slow minute of the machine changes both. What counts is the largest ratio of the medians. The
statements of each page are counted on the full database by an app in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import defaultdict
from statistics import median
from typing import Any
from unittest.mock import patch

import httpx2
import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks.control_plane import Plane, served
from benchmarks.keep import keep
from benchmarks.postgres import Server, postgres
from holdfast import catalog
from holdfast.apps.api import app_on
from holdfast.settings import settings_class

GOAL = 2.0
FIGURE = "console_1m_vs_empty"
PAGES = {
    "Overview": "",
    "Overview, 24 h": "?window=24h",
    "Jobs": "jobs",
    "Jobs, failed": "jobs?f=state:failed",
    "Jobs, kind": "jobs?f=kind:kind-1",
    "Jobs, younger than an hour": "jobs?f=age:<1h",
    "Job": "jobs/{job}",
    "Failures": "failures",
    "Pipelines": "pipelines",
    "Periodic": "periodic",
    "Workers": "workers",
    "Locks": "locks",
    "Audit": "audit",
    "System": "system",
    "Mappings": "mappings",
    "Snapshots": "snapshots",
    "Graphs": "graphs",
    "Tables": "tables",
    "Policies": "table-policies",
    "Ingestion": "ingestion",
}


async def ask(plane: Plane, path: str) -> float:
    """How long one page takes, in milliseconds."""
    started = time.perf_counter()
    answer = await plane.client.get(f"/console/{path.format(job=plane.known[0])}")
    answer.raise_for_status()
    return (time.perf_counter() - started) * 1000


async def count_statements(plane: Plane) -> dict[str, int]:
    """How many statements each page runs, with those of its guard."""
    given, seen, execute = settings_class()(), list[str](), psycopg.AsyncCursor.execute

    async def noted(self: Any, query: Any, *values: Any, **options: Any) -> Any:
        seen.append(str(query))
        return await execute(self, query, *values, **options)

    app, found = app_on(plane.url, given, "0", catalog.resources(given)), {}
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app), base_url="http://plane", headers=plane.client.headers
        ) as client,
    ):
        with patch.object(psycopg.AsyncCursor, "execute", noted):
            for name, path in PAGES.items():
                seen.clear()
                (await client.get(f"/console/{path.format(job=plane.known[0])}")).raise_for_status()
                found[name] = len(seen)
    return found


async def run(jobs: int, rounds: int, console: Console) -> tuple[float, dict[str, list[float]], dict[str, int]]:
    took: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with postgres() as url:
        async with (
            Server.connect(url) as server,
            served(server, "empty", 0) as empty,
            served(server, "full", jobs) as full,
        ):
            for plane in (empty, full):
                plane.rounds.append(defaultdict(list))
                await plane.submit()
                for path in PAGES.values():
                    await ask(plane, path)
            for number in range(rounds):
                console.log(f"turn {number + 1} of {rounds}")
                for name, path in PAGES.items():
                    for plane in (empty, full):
                        took[name][plane.name].append(await ask(plane, path))
            statements = await count_statements(full)
    table = Table("page", "statements", "empty, ms", f"{jobs:,} jobs, ms", "ratio")
    found, worst = {}, 0.0
    for name in PAGES:
        few, many = median(took[name]["empty"]), median(took[name]["full"])
        found[name] = [round(few, 1), round(many, 1)]
        worst = max(worst, many / few)
        table.add_row(name, str(statements[name]), f"{few:.1f}", f"{many:.1f}", f"{many / few:.2f}")
    console.print(table)
    console.print(f"largest ratio {worst:.2f} (≤ {GOAL})")
    return worst, found, statements


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="into results.json, beside the figures of `make bench`")
    arguments = parser.parse_args()
    worst, found, statements = asyncio.run(run(arguments.jobs, arguments.rounds, Console()))
    if arguments.write:
        keep(FIGURE, worst, GOAL, "lower", milliseconds=found, statements=statements)


if __name__ == "__main__":
    main()
