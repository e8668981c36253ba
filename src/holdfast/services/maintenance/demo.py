"""The maintenance demo: a table of 1,000 small files in the embedded catalog, compacted by a real worker, before and after.

Called by: `holdfast up`, after the other demos. The worker is a process of its own. The job is the one that
`POST /tables/{db}/{table}/maintenance` enqueues. At the end every row is read again and compared.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any, Final

import psycopg
from rich.console import Console
from rich.table import Table as Grid

from holdfast.database.pool import connect
from holdfast.jobs.model import JobId
from holdfast.jobs.views.read import JobView, get_job
from holdfast.services.maintenance.engines.catalogs import Catalogs
from holdfast.services.maintenance.engines.interface import Engine, TableRef, parse_actions
from holdfast.services.maintenance.opening import open_catalogs, open_engine
from holdfast.services.maintenance.run.request import Wanted
from holdfast.services.maintenance.run.submit import submit
from holdfast.services.maintenance.settings import MaintenanceSettings
from holdfast.services.maintenance.tables import cache
from holdfast.services.maintenance.tables.health import Health, health_of, size
from holdfast.settings import Settings
from holdfast.toolkit.demo import Process, begin, start, stop
from holdfast.worker.options import WorkerOptions
from holdfast.worker.without_keeper import work

TABLE: Final = TableRef("default", "demo", "events")
FILES, ROWS_EACH = 1_000, 100
ACTIONS: Final = ("rewrite_data_files", {"action": "expire_snapshots", "older_than": 0})
BEAT, LEASE, LONGEST = 0.7, 10.0, 240.0  # seconds
FIGURES: Final = {
    "data_files": "data files",
    "average_file_bytes": "average file",
    "data_bytes": "size",
    "manifests": "manifests",
    "snapshots": "snapshots",
}


async def play(url: str, console: Console, given: Settings) -> bool:
    """Run the demo on this database; whether its result is correct."""
    assert isinstance(given, MaintenanceSettings)
    if given.iceberg_catalogs:
        console.print("\n  The maintenance demo is skipped, because other catalogs are configured.", style="dim")
        return True
    conn, workers = await connect(url), list[Process]()
    engine = await asyncio.to_thread(open_engine, "pyiceberg", given, url)
    try:
        await asyncio.to_thread(_make_table, given, url)
        console.print(f"\n[bold]Maintenance demo[/]: {TABLE.namespace}.{TABLE.name}, {FILES:,} files of {ROWS_EACH} rows")
        before = await _measure(conn, engine)
        workers.append(await start("holdfast.services.maintenance.demo", url))
        started = time.monotonic()
        job = await _until_ended(conn, await _enqueue(conn))
        seconds = time.monotonic() - started
        if job.state != "completed":
            console.print(f"  [bold red]WRONG[/]: job {job.id} is {job.state}: {job.error}")
            return False
        after = await _measure(conn, engine)
        console.print(_grid(job.result["actions"], before, after))
        rows = await asyncio.to_thread(_sum_of_rows, given, url)
        right = rows == (FILES * ROWS_EACH, sum(range(FILES * ROWS_EACH)))
        mark = "[bold green]every row exactly once[/]" if right else f"[bold red]WRONG: {rows}[/]"
        console.print(f"  {rows[0]:,} rows after {seconds:.1f} s: {mark}")
        return right
    finally:
        await stop(workers)
        await asyncio.to_thread(engine.close)
        await conn.close()


# ---------------------------------------------------------------------------------------------------------------------
# The table
# ---------------------------------------------------------------------------------------------------------------------


def _make_table(given: MaintenanceSettings, url: str) -> None:
    """1,000 small Parquet files, added to a new table in one commit. A table of an earlier run is replaced."""
    pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    catalogs = open_catalogs(given, url)
    try:
        catalog = catalogs.open_for_writers(TABLE.catalog)
        catalog.create_namespace_if_not_exists(TABLE.namespace)
        if catalog.table_exists(TABLE.identifier):
            _purge(catalog)
        schema = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("value", pa.float64())])
        table = catalog.create_table(TABLE.identifier, schema=schema)
        paths = []
        for number in range(FILES):
            ids = range(number * ROWS_EACH, (number + 1) * ROWS_EACH)
            rows = {"id": list(ids), "kind": [f"kind {one % 7}" for one in ids], "value": [one / 3 for one in ids]}
            path = f"{table.location()}/data/{number:05}.parquet"
            with table.io.new_output(path).create(overwrite=True) as stream:
                pq.write_table(pa.table(rows, schema=schema), stream)
            paths.append(path)
        table.add_files(paths)
    finally:
        catalogs.close()


def _purge(catalog: Any) -> None:
    """Delete the table of an earlier run. Its manifests still list the small files that maintenance has deleted, and PyIceberg
    would print a warning for each of them."""
    log = logging.getLogger("pyiceberg.catalog")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        catalog.purge_table(TABLE.identifier)
    finally:
        log.setLevel(level)


def _sum_of_rows(given: MaintenanceSettings, url: str) -> tuple[int, int]:
    """How many rows the table has, and the sum of their ids."""
    catalogs: Catalogs = open_catalogs(given, url)
    try:
        found = catalogs.open_for_writers(TABLE.catalog).load_table(TABLE.identifier).scan(selected_fields=("id",)).to_arrow()
    finally:
        catalogs.close()
    return found.num_rows, sum(found.column("id").to_pylist())


async def _measure(conn: psycopg.AsyncConnection[Any], engine: Engine) -> Health:
    """The health of the table, which is also written into the table cache."""
    inputs = await asyncio.to_thread(engine.health_inputs, TABLE)
    await cache.note_measured(conn, TABLE, inputs)
    return health_of(inputs)


def _grid(actions: list[Mapping[str, Any]], before: Health, after: Health) -> Grid:
    """The figures before the first action and after the last."""
    first, last = actions[0]["before"], actions[-1]["after"]
    grid = Grid(box=None, pad_edge=False, header_style="dim")
    for column in ("", "before", "after"):
        grid.add_column(column, justify="left" if not column else "right")
    grid.add_row("health", f"{before.score} of 100", f"{after.score} of 100")
    for name, word in FIGURES.items():
        shown = [size(one[name]) if name.endswith("bytes") else f"{one[name]:,}" for one in (first, last)]
        grid.add_row(word, *shown)
    return grid


# ---------------------------------------------------------------------------------------------------------------------
# The job and its worker
# ---------------------------------------------------------------------------------------------------------------------


async def _enqueue(conn: psycopg.AsyncConnection[Any]) -> JobId:
    async with conn.transaction():
        wanted = Wanted(TABLE, tuple(parse_actions(ACTIONS)), "pyiceberg", wait=True, reason="demo")
        return (await submit(conn, wanted, requested_by="demo")).id


async def _until_ended(conn: psycopg.AsyncConnection[Any], job_id: JobId) -> JobView:
    async with asyncio.timeout(LONGEST):
        while True:
            job = await get_job(conn, job_id)
            if job.finished_at is not None:
                return job
            await asyncio.sleep(0.1)


def _work(url: str) -> None:
    kinds = import_module("holdfast.services.maintenance.kinds").KINDS
    beat, lease, grace = timedelta(seconds=BEAT), timedelta(seconds=LEASE), timedelta(seconds=1)
    options = WorkerOptions(concurrency=1, beat=beat, lease=lease, grace=grace, name="maintainer")
    work(url, kinds, options)


if __name__ == "__main__":
    _work(*begin())
