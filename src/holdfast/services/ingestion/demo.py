"""The ingestion demo: a generated file, a worker that is killed during the load, and totals that are computed twice.

Called by: `holdfast up`. The first worker is killed with SIGKILL inside the transaction that loads the rows. A second worker
ingests the file again; then the emissions are recalculated and aggregated. At the end every row is there exactly once, and the
statistics equal a computation from scratch.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import signal
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row
from rich.console import Console
from rich.table import Table

from holdfast.database.pool import connect
from holdfast.services.ingestion import dispatch
from holdfast.services.ingestion.dispatch import EntriesAsked, FileOptions
from holdfast.services.ingestion.kinds import KINDS
from holdfast.services.ingestion.models import store
from holdfast.services.ingestion.models.rules import model_of
from holdfast.services.ingestion.models.yaml_file import EXAMPLE, read_model
from holdfast.services.ingestion.setup import Ingestion
from holdfast.services.ingestion.sources import files
from holdfast.services.ingestion.views import runs
from holdfast.services.ingestion.views.runs import Run
from holdfast.settings import Settings
from holdfast.stores.opening import StoreOptions
from holdfast.toolkit.demo import Process, begin, folder_beside, start, stop
from holdfast.worker.kinds import Job
from holdfast.worker.options import WorkerOptions
from holdfast.worker.without_keeper import work

Conn = psycopg.AsyncConnection[Any]
YEAR: Final = 2024
ROWS: Final = 100_000
BAD: Final = 3
KILLED_AT: Final = "ingest.in_tx_loaded"
BEAT, LEASE, LONGEST = 0.7, 3.0, 240.0  # seconds
UNITS: Final = "code,label\n" + "".join(f"U{number},unit {number}\n" for number in range(20))
FACTORS: Final = "emission_type,classification,value\nco2,economy,0.2\nco2,premium,0.3\nco2,business,0.6\nco2,first,0.9\n"


def flights(rows: int) -> str:
    """A CSV file of flights; three of its rows are bad. Pure."""
    cabins = ("economy", "premium", "business", "first")
    good = (f"T{n},U{n % 20},2024-{n % 12 + 1:02}-{n % 28 + 1:02},{cabins[n % 4]},{n % 5000}.5\n" for n in range(rows))
    bad = ("T1,U1,2024-01-01,economy,1\n", "X1,U99,2024-01-01,economy,1\n", "X2,U1,2024-02-30,economy,many\n")
    return "trip_id,unit_id,date,cabin,distance\n" + "".join((*good, *bad))


async def play(url: str, console: Console, settings: Settings) -> bool:
    """Run the demo on this database; whether its result is correct."""
    folder = await asyncio.to_thread(_new_folder, folder_beside(settings.data_dir))
    conn = await connect(url)
    workers: list[Process] = []
    try:
        here = Ingestion(str(folder), StoreOptions(allowed=(folder,)))
        job_id = await _begin(conn, url, here, console)
        workers.append(await worker_process(url, "ingester-1", folder, KILLED_AT))
        if await asyncio.wait_for(workers[0].wait(), LONGEST) != -signal.SIGKILL:
            console.print("  [bold red]WRONG[/]: ingester-1 should have been killed")
            return False
        killed_at = time.monotonic()
        console.print("  SIGKILL to ingester-1 inside the transaction that loads the rows", style="bold red")
        workers.append(await worker_process(url, "ingester-2", folder, None))
        jobs = await _until_ended(conn, job_id)
        console.print(f"  ingester-2 took over and finished {time.monotonic() - killed_at:.1f} s later", style="green")
        return await _conclude(conn, jobs, console)
    finally:
        await stop(workers)
        await conn.close()
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _new_folder(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    return Path(mkdtemp(prefix="ingest-", dir=root))


async def _begin(conn: Conn, url: str, here: Ingestion, console: Console) -> int:
    """The CO2 model, units and factors, and the file; the id of the job that ingests it."""
    content = flights(ROWS)
    console.print(f"\n[bold]Ingestion demo[/]: a CSV file of {ROWS + BAD:,} flights, {BAD} of them bad")
    async with conn.transaction():
        await store.apply(conn, model_of(read_model(EXAMPLE)), by="demo")
    options = FileOptions()
    await dispatch.dispatch_units(
        conn, year=YEAR, file_id=await _file(conn, here, "units.csv", UNITS), options=options, by="demo", if_waiting="supersede"
    )
    await _run_what_waits(url, here)
    file_id = await _file(conn, here, "factors.csv", FACTORS)
    await dispatch.dispatch_factors(
        conn, model="co2", year=YEAR, module="travel", det="flights", file_id=file_id, options=options, by="demo"
    )
    await _run_what_waits(url, here)
    asked = EntriesAsked(model="co2", module="travel", det="flights", year=YEAR, mode="replace", if_waiting="supersede")
    file_id = await _file(conn, here, "flights.csv", content)
    return (await dispatch.dispatch_file(conn, asked, file_id, options, by="demo")).job_id


async def _file(conn: Conn, here: Ingestion, name: str, content: str) -> int:
    data = content.encode()
    sha256 = hashlib.sha256(data).hexdigest()
    path = f"files/{sha256[:16]}-{time.monotonic_ns()}"
    async with here.store() as kept:
        await kept.put(path, data)
    return (await files.add(conn, path, name=name, size=len(data), sha256=sha256, by="demo")).id


async def _run_what_waits(url: str, here: Ingestion) -> None:
    """Run what waits, in a worker process, until nothing is left."""
    process = await worker_process(url, "preparing", Path(here.root), None, until_empty=True)
    if await asyncio.wait_for(process.wait(), LONGEST) != 0:
        raise RuntimeError("the worker that prepares the demo failed")


async def _until_ended(conn: Conn, job_id: int) -> list[Run]:
    """The jobs of the pipeline when all of them have finished."""
    pipeline = (await runs.get(conn, job_id)).pipeline_id
    async with asyncio.timeout(LONGEST):
        while True:
            jobs = (await runs.listed(conn, limit=20, pipeline_id=pipeline))[::-1]
            if (len(jobs) == 3 and all(one.state == "FINISHED" for one in jobs)) or jobs[0].result == "ERROR":
                return jobs
            await asyncio.sleep(0.1)


TOTALS = """
    SELECT (SELECT count(*) FROM holdfast.data_entries WHERE job_id = %(job_id)s),
           (SELECT count(DISTINCT key) FROM holdfast.data_entries WHERE job_id = %(job_id)s),
           (SELECT sum(kg) FROM holdfast.emission_stats s WHERE s.year = %(year)s AND s.det_id IN
               (SELECT DISTINCT det_id FROM holdfast.data_entries WHERE job_id = %(job_id)s)),
           (SELECT sum(e.amount * f.value) FROM holdfast.data_entries e JOIN holdfast.factors f
               ON (f.det_id, f.year, f.classification) = (e.det_id, e.year, e.classification) WHERE e.job_id = %(job_id)s)
"""


async def _conclude(conn: Conn, jobs: list[Run], console: Console) -> bool:
    """Count the rows, and compare the statistics with a computation from scratch."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("job", "result", "attempts", "message"):
        table.add_column(column)
    for one in jobs:
        table.add_row(one.job_type, one.result, str(one.attempts), one.status_message)
    console.print(table)
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(TOTALS, {"job_id": jobs[0].job_id, "year": YEAR})
        ((count, distinct, kg, from_scratch),) = await cursor.fetchall()
    right = (count, distinct, jobs[0].result) == (ROWS, ROWS, "WARNING") and kg == from_scratch
    mark = "[bold green]every row exactly once[/]" if right else f"[bold red]WRONG: {count}, {kg} and {from_scratch}[/]"
    console.print(f"  {count:,} entries, {kg:,.1f} kg: {mark}; the statistics equal a computation from scratch")
    return right


# ---------------------------------------------------------------------------------------------------------------------
# Worker processes
# ---------------------------------------------------------------------------------------------------------------------


async def worker_process(url: str, name: str, folder: Path, crash_at: str | None, *, until_empty: bool = False) -> Process:
    """A worker for ingestion in a process of its own, which ends with this one. It may write this folder and nothing else."""
    arguments = (url, name, crash_at or "", "until_empty" if until_empty else "")
    return await start("holdfast.services.ingestion.demo", *arguments, HOLDFAST_INGESTION_TO=str(folder))


def _work(url: str, name: str, crash_at: str, until_empty: str) -> None:
    """A worker process of the demo. Its handlers run in it, not in processes of their own, so that SIGKILL ends them too."""
    beat, lease, grace = timedelta(seconds=BEAT), timedelta(seconds=LEASE), timedelta(seconds=1)
    options = WorkerOptions(concurrency=2, beat=beat, lease=lease, grace=grace, name=name)
    kinds: list[Job[..., Any]] = [Job(one.kind, one.function, replace(one.policy, run_in=None, nice=0)) for one in KINDS]
    work(url, kinds, options, until_empty=bool(until_empty), crash_at=crash_at or None)


if __name__ == "__main__":
    _work(*begin())
