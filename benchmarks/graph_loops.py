"""One pass of each loop of graphs on 1,000 and on 10,000 instances: time, statements and peak memory, as ratios.

    python -m benchmarks.graph_loops [--write]

The rows are real and the runtime answers from memory, so that the loops are measured and not 10,000 processes. A pass runs
alone; it is repeated, and the median counts. Memory is the peak of Python's allocations during the pass.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import statistics
import tempfile
import time
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool

from benchmarks.keep import keep
from holdfast.database import migrate
from holdfast.database.embedded import EmbeddedPostgres
from holdfast.schedule.context import Held, Pass
from holdfast.schedule.term import ensure, take
from holdfast.services.graphs.loops import loops
from holdfast.services.graphs.proxy import Proxy
from holdfast.services.graphs.runtimes.interface import Observed
from holdfast.services.graphs.settings import GraphsSettings
from holdfast.services.graphs.setup import Graphs

ROUNDS = 3
FEW, MANY = 1000, 10_000
LONG = timedelta(minutes=30)
FILL = """
    INSERT INTO holdfast.graph_instances (owner, name, engine, mapping_id, mapping_version, snapshot_id, state, job_id,
        start_token, memory_mb, cpu, address, started_at, runtime_name, ttl, inactivity_timeout, last_activity_at, state_since)
    SELECT 'o' || n %% 100, 'g' || n, 'ladybug', 1, 1, 1, CASE WHEN n %% 4 = 0 THEN 'starting' ELSE 'running' END, n,
        gen_random_uuid(), 2048, 1, 'http://127.0.0.1:1', now(), 'pod-' || n, 'PT24H', 'PT4H', now(), now() - interval '1 hour'
    FROM generate_series(1, %(count)s) n
"""
JOBS = "INSERT INTO holdfast.jobs (kind, payload) SELECT 'graphs.start', '{}' FROM generate_series(1, %(count)s)"
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


async def measure(url: str) -> dict[str, tuple[float, int, int]]:
    """Seconds, statements and peak bytes of one pass of each loop: medians."""
    async with AsyncConnectionPool(url, min_size=2, max_size=2, kwargs={"autocommit": True}) as pool:
        async with pool.connection() as conn:
            cursor = await conn.execute("SELECT id, start_token::text FROM holdfast.graph_instances ORDER BY id")
            found = await cursor.fetchall()
        made = datetime(2026, 1, 1, tzinfo=UTC)
        listed = [
            Observed(instance_id=i, start_token=token, fence_token=1, phase="running", created_at=made, address="http://x",
                     memory_bytes=2**30, memory_limit_mb=2048, name=f"pod-{i}")
            for i, token in found
        ]  # fmt: skip
        Graphs(runtime=Remembered(listed), proxy=Proxy()).share()  # type: ignore[arg-type]
        return {loop.name: await _median(pool, url, loop) for loop in loops(GraphsSettings())}


async def _median(pool: Any, url: str, loop: Any) -> tuple[float, int, int]:
    rounds = [await _once(pool, url, loop) for _ in range(ROUNDS)]
    return (
        statistics.median(one[0] for one in rounds),
        int(statistics.median(one[1] for one in rounds)),
        int(statistics.median(one[2] for one in rounds)),
    )


async def _once(pool: Any, url: str, loop: Any) -> tuple[float, int, int]:
    async with pool.connection() as conn:
        await conn.execute("DELETE FROM holdfast.loops WHERE name = %s", [loop.name])
        ready = dataclasses.replace(loop, first_run="at_once")
        await ensure(conn, [ready])
        term = (await take(conn, ready, "bench")).term
    statements = 0

    class Counted(psycopg.AsyncCursor[Any]):
        async def execute(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal statements
            statements += 1
            return await super().execute(*args, **kwargs)

    class Borrowed:
        async def __aenter__(self) -> Any:
            self._lent = pool.connection()
            conn = await self._lent.__aenter__()
            conn.cursor_factory = Counted
            return conn

        async def __aexit__(self, *error: Any) -> None:
            await self._lent.__aexit__(*error)

    ctx = Pass(term, Held(LONG), Borrowed, url)
    began = time.perf_counter()
    result = await loop.function(ctx)
    seconds = time.perf_counter() - began
    assert (result.items, result.failed) == (0, 0), result
    tracemalloc.start()
    await loop.function(ctx)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return seconds, statements, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the ratios to results.json")
    write = parser.parse_args().write
    figures: dict[int, dict[str, tuple[float, int, int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for count in (FEW, MANY):
            with EmbeddedPostgres(Path(folder) / str(count), port=0, on_message=lambda _: None) as postgres:
                migrate.migrate(postgres.url)
                with psycopg.connect(postgres.url, autocommit=True) as conn:
                    conn.execute(SNAPSHOT)
                    conn.execute(JOBS, {"count": count})
                    conn.execute(FILL, {"count": count})
                    conn.execute("ANALYZE")
                figures[count] = asyncio.run(measure(postgres.url))
    times, memories = [], []
    for name in figures[FEW]:
        few, many = figures[FEW][name], figures[MANY][name]
        times.append(many[0] / few[0])
        memories.append(many[2] / few[2])
        print(f"{name:24} {few[0]:7.3f} s -> {many[0]:7.3f} s ({times[-1]:5.2f}x)   {few[1]:4} -> {many[1]:5} statements   "
              f"{few[2] / 1e6:6.2f} -> {many[2] / 1e6:6.2f} MB ({memories[-1]:4.2f}x)")  # fmt: skip
    print({"graph_loops_10k_vs_1k_time": round(max(times), 2), "graph_loops_10k_vs_1k_memory": round(max(memories), 2)})
    if write:
        passes = {name: {str(count): _shown(figures[count][name]) for count in (FEW, MANY)} for name in figures[FEW]}
        keep("graph_loops_10k_vs_1k_time", max(times), 12, "lower", load=os.getloadavg()[0], passes=passes)
        keep("graph_loops_10k_vs_1k_memory", max(memories), 1.2, "lower")


def _shown(measured: tuple[float, int, int]) -> dict[str, float]:
    return {"seconds": round(measured[0], 3), "statements": measured[1], "peak_mb": round(measured[2] / 1e6, 3)}


if __name__ == "__main__":
    main()
