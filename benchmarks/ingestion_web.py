"""What an ingestion does to the routes of the application beside it, and how fast the steps of a chain follow each other there.

A FastAPI application under uvicorn, in a process of its own, answers `/small` and `/health`, 20 times a second each, while a
file is ingested: not at all (`idle`), by a handler in its event loop (`loop`), by a worker in a thread of it (`thread`), in a
process that it starts (`isolated`, the default of the service), and by a separate worker with the same default (`worker`).
Requests are sent at fixed times, whether or not the last one was answered. Called by: `benchmarks.ingestion web` and `chain`.

Every mode does the same work. Before each of them, the jobs that followed from the last file are run, the tables are emptied
and dirty pages are written; otherwise a mode also removes the rows of the mode before it, leaves twice as many to vacuum, and
runs what that mode left in the queue. A worker is ready before its file is dispatched; otherwise what is left runs beside the
file: with 300,000 rows, an aggregation of the mode before was claimed in the same millisecond as the file. A file takes about
8 s, in which a route is asked 150 times, so p95 is the eighth slowest request; each round measures all modes, and the median of
the rounds counts.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
import psycopg
import uvicorn
from fastapi import FastAPI

import holdfast
from benchmarks.ingestion_scene import clear, flights_file, scene_on
from benchmarks.web import EVERY, PATIENCE, share, wait_for
from holdfast.services.ingestion.kinds import KINDS
from holdfast.worker.kinds import Job

MODES = ("idle", "loop", "thread", "isolated", "worker")
ROUTES = ("/small", "/health")
IDLE_SECONDS = 10.0
CHAINS = 20
URL, MODE, FOLDER = "HOLDFAST_DATABASE_URL", "BENCHMARK_MODE", "HOLDFAST_INGESTION_TO"


def in_the_loop() -> list[Job[..., Any]]:
    return [Job(one.kind, one.function, replace(one.policy, run_in=None, nice=0)) for one in KINDS]


def work(kinds: Sequence[Job[..., Any]]) -> None:
    asyncio.run(holdfast.Worker(os.environ[URL], kinds).run())


def make_app() -> FastAPI:
    """The application of one mode; in `idle`, `thread` and `worker` its event loop runs no jobs."""
    mode = os.environ[MODE]
    kinds = in_the_loop() if mode == "loop" else KINDS
    app = FastAPI(lifespan=holdfast.lifespan(os.environ[URL], kinds=kinds, run=mode in ("loop", "isolated")))
    if mode == "thread":
        threading.Thread(target=work, args=(in_the_loop(),), daemon=True).start()

    @app.get("/health")
    async def health() -> str:
        return "ok"

    @app.get("/small")
    async def small() -> dict[str, list[int]]:
        return {"numbers": list(range(100))}

    return app


def compare(url: str, file: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """The p95 of each mode and route, and their ratios to idle. The larger ratio of the two routes counts."""
    asyncio.run(provision(url, folder))
    made = [one_round(url, file, folder) for _ in range(rounds)]
    return {"ratios": {mode: median(one["ratios"][mode] for one in made) for mode in MODES}, "rounds": made}


def one_round(url: str, file: Path, folder: Path) -> dict[str, Any]:
    """All modes, one after the other."""
    p95: dict[str, dict[str, float]] = {}
    for mode in MODES:
        asyncio.run(settle(url, folder))
        with serving(mode, url, folder) as address:
            took = asyncio.run(measure(url, folder, file, mode, address))
        p95[mode] = {route: round(share(sorted(one), 0.95) * 1000, 2) for route, one in took.items()}
        print(f"web, {mode}: p95 {p95[mode]} ms of {sum(map(len, took.values()))} requests", flush=True)
    ratios = {mode: round(max(p95[mode][route] / p95["idle"][route] for route in ROUTES), 2) for mode in MODES}
    return {"p95_ms": p95, "ratios": ratios}


async def settle(url: str, folder: Path) -> None:
    """Run what the last mode has left in the queue, and remove what it has loaded."""
    async with scene_on(url, folder) as scene:
        await scene.run_all()
    clear(url)


async def provision(url: str, folder: Path) -> None:
    """The units of the year, before an application takes jobs."""
    async with scene_on(url, folder):
        pass


@contextmanager
def serving(mode: str, url: str, folder: Path) -> Iterator[str]:
    """The application of a mode, and the worker beside it if it has one; the address."""
    with program("--serve", mode, url, folder) as (server, port):
        address = f"http://127.0.0.1:{port}"
        wait_for(address, server)
        if mode != "worker":
            yield address
            return
        with program("--work", mode, url, folder) as (worker, _):
            wait_for_worker(url, worker)
            yield address


def wait_for_worker(url: str, worker: subprocess.Popen[bytes]) -> None:
    """Until a worker has registered itself."""
    deadline = time.monotonic() + 60
    with psycopg.connect(url, autocommit=True) as conn:
        while (
            conn.execute("SELECT FROM holdfast.workers WHERE pid = %s AND stopped_at IS NULL", [worker.pid]).fetchone() is None
        ):
            if worker.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the worker did not start")
            time.sleep(0.1)


async def measure(url: str, folder: Path, file: Path, mode: str, address: str) -> dict[str, list[float]]:
    """Ask while a file is ingested: from the moment that its job runs until it has ended."""
    async with httpx2.AsyncClient(base_url=address, timeout=60) as http:
        for _ in range(20):  # past what the first requests cost
            for route in ROUTES:
                await http.get(route)
        if mode == "idle":
            return await ask(http, asyncio.create_task(asyncio.sleep(IDLE_SECONDS)))
        async with scene_on(url, folder) as scene:
            job_id = await scene.dispatch(file)
        await until_state(url, job_id, "running")
        return await ask(http, asyncio.create_task(until_state(url, job_id, "completed")))


async def ask(http: httpx2.AsyncClient, until: asyncio.Task[None]) -> dict[str, list[float]]:
    """Ask until the task is done; how long each request took, by route."""
    took: dict[str, list[float]] = {route: [] for route in ROUTES}

    async def one(route: str) -> None:
        begun = time.perf_counter()
        try:
            (await http.get(route)).raise_for_status()
        finally:
            took[route].append(time.perf_counter() - begun)

    asked: list[asyncio.Task[None]] = []
    begun = time.perf_counter()
    while not until.done():
        asked.append(asyncio.create_task(one(ROUTES[len(asked) % len(ROUTES)])))
        await asyncio.sleep(max(0.0, begun + len(asked) * EVERY - time.perf_counter()))
    await until
    _, unanswered = await asyncio.wait(asked, timeout=PATIENCE)
    for request in unanswered:
        request.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    return took


async def until_state(url: str, job_id: int, state: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn, asyncio.timeout(600):
        while True:
            row = await (await conn.execute("SELECT state FROM holdfast.jobs WHERE id = %s", [job_id])).fetchone()
            assert row is not None
            if row[0] in (state, "completed"):
                return
            assert row[0] != "failed", "the ingestion failed"
            await asyncio.sleep(0.02)


# From the end of a step to the claim of the next: of the recalculation after the load, and of the aggregation after that.
STEPS = """
    SELECT extract(epoch FROM h.claimed_at - before.finished_at)::float
    FROM holdfast.jobs j JOIN holdfast.history h ON h.job_id = j.id AND h.move = 'complete'
    JOIN LATERAL (SELECT max(finished_at) AS finished_at FROM holdfast.jobs p
                  WHERE p.pipeline_id = j.pipeline_id AND p.id < j.id AND p.finished_at <= h.claimed_at) before ON true
    WHERE j.kind IN ('ingestion.emission_recalc', 'ingestion.aggregation') AND j.pipeline_id = ANY (%s)
"""


def chains(url: str, folder: Path) -> dict[str, Any]:
    """The latency of the steps of small pipelines in the application, with isolated processes for the files."""
    asyncio.run(provision(url, folder))
    with serving("isolated", url, folder):
        found = asyncio.run(run_chains(url, folder))
    took = sorted(found)
    return {"p50_ms": round(share(took, 0.5) * 1000, 1), "p95_ms": round(share(took, 0.95) * 1000, 1), "steps": len(took)}


async def run_chains(url: str, folder: Path) -> list[float]:
    async with scene_on(url, folder) as scene:
        jobs = []
        for _ in range(CHAINS):
            jobs.append(await scene.dispatch(flights_file(folder, 10)))
            await until_state(url, jobs[-1], "completed")
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn, asyncio.timeout(60):
        pipelines = await (
            await conn.execute("SELECT array_agg(pipeline_id) FROM holdfast.jobs WHERE id = ANY (%s)", [jobs])
        ).fetchone()
        while True:
            steps = await (await conn.execute(STEPS, pipelines)).fetchall()
            if len(steps) >= 2 * CHAINS:
                return [row[0] for row in steps]
            await asyncio.sleep(0.1)


@contextmanager
def program(what: str, mode: str, url: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The application or a worker in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, URL: url, MODE: mode, FOLDER: str(folder / "uploads")}
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.ingestion_web", what, str(port)], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        yield process, port
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


if __name__ == "__main__":
    if "--work" in sys.argv:
        work(KINDS)
    else:
        uvicorn.run(make_app(), port=int(sys.argv[-1]), log_level="error")
