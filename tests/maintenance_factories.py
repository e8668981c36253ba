"""Short words for the tests of maintenance: tables of the cache, requests, jobs that are run here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from factories import Conn, rows, value
from holdfast.services.maintenance.engines.interface import HealthInputs, TableRef, TableStats
from holdfast.services.maintenance.opening import open_catalogs
from holdfast.services.maintenance.setup import Maintenance
from holdfast.services.maintenance.tables import cache

ORDERS = TableRef("default", "sales", "orders")
PATH = "/api/tables/sales/orders/maintenance"
MIB = 1 << 20

STATS = TableStats(
    snapshot_id=7, data_files=1000, data_bytes=10 * MIB, records=100_000, delete_files=0, manifests=5, snapshots=12
)
INPUTS = HealthInputs(
    stats=STATS,
    target_file_bytes=128 * MIB,
    small_files=1000,
    small_bytes=10 * MIB,
    partitions=1,
    small_partitions=1,
    files_with_deletes=0,
    equality_delete_files=0,
    oldest_snapshot_seconds=3600,
    newest_snapshot_seconds=60,
    snapshots_over_5_days=0,
    format_version=2,
)
HEALTHY = replace(INPUTS, stats=replace(STATS, data_files=1, data_bytes=128 * MIB), small_files=0, small_bytes=0)


async def know(conn: Conn, table: TableRef = ORDERS, inputs: HealthInputs | None = INPUTS) -> TableRef:
    """Put a table into the cache."""
    if inputs is None:
        await cache.see(conn, [table])
    else:
        await cache.note_measured(conn, table, inputs)
    return table


async def actions_of(conn: Conn, job_id: int) -> dict[str, str]:
    """The status of each action of a run."""
    found = "SELECT action, status FROM holdfast.maintenance_actions WHERE job_id = %s ORDER BY position"
    return dict(await rows(conn, found, job_id))


async def run_of(conn: Conn, job_id: int, column: str = "state") -> Any:
    """One column of a run."""
    return await value(conn, f"SELECT {column} FROM holdfast.maintenance_runs WHERE job_id = %s", job_id)


async def until(condition: Callable[[], Awaitable[Any]], seconds: float = 60) -> Any:
    """Wait for something that will come; what it was."""
    async with asyncio.timeout(seconds):
        while True:
            found = await condition()
            if found:
                return found
            await asyncio.sleep(0.01)


# ---------------------------------------------------------------------------------------------------------------------
# Real tables in the embedded catalog
# ---------------------------------------------------------------------------------------------------------------------


def make_table(here: Maintenance, url: str, *, files: int = 12, rows_each: int = 10, table: TableRef = ORDERS) -> int:
    """A table of small files in the embedded catalog, one commit for each file; its number of rows."""
    catalogs = open_catalogs(here.settings, url)
    try:
        catalog = catalogs.open_for_writers(table.catalog)
        catalog.create_namespace_if_not_exists(table.namespace)
        made = catalog.create_table(table.identifier, schema=pa.schema([("id", pa.int64()), ("note", pa.string())]))
        for number in range(files):
            first = number * rows_each
            ids = list(range(first, first + rows_each))
            made.append(pa.table({"id": ids, "note": [f"row {one}" for one in ids]}))
    finally:
        catalogs.close()
    return files * rows_each


def read_ids(here: Maintenance, url: str, table: TableRef = ORDERS) -> list[int]:
    """The ids in a table, sorted; one that is there twice is listed twice."""
    catalogs = open_catalogs(here.settings, url)
    try:
        found = catalogs.open_for_writers(table.catalog).load_table(table.identifier).scan().to_arrow()
    finally:
        catalogs.close()
    return sorted(found.column("id").to_pylist())
