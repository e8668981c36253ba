"""One pass of each loop of graphs on 1,000 and on 10,000 instances: time, statements and peak memory, as ratios.

    python -m benchmarks.graph_loops [--rounds 9] [--write]

The rows are real and the runtime answers from memory, so that the loops are measured and not 10,000 processes. A pass runs
alone. Memory is the peak of Python's allocations during a pass of its own.

Both sides do the same work in a round: five passes over 1,000 instances, one pass over 10,000, and five passes over 1,000.
The ratio of a round is the time of the large pass to the mean of the ten small ones; the median of the rounds counts. A pass
over 1,000 takes less than 0.1 s, so a median of such passes leaves out most pauses that other processes of the machine cause,
while a pass of one second always contains some. The ratio of medians would be too large, and measuring one size after the
other would add every change of the machine's speed. The mean of ten passes around the large one contains the same pauses as
that one. Both servers run all the time, each size has its own connection, and one pass of each loop comes before the first
round, because the first pass plans its statements. What a pass costs once, however many instances there are, is part of both
sides. `resource_monitor` stores samples: they are put back before each of its passes, so that ten passes find what one finds.

`by_cpu` is the same ratio of processor time, of this process and of the server process of its connection.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import tempfile
import time
import tracemalloc
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool

from benchmarks.keep import keep
from holdfast.database import migrate
from holdfast.database.embedded import EmbeddedPostgres
from holdfast.schedule.context import Held, Pass
from holdfast.schedule.registry import Loop
from holdfast.schedule.term import ensure, take
from holdfast.services.graphs.loops import loops
from holdfast.services.graphs.proxy import Proxy
from holdfast.services.graphs.runtimes.interface import Observed
from holdfast.services.graphs.settings import GraphsSettings
from holdfast.services.graphs.setup import Graphs

FEW, MANY = 1000, 10_000
HALF = MANY // FEW // 2  # of the small passes of a round; as many before the large pass as after it
LONG = timedelta(minutes=30)
FILL = """
    INSERT INTO holdfast.graph_instances (owner, name, engine, mapping_id, mapping_version, snapshot_id, state, job_id,
        start_token, memory_mb, cpu, address, started_at, runtime_name, ttl, inactivity_timeout, last_activity_at, state_since)
    SELECT 'o' || n %% 100, 'g' || n, 'ladybug', 1, 1, 1, CASE WHEN n %% 4 = 0 THEN 'starting' ELSE 'running' END, n,
        gen_random_uuid(), 2048, 1, 'http://127.0.0.1:1', now(), 'pod-' || n, 'PT24H', 'PT4H', now(), now() - interval '1 hour'
    FROM generate_series(1, %(count)s) n
"""
SECRETS = "INSERT INTO holdfast.graph_secrets (instance_id, secret) SELECT id, repeat('s', 43) FROM holdfast.graph_instances"
JOBS = "INSERT INTO holdfast.jobs (kind, payload) SELECT 'graphs.start', '{}' FROM generate_series(1, %(count)s)"
# The samples of ten minutes, as a pass finds them; passes would otherwise add samples and dead rows, more often on one side.
SAMPLES = (
    "DELETE FROM holdfast.graph_samples",
    """
    INSERT INTO holdfast.graph_samples (instance_id, start_token, at, memory_bytes, limit_mb)
    SELECT id, start_token, clock_timestamp() - minute * interval '1 minute', 1073741824, memory_mb
    FROM holdfast.graph_instances, generate_series(1, 9) minute WHERE state = 'running'
    """,
    "VACUUM (ANALYZE) holdfast.graph_samples, holdfast.graph_instances",
)
SNAPSHOT = """
    INSERT INTO holdfast.mappings (id, owner, name, engine) VALUES (1, 'o', 'm', 'duckdb');
    INSERT INTO holdfast.mapping_versions (mapping_id, version, nodes, edges, created_by) VALUES (1, 1, '[{}]', '[]', 'o');
    INSERT INTO holdfast.snapshots (id, mapping_id, mapping_version, owner, name, engine, location, pipeline_id, state,
        finished_at, node_counts, edge_counts, size_bytes)
    VALUES (1, 1, 1, 'o', 's', 'duckdb', '/x', gen_random_uuid(), 'ready', now(), '{}', '{}', 0);
"""


class Remembered:
    """A runtime that has exactly what the database says."""

    name = "memory"

    def __init__(self, listed: list[Observed]) -> None:
        self._listed = listed

    async def observe(self) -> list[Observed]:
        return self._listed

    async def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Scene:
    """A server with so many instances: its only connection, and what its runtime has."""

    count: int
    url: str
    pool: AsyncConnectionPool[Any]
    listed: list[Observed]
    backend: int  # process id of the server's side of the connection


@dataclass(frozen=True, slots=True)
class Measured:
    """One pass of a loop."""

    seconds: float
    cpu: float
    statements: int


async def opened(url: str, count: int) -> Scene:
    """The server at this address, whose instances all have a graph server."""
    pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
        url, min_size=1, max_size=1, kwargs={"autocommit": True, "cursor_factory": Counted}, open=False
    )
    await pool.open(wait=True)
    async with pool.connection() as conn:
        cursor = await conn.execute("SELECT id, start_token::text FROM holdfast.graph_instances ORDER BY id")
        found, backend = await cursor.fetchall(), conn.info.backend_pid
    made = datetime(2026, 1, 1, tzinfo=UTC)
    listed = [
        Observed(instance_id=i, start_token=token, fence_token=1, phase="running", created_at=made, address="http://x",
                 memory_bytes=2**30, memory_limit_mb=2048, name=f"pod-{i}")
        for i, token in found
    ]  # fmt: skip
    return Scene(count, url, pool, listed, backend)


class Counted(psycopg.AsyncCursor[Any]):
    """A cursor that counts the statements of all cursors."""

    statements = 0

    async def execute(self, *args: Any, **kwargs: Any) -> Any:
        Counted.statements += 1
        return await super().execute(*args, **kwargs)


async def context(scene: Scene, loop: Loop) -> Pass:
    """A new term of the loop, and the runtime that belongs to the scene. Every pass finds the same rows."""
    async with scene.pool.connection() as conn:
        for statement in SAMPLES if loop.name == "resource_monitor" else ():  # the others only read
            await conn.execute(statement)
        await conn.execute("DELETE FROM holdfast.loops WHERE name = %s", [loop.name])
        ready = dataclasses.replace(loop, first_run="at_once")
        await ensure(conn, [ready])
        term = (await take(conn, ready, "bench")).term
    assert term is not None
    Graphs(runtime=Remembered(scene.listed), proxy=Proxy()).share()  # type: ignore[arg-type]
    return Pass(term, Held(LONG), scene.pool.connection, scene.url)


async def one_pass(scene: Scene, loop: Loop) -> Measured:
    """The time and the statements of one pass."""
    ctx = await context(scene, loop)
    before = Counted.statements
    began, used = time.perf_counter(), _cpu(scene)
    result = await loop.function(ctx)
    seconds, cpu = time.perf_counter() - began, _cpu(scene) - used
    assert (result.items, result.failed) == (0, 0), result
    return Measured(seconds, cpu, Counted.statements - before)


async def peak_of(scene: Scene, loop: Loop) -> int:
    """The most bytes of Python's allocations in one pass, which is not timed."""
    ctx = await context(scene, loop)
    tracemalloc.start()
    await loop.function(ctx)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def _cpu(scene: Scene) -> float:
    """Seconds of processor time of this process and of the server process; only of this one where there is no /proc."""
    try:
        of_server = int(Path(f"/proc/{scene.backend}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        of_server = 0.0
    return time.process_time() + of_server


async def compare(few: Scene, many: Scene, loop: Loop, rounds: int) -> dict[str, Any]:
    """Both sizes in turn: see the docstring of this module."""
    for scene in (few, many):
        await one_pass(scene, loop)  # not counted: it plans the statements
    times, by_cpu, small, large = [], [], [], []
    for _ in range(rounds):
        around = [await one_pass(few, loop) for _ in range(HALF)]
        large.append(await one_pass(many, loop))
        around += [await one_pass(few, loop) for _ in range(HALF)]
        times.append(large[-1].seconds / (sum(one.seconds for one in around) / len(around)))
        by_cpu.append(large[-1].cpu / (sum(one.cpu for one in around) / len(around)))
        small += around
    peaks = {scene.count: await peak_of(scene, loop) for scene in (few, many)}
    return {
        "ratio": round(median(times), 3),
        "by_cpu": round(median(by_cpu), 3),
        "rounds": [round(one, 2) for one in times],
        "memory": peaks[many.count] / peaks[few.count],
        "passes": {str(few.count): _shown(small, peaks[few.count]), str(many.count): _shown(large, peaks[many.count])},
    }


def _shown(passes: list[Measured], peak: int) -> dict[str, float]:
    seconds = sum(one.seconds for one in passes) / len(passes)
    return {"seconds": round(seconds, 3), "statements": passes[-1].statements, "peak_mb": round(peak / 1e6, 3)}


async def measure(urls: dict[int, str], rounds: int) -> dict[str, dict[str, Any]]:
    """All loops."""
    few, many = [await opened(urls[count], count) for count in (FEW, MANY)]
    try:
        return {loop.name: await compare(few, many, loop, rounds) for loop in loops(GraphsSettings())}
    finally:
        await few.pool.close()
        await many.pool.close()


def fill(url: str, count: int) -> None:
    """The schema, and so many instances."""
    migrate.migrate(url)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(SNAPSHOT)
        conn.execute(JOBS, {"count": count})
        conn.execute(FILL, {"count": count})
        conn.execute(SECRETS)
        conn.execute("VACUUM (ANALYZE)")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.graph_loops", description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="write the ratios to results.json")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        urls = {}
        for count in (FEW, MANY):
            server = EmbeddedPostgres(Path(folder) / str(count), port=0, on_message=lambda _: None)
            urls[count] = servers.enter_context(server).url
            fill(urls[count], count)
        found = asyncio.run(measure(urls, chosen.rounds))
    for name, one in found.items():
        few, many = one["passes"].values()
        print(f"{name:24} {few['seconds']:7.3f} s -> {many['seconds']:7.3f} s ({one['ratio']:5.2f}x, by processor time "
              f"{one['by_cpu']:5.2f}x)   {few['statements']:4} -> {many['statements']:5} statements   "
              f"{few['peak_mb']:6.2f} -> {many['peak_mb']:6.2f} MB ({one['memory']:4.2f}x)")  # fmt: skip
    slowest, largest = max(one["ratio"] for one in found.values()), max(one["memory"] for one in found.values())
    print({"graph_loops_10k_vs_1k_time": round(slowest, 2), "graph_loops_10k_vs_1k_memory": round(largest, 2)})
    if chosen.write:
        kept = ("passes", "rounds", "by_cpu")
        more = {key: {name: one[key] for name, one in found.items()} for key in kept}
        keep("graph_loops_10k_vs_1k_time", slowest, 12, "lower", load=os.getloadavg()[0], **more)
        keep("graph_loops_10k_vs_1k_memory", largest, 1.2, "lower")


if __name__ == "__main__":
    main()
