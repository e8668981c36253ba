"""Refresh the table cache: list the catalogs, and measure tables. Called by: the loop `table_health`, and the API for a table
that the cache does not have.

Engines block, so they are called in threads. A table that cannot be measured does not affect the others.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import TermLost
from holdfast.schedule.context import Pass
from holdfast.schedule.registry import Result
from holdfast.services.maintenance import measures
from holdfast.services.maintenance.engines.interface import Engine, MaintenanceError, TableNotFound, TableRef
from holdfast.services.maintenance.run import read
from holdfast.services.maintenance.setup import Maintenance, maintenance_here
from holdfast.services.maintenance.tables import cache
from holdfast.telemetry.error_text import error_text
from holdfast.telemetry.log import log
from holdfast.threads import in_thread

NAME: Final = "table_health"
EVERY: Final = timedelta(minutes=5)
MEASURED_FOR: Final = timedelta(minutes=30)  # figures are measured again when they are older, or after maintenance
PER_PASS: Final = 500
AT_ONCE: Final = 2  # tables that are measured at the same time
Conn = psycopg.AsyncConnection[Any]


async def refresh(ctx: Pass) -> Result:
    """One pass: the list of tables, then the figures of those that are due, oldest first."""
    here = maintenance_here()
    async with ctx.connection() as conn:
        tables = await listed(conn, here)
    async with ctx.transaction() as conn:
        await cache.see(conn, tables)
        gone = await cache.forget_others(conn, tables)
        pruned = await read.prune(conn, here.keep_runs)
        due = await cache.to_measure(conn, older_than=MEASURED_FOR, limit=PER_PASS)
    if not due:
        return Result(fields={"tables": len(tables), "gone": gone, "pruned_runs": pruned})
    engine, done, failed = await here.engine(here.default_engine, ctx.connection), 0, 0
    for start in range(0, len(due), AT_ONCE):
        ctx.check()
        for measured in await asyncio.gather(*(_measure(ctx, engine, table) for table in due[start : start + AT_ONCE])):
            done, failed = done + measured, failed + (not measured)
    return Result(done, failed, fields={"tables": len(tables), "gone": gone, "pruned_runs": pruned})


async def _measure(ctx: Pass, engine: Engine, table: TableRef) -> bool:
    """Measure one table; False if that failed."""
    try:
        inputs = await in_thread(engine.health_inputs, table)
        async with ctx.transaction() as conn:
            await cache.note_measured(conn, table, inputs)
    except TermLost:
        raise
    except TableNotFound:  # dropped since it was listed
        async with ctx.transaction() as conn:
            await cache.forget(conn, table)
        return True
    except Exception as error:  # of the engine or the catalog: the other tables are still measured
        log.warning("table_measure_failed", table=str(table), error=error_text(error))
        measures.measured.labels("failed").inc()
        async with ctx.transaction() as conn:
            await cache.note_failed(conn, table, error_text(error))
        return False
    measures.measured.labels("success").inc()
    return True


# Before the first table is created, the embedded catalog does not exist.
CATALOG_EXISTS = "SELECT to_regclass('holdfast_iceberg.iceberg_tables') IS NOT NULL"
HAS_TABLES = "SELECT EXISTS (SELECT FROM holdfast_iceberg.iceberg_tables)"


async def listed(conn: Conn, here: Maintenance) -> list[TableRef]:
    """Every table of the catalogs. If there is only the embedded one and it is empty, no engine is loaded for that."""
    if here.only_embedded and not (await _is_true(conn, CATALOG_EXISTS) and await _is_true(conn, HAS_TABLES)):
        return []
    engine = await here.engine_at(here.default_engine, conn)
    return await in_thread(lambda: list(engine.list_tables()))


async def _is_true(conn: Conn, statement: str) -> bool:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement)
        row = await cursor.fetchone()
    return row is not None and bool(row[0])


# ---------------------------------------------------------------------------------------------------------------------
# On demand
# ---------------------------------------------------------------------------------------------------------------------


class CatalogUnavailable(MaintenanceError):
    """The catalogs cannot be listed, so nobody knows whether a table exists."""

    slug = "catalog-unavailable"


async def find(conn: Conn, here: Maintenance, table: TableRef) -> cache.Row | None:
    """A table of the cache. If it is not there, the catalogs are listed again; None: they do not have it either.

    That answer is repeated for `HOLDFAST_TABLE_LOOKUP_SECONDS`, so that wrong names do not load the catalogs.
    """
    found = await cache.get(conn, table)
    if found is not None or here.is_known_missing(table):
        return found
    try:
        tables = await listed(conn, here)
    except Exception as error:  # of the engine or the catalog
        log.warning("table_cache_catalog_failed", error=error_text(error))
        raise CatalogUnavailable(f"the table {table} is not in the cache, and its catalog does not answer") from error
    await cache.see(conn, tables)
    if table not in tables:
        here.note_missing(table)
        return None
    return await cache.get(conn, table)
