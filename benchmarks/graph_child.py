"""One measurement of graphs in a process of its own: `python -m benchmarks.graph_child copy|load|arrow|http|small FOLDER …`

It prints one JSON object. Times do not contain the start of the interpreter or imports; the engine imports its library when the
first database is opened, so `copy` and `load` open one in memory before their clock starts.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import ladybug
import pyarrow as pa
import pyarrow.parquet  # before the clock starts

from holdfast.services.graphs.plan import LoadPlan
from holdfast.services.graphs.server import schema
from holdfast.services.graphs.server.engines.select import engine_named
from holdfast.services.graphs.server.loading import load
from holdfast.services.graphs.server.status import ServerStatus
from holdfast.stores.opening import StoreOptions

POOL = 1024**3
ROWS = "MATCH (a:Person)-[k:KNOWS]->(b:Person) RETURN a.id, b.id, k.weight"
ONE = "MATCH (p:Person {id: $id}) RETURN p.name, p.score"


def copied(folder: Path, plan: LoadPlan) -> dict[str, Any]:
    """The engine alone: create the tables, COPY the files, close."""
    began, used = time.monotonic(), time.process_time()
    database = ladybug.Database(str(folder / "copy.db"), buffer_pool_size=POOL)
    connection = ladybug.Connection(database)
    for table in plan.tables:
        connection.execute(schema.creation(table, None))
        connection.execute(f"COPY {table.name} FROM '{table.files[0].path}'")
    connection.close()
    database.close()
    return {"seconds": time.monotonic() - began, "cpu": time.process_time() - used}


def loaded(folder: Path, plan: LoadPlan) -> dict[str, Any]:
    """Our load of the same files: with links, footers, counts, and the database opened again read-only."""
    status, engine = ServerStatus(), engine_named("ladybug")
    status.planned(plan)
    began, used = time.monotonic(), time.process_time()
    file = asyncio.run(load(plan, engine, folder / "data", pool_bytes=POOL, stores=StoreOptions(), status=status))
    database = engine.open(file, pool_bytes=POOL, read_only=True)
    found = {"seconds": time.monotonic() - began, "cpu": time.process_time() - used}
    database.close()
    return found


def in_process(folder: Path, rounds: int) -> dict[str, Any]:
    """The engine's own rows as Arrow, from a loaded database."""
    database = ladybug.Database(str(folder), buffer_pool_size=POOL, read_only=True)
    connection, seconds = ladybug.Connection(database), []
    for _ in range(rounds):
        began = time.monotonic()
        table = connection.execute(ROWS).get_as_arrow(65_536)
        seconds.append(time.monotonic() - began)
    return {"seconds": seconds, "rows": table.num_rows}


def over_http(url: str, secret: str, rounds: int) -> dict[str, Any]:
    """The same rows as an Arrow stream over HTTP."""
    headers = {"Authorization": f"Bearer {secret}", "Accept": "application/vnd.apache.arrow.stream"}
    seconds = []
    with httpx2.Client(base_url=url, headers=headers, timeout=600, trust_env=False) as http:
        for _ in range(rounds):
            began = time.monotonic()
            answer = http.post("/query", json={"query": ROWS, "max_rows": 10_000_000, "timeout_ms": 600_000})
            table = pa.ipc.open_stream(pa.py_buffer(answer.raise_for_status().content)).read_all()
            seconds.append(time.monotonic() - began)
    return {"seconds": seconds, "rows": table.num_rows}


async def small(url: str, secret: str, at_once: int, each: int) -> dict[str, Any]:
    """Small queries of so many clients at once, each with its own connection; the time of each query."""
    seconds: list[float] = []

    async def client(number: int) -> None:
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=600, trust_env=False) as http:
            await http.get("/status")
            await ready.wait()
            for turn in range(each):
                began = time.monotonic()
                answer = await http.post("/query", json={"query": ONE, "parameters": {"id": number * each + turn}})
                assert answer.json()["row_count"] == 1
                seconds.append(time.monotonic() - began)

    ready = asyncio.Event()
    clients = [asyncio.create_task(client(number)) for number in range(at_once)]
    await asyncio.sleep(1)
    began = time.monotonic()
    ready.set()
    await asyncio.gather(*clients)
    seconds.sort()
    whole = time.monotonic() - began
    return {"p50": seconds[len(seconds) // 2], "p95": seconds[int(len(seconds) * 0.95)], "per_second": len(seconds) / whole}


def main() -> None:
    what, *rest = sys.argv[1:]
    match what:
        case "copy" | "load":
            folder = Path(rest[0])
            plan = LoadPlan.from_json((folder.parent / "plan.json").read_text())
            ladybug.Database(":memory:", buffer_pool_size=64 * 1024**2).close()
            found = (copied if what == "copy" else loaded)(folder, plan)
        case "arrow":
            found = in_process(Path(rest[0]), int(rest[1]))
        case "http":
            found = over_http(rest[0], rest[1], int(rest[2]))
        case _:
            found = asyncio.run(small(rest[0], rest[1], int(rest[2]), int(rest[3])))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
