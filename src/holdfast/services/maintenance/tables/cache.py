"""The table cache: what is known of the tables of the catalogs. Written by: the loop `table_health`, requests for unknown
tables.

Rows of tables that a catalog does not list any more are deleted, but only after the catalog was read to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row, tuple_row
from psycopg.types.json import Jsonb

from holdfast.jobs.payload import storable
from holdfast.services.maintenance.engines.interface import HealthInputs, TableRef
from holdfast.services.maintenance.tables.health import Health, health_of, inputs_from

Conn = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A table of the cache, as it is stored."""

    catalog: str
    namespace: str
    name: str
    inputs: dict[str, Any] | None
    health: int | None
    measured_at: datetime | None
    error: str | None
    found_at: datetime
    seen_at: datetime
    last_job_id: int | None
    last_state: str | None
    last_finished_at: datetime | None
    running_job_id: int | None

    @property
    def ref(self) -> TableRef:
        return TableRef(self.catalog, self.namespace, self.name)

    @property
    def of_health(self) -> Health | None:
        """The score with its parts, computed from the stored inputs."""
        return None if self.inputs is None else health_of(inputs_from(self.inputs))


# With the newest run that ended, and the one that has the table or waits for it.
COLUMNS = """
    t.catalog, t.namespace, t.name, t.inputs, t.health, t.measured_at, t.error, t.found_at, t.seen_at,
    last.job_id AS last_job_id, last.state AS last_state, last.finished_at AS last_finished_at, live.job_id AS running_job_id
"""
RUNS = """
    LEFT JOIN LATERAL (
        SELECT r.job_id, r.state, r.finished_at FROM holdfast.maintenance_runs r
        WHERE (r.catalog, r.namespace, r.name) = (t.catalog, t.namespace, t.name)
          AND r.finished_at IS NOT NULL AND NOT r.dry_run
        ORDER BY r.job_id DESC LIMIT 1) AS last ON true
    LEFT JOIN LATERAL (
        SELECT r.job_id FROM holdfast.maintenance_runs r
        WHERE (r.catalog, r.namespace, r.name) = (t.catalog, t.namespace, t.name) AND r.finished_at IS NULL AND NOT r.dry_run
        ORDER BY r.job_id LIMIT 1) AS live ON true
"""
GET = f"""
    SELECT {COLUMNS} FROM holdfast.maintenance_tables t {RUNS}
    WHERE t.catalog = %(catalog)s AND t.namespace = %(namespace)s AND t.name = %(name)s
"""
LIST = f"""
    SELECT {COLUMNS} FROM holdfast.maintenance_tables t {RUNS}
    WHERE (t.catalog, t.namespace, t.name) > (%(after_catalog)s, %(after_namespace)s, %(after_name)s)
      AND (%(catalog)s::text IS NULL OR t.catalog = %(catalog)s)
      AND (%(namespace)s::text IS NULL OR t.namespace = %(namespace)s)
      AND (%(search)s::text IS NULL OR strpos(t.namespace || '.' || t.name, %(search)s) > 0)
      AND (%(health_below)s::int IS NULL OR t.health < %(health_below)s)
    ORDER BY t.catalog, t.namespace, t.name LIMIT %(limit)s
"""


async def get(conn: Conn, table: TableRef) -> Row | None:
    """One table; None if it is not in the cache."""
    async with conn.cursor(row_factory=class_row(Row)) as cursor:
        await cursor.execute(GET, _key(table))
        return await cursor.fetchone()


async def listed(conn: Conn, *, limit: int, after: Sequence[str] | None = None, **filters: Any) -> list[Row]:
    """Tables by name, one more than `limit`. Filters: catalog, namespace, search, health_below."""
    first = after or ("", "", "")
    parameters = {
        "catalog": None,
        "namespace": None,
        "search": None,
        "health_below": None,
        **filters,
        "limit": limit + 1,
        **dict(zip(("after_catalog", "after_namespace", "after_name"), first, strict=True)),
    }
    async with conn.cursor(row_factory=class_row(Row)) as cursor:
        await cursor.execute(LIST, parameters)
        return await cursor.fetchall()


async def every(conn: Conn) -> list[Row]:
    """All tables, for policies. A few thousand rows at most are expected."""
    return await listed(conn, limit=1_000_000)


# ---------------------------------------------------------------------------------------------------------------------
# Writing
# ---------------------------------------------------------------------------------------------------------------------

SEE = """
    INSERT INTO holdfast.maintenance_tables (catalog, namespace, name)
    SELECT * FROM unnest(%(catalogs)s::text[], %(namespaces)s::text[], %(names)s::text[])
    ON CONFLICT (catalog, namespace, name) DO UPDATE SET seen_at = clock_timestamp()
"""
FORGET = """
    DELETE FROM holdfast.maintenance_tables t
    WHERE NOT EXISTS (
        SELECT FROM unnest(%(catalogs)s::text[], %(namespaces)s::text[], %(names)s::text[]) AS there (catalog, namespace, name)
        WHERE (there.catalog, there.namespace, there.name) = (t.catalog, t.namespace, t.name))
"""


async def see(conn: Conn, tables: Sequence[TableRef]) -> None:
    """These tables exist."""
    await conn.execute(SEE, _lists(tables))


async def forget_others(conn: Conn, tables: Sequence[TableRef]) -> int:
    """No other tables exist. Call it only with a complete list of all catalogs. Returns how many were deleted."""
    return (await conn.execute(FORGET, _lists(tables))).rowcount


DELETE = "DELETE FROM holdfast.maintenance_tables WHERE catalog = %(catalog)s AND namespace = %(namespace)s AND name = %(name)s"


async def forget(conn: Conn, table: TableRef) -> None:
    """This table does not exist any more."""
    await conn.execute(DELETE, _key(table))


MEASURED = """
    INSERT INTO holdfast.maintenance_tables AS t (catalog, namespace, name, inputs, health, measured_at)
    VALUES (%(catalog)s, %(namespace)s, %(name)s, %(inputs)s, %(health)s, clock_timestamp())
    ON CONFLICT (catalog, namespace, name) DO UPDATE
    SET inputs = excluded.inputs, health = excluded.health, measured_at = excluded.measured_at, error = NULL,
        seen_at = clock_timestamp()
"""
NOT_MEASURED = """
    UPDATE holdfast.maintenance_tables SET error = %(error)s
    WHERE catalog = %(catalog)s AND namespace = %(namespace)s AND name = %(name)s
"""


async def note_measured(conn: Conn, table: TableRef, inputs: HealthInputs) -> None:
    """The figures of a table as they are now."""
    score = health_of(inputs).score
    await conn.execute(MEASURED, {**_key(table), "inputs": Jsonb(inputs.as_json()), "health": score})


async def note_failed(conn: Conn, table: TableRef, error: str) -> None:
    """The table could not be measured; its last figures stay."""
    await conn.execute(NOT_MEASURED, {**_key(table), "error": storable(error, 2000)})


# Tables that were never measured come first, then those with the oldest figures. A table that was maintained since is due.
DUE = """
    SELECT t.catalog, t.namespace, t.name FROM holdfast.maintenance_tables t
    WHERE t.measured_at IS NULL OR t.measured_at < clock_timestamp() - %(older_than)s::interval
       OR EXISTS (SELECT FROM holdfast.maintenance_runs r
                  WHERE (r.catalog, r.namespace, r.name) = (t.catalog, t.namespace, t.name) AND NOT r.dry_run
                    AND r.finished_at > t.measured_at)
    ORDER BY t.measured_at NULLS FIRST, t.catalog, t.namespace, t.name LIMIT %(limit)s
"""


async def to_measure(conn: Conn, *, older_than: Any, limit: int) -> list[TableRef]:
    """The tables whose figures are missing or out of date."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(DUE, {"older_than": older_than, "limit": limit})
        return [TableRef(*row) for row in await cursor.fetchall()]


COUNT = "SELECT health, count(*) FROM holdfast.maintenance_tables GROUP BY health"


async def count_by_score(conn: Conn) -> dict[int | None, int]:
    """How many tables have each score."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT)
        return dict(await cursor.fetchall())


def _key(table: TableRef) -> dict[str, str]:
    return {"catalog": table.catalog, "namespace": table.namespace, "name": table.name}


def _lists(tables: Sequence[TableRef]) -> dict[str, list[str]]:
    return {
        "catalogs": [one.catalog for one in tables],
        "namespaces": [one.namespace for one in tables],
        "names": [one.name for one in tables],
    }
