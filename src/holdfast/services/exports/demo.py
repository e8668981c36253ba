"""The export demo: generated tables, a mapping, a snapshot, a worker that is killed during the export, and Parquet files.

Called by: `holdfast up`, after the pipeline demo. The first worker is killed with SIGKILL when it has written a file that no
manifest names yet. A second worker takes over its jobs and writes to folders of its own attempts; the files of the killed
attempt are removed. At the end every row is in the files exactly once, which is counted.
"""

from __future__ import annotations

import asyncio
import signal
import time
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import psycopg
from rich.console import Console
from rich.table import Table

from holdfast.database.pool import connect
from holdfast.engines.duckdb import open_duckdb
from holdfast.engines.duckdb.options import DuckDbOptions
from holdfast.services.exports.kinds import KINDS
from holdfast.services.exports.mappings import store
from holdfast.services.exports.mappings.definitions import Graph
from holdfast.services.exports.mappings.dry_run import check
from holdfast.services.exports.mappings.store import NewMapping
from holdfast.services.exports.settings import ExportsSettings
from holdfast.services.exports.snapshots import read
from holdfast.services.exports.snapshots.create import NewSnapshot, create
from holdfast.services.exports.snapshots.read import ExportView
from holdfast.settings import Settings
from holdfast.toolkit.demo import Process, begin, folder_beside, new_folder, start, stop
from holdfast.worker.options import WorkerOptions
from holdfast.worker.without_keeper import work

OWNER: Final = "demo"
KILLED_AT: Final = "export.part_put"  # one file is in the store, and no manifest names it
BEAT, LEASE, LONGEST = 0.7, 3.0, 240.0  # seconds

# 620,000 rows: customers, accounts, who owns which account, and transfers between accounts.
TABLES: Final = {
    "customers": "SELECT i AS id, 'customer ' || i AS name, DATE '2020-01-01' + (i % 999)::INT since FROM range(120000) t(i)",
    "accounts": "SELECT 'A' || i AS number, round(i * 7919 % 100000 / 7, 2)::DOUBLE AS balance FROM range(150000) t(i)",
    "owns": "SELECT i % 120000 AS customer_id, 'A' || i AS account FROM range(150000) t(i)",
    "transfers": "SELECT 'A' || (i * 31 % 150000) AS source, 'A' || (i * 17 % 150000) AS target, i + 1 AS cents "
    "FROM range(200000) t(i)",
}


def graph_over(folder: Path) -> Graph:
    """Two node types and two edge types over the files of a folder."""
    text, whole = "STRING", "INT64"

    def rows(table: str, columns: str) -> str:
        return f"SELECT {columns} FROM read_parquet('{folder}/{table}.parquet')"

    def named(*pairs: tuple[str, str]) -> list[dict[str, str]]:
        return [{"name": name, "type": type_} for name, type_ in pairs]

    customer = {"label": "Customer", "sql": rows("customers", "id, name, since"), "primary_key": named(("id", whole))[0]}
    account = {"label": "Account", "sql": rows("accounts", "number, balance"), "primary_key": named(("number", text))[0]}
    owns = {"type": "OWNS", "from_node": "Customer", "to_node": "Account", "from_key": "customer_id", "to_key": "account"}
    paid = {"type": "PAID", "from_node": "Account", "to_node": "Account", "from_key": "source", "to_key": "target"}
    return Graph.of(
        [
            {**customer, "properties": named(("name", text), ("since", "DATE"))},
            {**account, "properties": named(("balance", "DOUBLE"))},
        ],
        [
            {**owns, "sql": rows("owns", "customer_id, account")},
            {**paid, "sql": rows("transfers", "source, target, cents"), "properties": named(("cents", whole))},
        ],
    )


async def play(url: str, console: Console, given: Settings) -> bool:
    """Run the demo on this database; whether its result is correct."""
    assert isinstance(given, ExportsSettings)
    folder = await asyncio.to_thread(new_folder, folder_beside(given.data_dir))
    conn = await connect(url)
    workers: list[Process] = []
    try:
        rows = await asyncio.to_thread(_make_tables, folder)
        console.print(f"\n[bold]Export demo[/]: {rows:,} generated rows, 2 node types and 2 edge types")
        snapshot_id = await _begin(conn, folder, given)
        workers.append(await _start_worker(url, "exporter-1", folder, KILLED_AT))
        if await asyncio.wait_for(workers[0].wait(), LONGEST) != -signal.SIGKILL:
            console.print("  [bold red]WRONG[/]: exporter-1 should have been killed")
            return False
        killed_at = time.monotonic()
        console.print("  SIGKILL to exporter-1 during the export: an unpublished file is left in the store", style="bold red")
        workers.append(await _start_worker(url, "exporter-2", folder, None))
        status = await _until_ended(conn, snapshot_id)
        console.print(
            f"  exporter-2 took over and finished {time.monotonic() - killed_at:.1f} s later: {status}", style="green"
        )
        return await _conclude(conn, snapshot_id, console)
    finally:
        await stop(workers)
        await conn.close()


def _make_tables(folder: Path) -> int:
    database = import_module("duckdb").connect(":memory:")
    counts = [
        database.execute(f"COPY ({sql}) TO '{folder}/{table}.parquet' (FORMAT parquet)").fetchone()[0]
        for table, sql in TABLES.items()
    ]
    database.close()
    return int(sum(counts))


async def _begin(conn: psycopg.AsyncConnection[Any], folder: Path, given: ExportsSettings) -> int:
    """The mapping, checked by the engine before it is stored, and a snapshot of it."""
    graph = graph_over(folder)
    engine = open_duckdb(DuckDbOptions.from_settings(given.model_copy(update={"duckdb_dirs": str(folder)})))
    try:
        await check(graph, engine, files=True)
    finally:
        await engine.close()
    async with conn.transaction():
        head, _ = await store.create(conn, NewMapping(f"demo {time.monotonic_ns()}", "duckdb", graph), owner=OWNER)
        return await create(conn, NewSnapshot(head.id, str(folder / "snapshots"), 600.0), owner=OWNER)


async def _start_worker(url: str, name: str, folder: Path, crash_at: str | None) -> Process:
    """A worker that may read and write this folder, and nothing else."""
    allowed = {"HOLDFAST_EXPORT_DIRS": str(folder), "HOLDFAST_DUCKDB_DIRS": str(folder), "HOLDFAST_MAPPINGS_READ_FILES": "true"}
    return await start("holdfast.services.exports.demo", url, name, crash_at or "", **allowed)


async def _until_ended(conn: psycopg.AsyncConnection[Any], snapshot_id: int) -> str:
    async with asyncio.timeout(LONGEST):
        while True:
            snapshot = await read.get(conn, snapshot_id)
            if snapshot.finished_at is not None:
                return snapshot.status
            await asyncio.sleep(0.1)


async def _conclude(conn: psycopg.AsyncConnection[Any], snapshot_id: int, console: Console) -> bool:
    """Count the rows that the manifests name and those in the files."""
    exports = await read.exports_of(conn, snapshot_id)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("export", "rows", "bytes", "files", "attempts"):
        table.add_column(column, justify="left" if column == "export" else "right")
    for one in exports:
        files = len(one.files or ())
        table.add_row(one.entity_name, f"{one.row_count:,}", f"{one.size_bytes:,}", str(files), str(one.attempts))
    console.print(table)
    found = {one.entity_name: await asyncio.to_thread(_rows_in, one) for one in exports}
    right = found == {"Customer": 120_000, "Account": 150_000, "OWNS": 150_000, "PAID": 200_000}
    mark = "[bold green]every row exactly once[/]" if right else f"[bold red]WRONG: {found}[/]"
    console.print(f"  {sum(found.values()):,} rows in Parquet below {(await read.get(conn, snapshot_id)).location}: {mark}")
    return right


def _rows_in(export: ExportView) -> int:
    """The number of distinct rows in the files that the manifest names; -1 if it differs from the manifest's count."""
    files = [str(Path(export.location) / file["path"]) for file in export.files or ()]
    table = import_module("pyarrow.parquet").read_table(files, partitioning=None)
    return int(table.group_by(table.column_names).aggregate([]).num_rows) if table.num_rows == export.row_count else -1


def _work(url: str, name: str, crash_at: str) -> None:
    """A worker process of the demo."""
    beat, lease, grace = timedelta(seconds=BEAT), timedelta(seconds=LEASE), timedelta(seconds=1)
    options = WorkerOptions(concurrency=2, beat=beat, lease=lease, grace=grace, name=name)
    work(url, KINDS, options, crash_at=crash_at or None)


if __name__ == "__main__":
    _work(*begin())
