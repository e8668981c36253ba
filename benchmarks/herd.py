"""A herd (F-20): many workers start at the same moment, on a database that has just been restarted and has much to do.

    python -m benchmarks.herd --workers 50 --jobs 50000

All workers are in one process, so that two cores can hold them; each has its connections, its heartbeat and its lanes as ever.
Says how long a claim took, by the server's own log and by the workers, who also wait for their turn in the one event loop; and
whether any job was claimed twice. `tests/faults` has the same with 8 real processes and 300 jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import re
import signal
import statistics
import time
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
from proof.processes.postgres import OwnPostgres

from holdfast import Worker, WorkerOptions, job
from holdfast.database.pool import LOST, connect
from holdfast.jobs.enqueue import enqueue_many
from holdfast.worker.transports.direct import Direct

CLAIMS = re.compile(r"duration: ([\d.]+) ms  execute [^\n]*\n\s+WITH picked AS MATERIALIZED")


@job("herd.nothing")
async def nothing() -> None: ...


class Timed(Direct):
    """A worker's way to the database that notes how long each claim took."""

    def __init__(self, url: str, notes: list[float]) -> None:
        super().__init__(url, most=2)
        self._notes = notes

    async def claim(self, *arguments: Any) -> Any:
        began = time.monotonic()
        found = await super().claim(*arguments)
        self._notes.append(time.monotonic() - began)
        return found


async def run(url: str, count: int, notes: list[float]) -> None:
    """All at once, until nothing is left."""
    options = WorkerOptions(lease=timedelta(minutes=2), keep_logs=False)

    async def one() -> None:
        while True:
            with contextlib.suppress(*LOST):  # not in yet: come again, each at another moment
                await Worker(Timed(url, notes), [nothing], options).run(until_empty=True)
                return
            await asyncio.sleep(random.uniform(0, 1))

    await asyncio.gather(*(one() for _ in range(count)))


async def fill(url: str, jobs: int) -> None:
    conn = await connect(url)
    async with conn:
        await enqueue_many(conn, [nothing.new()] * jobs)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--workers", type=int, default=50)
    options.add_argument("--jobs", type=int, default=50_000)
    given = options.parse_args()
    notes: list[float] = []
    logging.getLogger("holdfast").setLevel(logging.ERROR)  # that one event loop is too few for all of them is known
    with TemporaryDirectory(prefix="holdfast-herd-") as folder:
        room = {"max_connections": str(given.workers * 8 + 20), "shared_buffers": "128MB", "log_min_duration_statement": "0"}
        with OwnPostgres(Path(folder), settings=room) as postgres:
            asyncio.run(fill(postgres.url, given.jobs))
            postgres.restart(signal.SIGINT)
            began = time.monotonic()
            asyncio.run(run(postgres.url, given.workers, notes))
            took = time.monotonic() - began
            with psycopg.connect(postgres.url) as conn:
                at_the_server = [float(ms) / 1000 for ms in CLAIMS.findall(postgres.cluster.log.read_text())]
                row = conn.execute("SELECT count(*), count(DISTINCT job_id), max(attempt_no) FROM holdfast.history").fetchone()
    assert row == (given.jobs, given.jobs, 1), f"claimed twice, or not at all: {row}"
    print(f"{given.workers} workers, {given.jobs:,} jobs: all done in {took:.1f} s, each claimed once")
    for name, seconds in (("at the server", at_the_server), ("to a worker", notes)):
        p50, p99 = statistics.median(seconds), percentile(seconds, 0.99)
        print(f"a claim, {name}: {len(seconds):,} of them, p50 {p50:.3f} s, p99 {p99:.3f} s, longest {max(seconds):.3f} s")


if __name__ == "__main__":
    main()
