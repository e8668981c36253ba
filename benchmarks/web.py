"""What a bulk job does to the web routes beside it: `python -m benchmarks.web` (half a minute, prints a table).

A FastAPI application under uvicorn, in a process of its own, answers `/health` while the same process runs a job that parses
200,000 rows of CSV, again and again: not at all, in the event loop, in a thread, in a process of its own. Requests are sent at
fixed times, 40 a second, whether or not the last one was answered: one that waits behind a blocked loop counts as slow as
it was for whoever sent it.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import httpx2
import uvicorn
from fastapi import FastAPI

import holdfast
from benchmarks.machine import cpu_name
from holdfast.testing import postgres

ROWS = 200_000
SECONDS = 3.0
EVERY = 0.025
PATIENCE = 3.0  # seconds after the last request; what has no answer by then counts as slow as it is
MODES = ("nothing", "loop", "thread", "process")
URL, MODE = "HOLDFAST_DATABASE_URL", "BENCHMARK_MODE"


def parse(rows: int) -> float:
    """What an import does: read text, split it, convert it, add it up."""
    text = io.StringIO("".join(f"{number},site-{number % 97},{number * 0.25:.2f},kg\n" for number in range(rows)))
    return sum(float(amount) for _, _, amount, _ in csv.reader(text))


@holdfast.job("bulk.loop")
async def in_loop(rows: int) -> float:
    return parse(rows)


@holdfast.job("bulk.thread")
def in_a_thread(rows: int) -> float:
    return parse(rows)


@holdfast.job("bulk.process", run_in="process")
def in_a_process(rows: int) -> float:
    return parse(rows)


KINDS = {"loop": in_loop, "thread": in_a_thread, "process": in_a_process}
OPTIONS = holdfast.WorkerOptions(concurrency=1, grace=timedelta(seconds=0.1))

# Each server runs the kind of its mode alone: what the one before it has left is not its business.
mine = [kind for mode, kind in KINDS.items() if os.environ.get(MODE, "nothing") in (mode, "nothing")]
app = FastAPI(lifespan=holdfast.lifespan(kinds=mine, options=OPTIONS))


@app.get("/health")
async def health() -> str:
    return "ok"


@app.post("/bulk/{mode}")
async def bulk(mode: str, count: int) -> None:
    await KINDS[mode].enqueue_many([{"rows": ROWS}] * count)


@app.get("/completed")
async def completed() -> int:
    return (await app.state.holdfast.counts())[holdfast.State.COMPLETED].count


def main() -> None:
    """Measure every mode, one after the other, and print the table."""
    print(
        f"/health beside a job that parses {ROWS:,} rows; {cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n"
    )
    print(f"{'the job runs in':16} {'p50':>10} {'p95':>10} {'p99':>10} {'slowest':>10}")
    figures = {}
    with postgres() as url:
        for mode in MODES:
            with serving(url, mode) as address:
                took = asyncio.run(measure(address, mode))
            figures[mode] = {"p95_ms": round(share(took, 0.95) * 1000, 1)}
            marks = "".join(f"{share(took, part) * 1000:8.1f} ms" for part in (0.5, 0.95, 0.99, 1.0))
            print(f"{mode:16}{marks}", flush=True)
    if "--json" in sys.argv:
        print(json.dumps(figures))


async def measure(address: str, mode: str) -> list[float]:
    """How long each request took, the quickest first."""
    async with httpx2.AsyncClient(base_url=address, timeout=60) as http:
        for _ in range(20):  # past what the first requests cost
            await http.get("/health")
        before = (await http.get("/completed")).json()
        if mode != "nothing":
            await http.post(f"/bulk/{mode}", params={"count": 500})
            await until_one_is_done(http, before)
        return await ask(http)


async def until_one_is_done(http: httpx2.AsyncClient, before: int) -> None:
    """The first one pays for the start of its process, if it has one."""
    while (await http.get("/completed")).json() == before:
        await asyncio.sleep(0.05)


async def ask(http: httpx2.AsyncClient) -> list[float]:
    took: dict[int, float] = {}

    async def one(number: int) -> None:
        begun = time.perf_counter()
        try:
            (await http.get("/health")).raise_for_status()
        finally:
            took[number] = time.perf_counter() - begun

    asked = []
    begun = time.perf_counter()
    for number in range(int(SECONDS / EVERY)):
        await asyncio.sleep(max(0.0, begun + number * EVERY - time.perf_counter()))
        asked.append(asyncio.create_task(one(number)))
    _, unanswered = await asyncio.wait(asked, timeout=PATIENCE)
    for request in unanswered:
        request.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    return sorted(took.values())


def share(took: list[float], part: float) -> float:
    return took[min(len(took) - 1, int(len(took) * part))]


@contextmanager
def serving(url: str, mode: str) -> Iterator[str]:
    """The application in a process of its own; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.web", "--serve", str(port)]
    process = subprocess.Popen(command, env={**os.environ, URL: url, MODE: mode}, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(address, process)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def wait_for(address: str, process: subprocess.Popen[Any]) -> None:
    while process.poll() is None:
        try:
            httpx2.get(f"{address}/health")
        except httpx2.TransportError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("the application did not start")


if __name__ == "__main__":
    if "--serve" in sys.argv:
        uvicorn.run("benchmarks.web:app", port=int(sys.argv[-1]), log_level="error")
    else:
        main()
