"""One client reads one table from `trino_pages` into Arrow, and says how fast: a process of its own for each.

`python -m benchmarks.trino_clients ours http://127.0.0.1:1234 wide plain` prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import resource
import sys
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.trino_pages import ENCODING, PAGE_ROWS, TABLES
from holdfast.engines.port import Query
from holdfast.engines.trino import TrinoOptions, open_trino
from holdfast.engines.trino.signature import read_signature

MODULES = {"ours": "holdfast.engines.trino.engine", "official": "trino.dbapi"}
Sink = Callable[[pa.RecordBatch], None]


def ours(url: str, schema: pa.Schema, spooled: bool, sink: Sink) -> None:
    """The engine of exports."""

    async def read() -> None:
        engine = open_trino(TrinoOptions(url, "bench", role_required=False, encodings=(ENCODING,) if spooled else ()))
        async with engine.stream(Query("SELECT * FROM t", "bench")) as rows:
            async for batch in rows.batches():
                await asyncio.to_thread(sink, batch)
        await engine.close()

    asyncio.run(read())


def official(url: str, schema: pa.Schema, spooled: bool, sink: Sink) -> None:
    """The client of the project itself, its rows made into columns and its values into Arrow's."""
    trino = importlib.import_module(MODULES["official"])
    parts = urlsplit(url)
    encoding = {"encoding": ENCODING} if spooled else {"encoding": []}
    cursor = trino.connect(host=parts.hostname, port=parts.port, user="bench", timezone="UTC", **encoding).cursor()
    cursor.execute("SELECT * FROM t")
    while rows := cursor.fetchmany(PAGE_ROWS):
        arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
        sink(pa.RecordBatch.from_arrays(arrays, schema=schema))


def measure(client: str, url: str, table: str, way: str, file: str | None = None) -> dict[str, float]:
    """Rows a second, CPU and peak memory of reading the whole table, into Arrow or on into a Parquet file."""
    schema = pa.schema([(name, read_signature(one).arrow) for name, one in TABLES[table]])
    count = 0
    writer = pq.ParquetWriter(file, schema, compression="zstd") if file else None

    def sink(batch: pa.RecordBatch) -> None:
        nonlocal count
        count += batch.num_rows
        if writer is not None:
            writer.write_batch(batch)

    importlib.import_module(MODULES[client])  # what a worker has loaded long before
    started, spent = time.perf_counter(), time.process_time()
    {"ours": ours, "official": official}[client](url, schema, way == "spooled", sink)
    if writer is not None:
        writer.close()
    seconds, cpu = time.perf_counter() - started, time.process_time() - spent
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": count, "seconds": seconds, "rows_per_second": count / seconds, "cpu_seconds": cpu, "peak_mib": peak}


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
