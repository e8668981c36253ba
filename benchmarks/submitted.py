"""500 exports that an engine has, and one worker that asks about them: are looks on time, and what do they cost?

    python -m benchmarks.submitted [--jobs 500] [--seconds 60] [--concurrency 2] [--write]

A real `holdfast worker run`, a real Postgres, and a server that speaks Trino's protocol (`trino_unloads.py`), which keeps an
answer without news for as long as Trino does. How late a look is stands in the database: from `next_poll_at` to the claim,
by its own clock. Meanwhile one small job a second comes in: what it waits shows that nobody holds a slot. It ends by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import asyncpg
import psycopg

from benchmarks.keep import keep
from benchmarks.postgres import DISK, Server, connection, postgres
from holdfast.database import migrate
from holdfast.jobs.enqueue import enqueue, enqueue_many
from holdfast.jobs.model import NewJob
from holdfast.services.exports.export.payload import KIND, ExportSpec

LATE, LATE_GOAL = "submitted_500_look_late_p95_seconds", 1.0
CPU, CPU_GOAL = "submitted_500_worker_cpu_share", 0.5  # of one core
PROBE = "exports.run"
TICK = os.sysconf("SC_CLK_TCK")

# What the kernel forgets with the claim: since when the job could have been claimed.
WATCH = """
    CREATE TABLE public.claims (kind text, is_look boolean, due timestamptz, claimed timestamptz);
    CREATE FUNCTION public.note_claim() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.claims VALUES (OLD.kind, OLD.state = 'submitted', coalesce(OLD.next_poll_at, OLD.created_at),
                                          clock_timestamp());
        RETURN NULL;
    END $$;
    CREATE TRIGGER note_claim AFTER UPDATE OF state ON holdfast.jobs FOR EACH ROW
        WHEN (NEW.state = 'running') EXECUTE FUNCTION public.note_claim();
"""
COUNTS = f"""
    SELECT count(*) FILTER (WHERE state = 'submitted' OR poll_count > 0 OR finished_at IS NOT NULL) AS handed_over,
           count(*) FILTER (WHERE state = 'running') AS held,
           count(*) FILTER (WHERE finished_at IS NOT NULL) AS ended,
           count(*) FILTER (WHERE state = 'completed') AS completed
    FROM holdfast.jobs WHERE kind = '{KIND}'
"""
WAITS = "SELECT extract(epoch FROM claimed - due)::float FROM public.claims WHERE kind = $1 AND is_look = $2 ORDER BY 1"


@dataclass
class Seen:
    """What was seen while it ran."""

    started: float = field(default_factory=time.monotonic)
    all_submitted: float | None = None
    first_end: float | None = None
    all_ended: float | None = None
    cpu: list[tuple[float, float]] = field(default_factory=list)  # moment, seconds of processor time
    held: list[int] = field(default_factory=list)  # jobs under a claim, while all were with the engine

    def cpu_share(self, begin: float, end: float) -> float:
        inside = [one for one in self.cpu if begin <= one[0] <= end]
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]) if len(inside) > 1 else float("nan")


async def measure(jobs: int, seconds: float, concurrency: int) -> dict[str, Any]:
    within = seconds + 2 * 90 + jobs * 0.3  # the next look is at most 90 s off
    with (
        postgres() as url,
        tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=DISK) as folder,
        serving(jobs, seconds) as trino,
    ):
        async with Server.connect(url) as server, server.database("bench_submitted") as address:
            await asyncio.to_thread(migrate.migrate, address)
            async with connection(address) as conn:
                await conn.execute(WATCH)
                await fill(address, jobs, folder)
                await server.settle(address)
                async with worker(address, trino, folder, concurrency) as pid:
                    async with asyncio.timeout(within):
                        seen = await watch(conn, address, pid, jobs, folder)
                lateness = [row[0] for row in await conn.fetch(WAITS, KIND, True)]
                waits = [row[0] for row in await conn.fetch(WAITS, PROBE, False)]
                completed = (await conn.fetchrow(COUNTS))["completed"]
    return told(seen, lateness, waits, jobs=jobs, completed=completed, seconds=seconds, concurrency=concurrency)


async def fill(address: str, jobs: int, folder: str) -> None:
    specs = [
        ExportSpec(
            "node", f"n{n}", "trino", "SELECT id FROM t", [{"name": "id", "type": "INT64"}], f"{folder}/{n}", runtime="unload"
        )
        for n in range(jobs)
    ]
    async with await psycopg.AsyncConnection.connect(address, autocommit=True) as conn:
        await enqueue_many(conn, [spec.job() for spec in specs])


async def watch(conn: asyncpg.Connection, address: str, pid: int, jobs: int, folder: str) -> Seen:
    """Look at it four times a second until every job has ended, and send a small job in each second."""
    seen, number = Seen(), 0
    async with await psycopg.AsyncConnection.connect(address, autocommit=True) as sending:
        while seen.all_ended is None:
            counts, now = await conn.fetchrow(COUNTS), time.monotonic()
            seen.cpu.append((now, cpu_seconds(pid)))
            if seen.all_submitted is None and counts["handed_over"] == jobs:
                seen.all_submitted = now
            if seen.all_submitted is not None and seen.first_end is None:
                seen.held.append(counts["held"])
                if number % 4 == 0:
                    await enqueue(sending, NewJob(PROBE, {"sql": "SELECT 1 AS id", "to": f"{folder}/probe-{number}"}))
                number += 1
            if seen.first_end is None and counts["ended"]:
                seen.first_end = now
            if counts["ended"] == jobs:
                seen.all_ended = now
            await asyncio.sleep(0.25)
    return seen


def told(seen: Seen, lateness: list[float], waits: list[float], **given: Any) -> dict[str, Any]:
    """What it comes to. Pure."""
    assert seen.all_submitted is not None
    assert seen.first_end is not None
    assert seen.all_ended is not None
    return {
        **given,
        "looks": len(lateness),
        "late_seconds": spread(lateness),
        "cpu_share_while_all_are_submitted": round(seen.cpu_share(seen.all_submitted, seen.first_end), 3),
        "cpu_share_to_the_end": round(seen.cpu_share(seen.all_submitted, seen.all_ended), 3),
        "held_at_once": {"median": median(seen.held), "max": max(seen.held)},
        "small_job_waits_seconds": spread(waits),
        "seconds_to_submit_all": round(seen.all_submitted - seen.started, 1),
        "seconds_in_all": round(seen.all_ended - seen.started, 1),
    }


def spread(values: list[float]) -> dict[str, float]:
    """Median, 95th percentile and the worst."""
    return {"p50": round(median(values), 3), "p95": round(quantiles(values, n=20)[-1], 3), "max": round(max(values), 3)}


@contextmanager
def serving(jobs: int, seconds: float) -> Iterator[str]:
    """The address of a Trino that keeps all of them for so long, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.trino_unloads", str(jobs), str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.communicate()  # it ends with its input


@asynccontextmanager
async def worker(address: str, trino: str, folder: str, concurrency: int) -> AsyncIterator[int]:
    """One `holdfast worker run`, as document 002 sets it up; the id of its keeper."""
    given = {
        "HOLDFAST_DATABASE_URL": address,
        "HOLDFAST_EXPORT_DIRS": folder,
        "HOLDFAST_TRINO_ROLE_REQUIRED": "false",
        "HOLDFAST_LOG_LEVEL": "ERROR",
        "HOLDFAST_TRINO_URL": trino,
        "HOLDFAST_TRINO_USER": "export",
    }
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "worker",
        "run",
        "--kinds",
        f"{KIND},{PROBE}",
        "--concurrency",
        str(concurrency),
    ]
    with (Path(folder) / "worker.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(*command, env=os.environ | given, stdout=log, stderr=log)
    try:
        yield process.pid
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()
        words = (Path(folder) / "worker.log").read_text()[-2000:]
        if words:
            print(words, file=sys.stderr)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, of all that it started, and of those of them that have ended."""
    used = 0.0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used = sum(map(int, fields[11:15])) / TICK
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            used += sum(cpu_seconds(int(child)) for child in (task / "children").read_text().split())
    return used


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.submitted", description=str(__doc__).splitlines()[0])
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60, help="that the engine has all of them")
    parser.add_argument("--concurrency", type=int, default=2, help="of the worker")
    parser.add_argument("--write", action="store_true", help="into results.json, beside the figures of `make bench`")
    chosen = parser.parse_args()
    found = asyncio.run(measure(chosen.jobs, chosen.seconds, chosen.concurrency))
    print(json.dumps(found, indent=1))
    if found["completed"] != chosen.jobs:
        raise SystemExit(f"{chosen.jobs - found['completed']} of {chosen.jobs} exports did not complete")
    if chosen.write:
        keep(LATE, found["late_seconds"]["p95"], LATE_GOAL, "lower", **found)
        keep(CPU, found["cpu_share_while_all_are_submitted"], CPU_GOAL, "lower")


if __name__ == "__main__":
    main()
