"""The rows of the schema cache: written in bulk, one catalog at a time; read by path and by prefix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import psycopg
from psycopg.rows import class_row, dict_row, tuple_row

from holdfast.engines.port import Entry
from holdfast.errors import NotFound

Conn = psycopg.AsyncConnection[Any]
Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Cached:
    """One entry. The entry of a table has no column, that of a schema no table."""

    engine: str
    catalog: str
    schema: str | None
    table: str | None
    column: str | None
    entity: str
    type: str | None
    position: int | None
    refreshed_at: datetime


# ---------------------------------------------------------------------------------------------------------------------
# Writing
# ---------------------------------------------------------------------------------------------------------------------

UPSERT = """
    INSERT INTO holdfast.schema_cache (engine, catalog, schema_name, table_name, column_name, type, position, refreshed_at)
    SELECT %(engine)s, c, s, t, n, k, p, %(at)s
    FROM unnest(%(catalogs)s::text[], %(schemas)s::text[], %(tables)s::text[], %(columns)s::text[], %(types)s::text[],
                %(positions)s::int[]) AS e(c, s, t, n, k, p)
    ON CONFLICT (engine, catalog, schema_name, table_name, column_name)
    DO UPDATE SET type = excluded.type, position = excluded.position, refreshed_at = excluded.refreshed_at
"""
# Entries that a successful refresh did not see no longer exist.
EXPIRE = """
    DELETE FROM holdfast.schema_cache WHERE engine = %(engine)s AND catalog = %(catalog)s AND refreshed_at < %(at)s
"""
NOTE_REFRESH = """
    INSERT INTO holdfast.schema_refreshes AS r (engine, catalog, refreshed_at, tried_at, error)
    VALUES (%(engine)s, %(catalog)s, CASE WHEN %(error)s::text IS NULL THEN %(at)s::timestamptz END, %(at)s, %(error)s)
    ON CONFLICT (engine, catalog) DO UPDATE SET tried_at = excluded.tried_at, error = excluded.error,
        refreshed_at = coalesce(excluded.refreshed_at, r.refreshed_at)
"""
NOW = "SELECT clock_timestamp()"


async def now(conn: Conn) -> datetime:
    """The time of the database. All entries of one refresh have the same time."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(NOW)
        ((at,),) = await cursor.fetchall()
    found: datetime = at
    return found


def expanded(entries: Iterable[Entry]) -> dict[Key, Entry]:
    """Add the entries of the catalog, schema and table of each entry, without duplicates. Pure."""
    found: dict[Key, Entry] = {}
    for one in entries:
        found.setdefault((one.catalog, "", "", ""), Entry(one.catalog))
        if one.schema:
            found.setdefault((one.catalog, one.schema, "", ""), Entry(one.catalog, one.schema))
        if one.schema and one.table:
            found.setdefault((one.catalog, one.schema, one.table, ""), Entry(one.catalog, one.schema, one.table))
        if one.schema and one.table and one.column:
            found[(one.catalog, one.schema, one.table, one.column)] = one
    return found


async def replace(conn: Conn, engine: str, catalog: str, entries: Iterable[Entry], at: datetime) -> int:
    """Replace the entries of a catalog; the number of entries that no longer exist. Call it in a transaction."""
    found = expanded([Entry(catalog), *entries])
    keys = list(found)
    parameters = {
        "engine": engine,
        "at": at,
        "catalogs": [key[0] for key in keys],
        "schemas": [key[1] for key in keys],
        "tables": [key[2] for key in keys],
        "columns": [key[3] for key in keys],
        "types": [one.type for one in found.values()],
        "positions": [one.position for one in found.values()],
    }
    await conn.execute(UPSERT, parameters)
    expired = await conn.execute(EXPIRE, {"engine": engine, "catalog": catalog, "at": at})
    await conn.execute(NOTE_REFRESH, {"engine": engine, "catalog": catalog, "at": at, "error": None})
    return expired.rowcount


async def note_failure(conn: Conn, engine: str, catalog: str, error: str, at: datetime) -> None:
    """Record that a catalog could not be read. Its entries stay."""
    await conn.execute(NOTE_REFRESH, {"engine": engine, "catalog": catalog, "at": at, "error": error[:2000]})


KNOWN = "SELECT catalog FROM holdfast.schema_refreshes WHERE engine = %(engine)s ORDER BY catalog LIMIT 10000"
# A complete refresh succeeded without this catalog, and its TTL has passed.
FORGET = """
    WITH gone AS (
        DELETE FROM holdfast.schema_refreshes WHERE engine = %(engine)s AND catalog <> ALL (%(seen)s)
          AND coalesce(refreshed_at, tried_at) < %(at)s::timestamptz - %(ttl)s
        RETURNING catalog
    )
    DELETE FROM holdfast.schema_cache WHERE engine = %(engine)s AND catalog IN (SELECT catalog FROM gone)
"""


async def known_catalogs(conn: Conn, engine: str) -> list[str]:
    """The catalogs that an earlier refresh has seen."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(KNOWN, {"engine": engine})
        return [row[0] for row in await cursor.fetchall()]


async def forget_catalogs(conn: Conn, engine: str, seen: list[str], at: datetime, ttl: Any) -> int:
    """Delete catalogs that a complete refresh did not list and that were last seen longer ago than `ttl`."""
    return (await conn.execute(FORGET, {"engine": engine, "seen": seen, "at": at, "ttl": ttl})).rowcount


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------

ENTRY = """engine, catalog, nullif(schema_name, '') AS schema, nullif(table_name, '') AS "table",
    nullif(column_name, '') AS "column", entity, type, position, refreshed_at"""
BROWSE = f"""
    SELECT {ENTRY} FROM holdfast.schema_cache
    WHERE entity = %(entity)s AND (%(engine)s::text IS NULL OR engine = %(engine)s)
      AND (%(catalog)s::text IS NULL OR lower(catalog) = lower(%(catalog)s))
      AND (%(schema)s::text IS NULL OR lower(schema_name) = lower(%(schema)s))
      AND (%(table)s::text IS NULL OR lower(table_name) = lower(%(table)s))
    ORDER BY engine, catalog, schema_name, table_name, position, column_name LIMIT 10000
"""
SEARCH = f"""
    SELECT {ENTRY} FROM holdfast.schema_cache WHERE entity = '{{entity}}' AND lower({{name}}) LIKE %(pattern)s
    ORDER BY lower({{name}}), catalog, schema_name, table_name LIMIT %(limit)s
"""


async def browse(conn: Conn, entity: str, **within: str | None) -> list[Cached]:
    """The catalogs, the schemas of a catalog, the tables of a schema, or the columns of a table; `NotFound` if unknown."""
    parameters = {"entity": entity, "engine": None, "catalog": None, "schema": None, "table": None} | within
    async with conn.cursor(row_factory=class_row(Cached)) as cursor:
        await cursor.execute(BROWSE, parameters)
        found = await cursor.fetchall()
    path = ".".join(value for name, value in within.items() if value is not None and name != "engine")
    if not found and path and not await _is_known(conn, within):
        raise NotFound(f"{path} is not in the schema cache; check `holdfast schema stats`, or refresh it")
    return found


IS_KNOWN = """
    SELECT EXISTS (SELECT FROM holdfast.schema_cache WHERE lower(catalog) = lower(%(catalog)s)
        AND (%(schema)s::text IS NULL OR lower(schema_name) = lower(%(schema)s))
        AND (%(table)s::text IS NULL OR lower(table_name) = lower(%(table)s)))
"""


async def _is_known(conn: Conn, within: dict[str, str | None]) -> bool:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(IS_KNOWN, {"catalog": None, "schema": None, "table": None} | within)
        ((known,),) = await cursor.fetchall()
    return bool(known)


async def search(conn: Conn, entity: str, prefix: str, *, limit: int) -> list[Cached]:
    """Tables or columns whose name starts with the prefix, in all catalogs and schemas, ignoring case."""
    statement = SEARCH.format(entity=entity, name={"table": "table_name", "column": "column_name"}[entity])
    escaped = prefix.lower().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    async with conn.cursor(row_factory=class_row(Cached)) as cursor:
        await cursor.execute(statement, {"pattern": f"{escaped}%", "limit": limit})
        return await cursor.fetchall()


UNREAD = """
    SELECT name FROM unnest(%(engines)s::text[]) AS name
    WHERE NOT EXISTS (SELECT FROM holdfast.schema_cache c WHERE c.engine = name) LIMIT 1
"""


async def is_incomplete(conn: Conn, engines: list[str]) -> bool:
    """Whether the cache has no entries for one of these engines."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(UNREAD, {"engines": engines})
        return await cursor.fetchone() is not None


COUNTS = "SELECT entity, count(*) FROM holdfast.schema_cache GROUP BY entity"
REFRESHES = """
    SELECT engine, catalog, refreshed_at, tried_at, error,
           coalesce(refreshed_at < clock_timestamp() - %(ttl)s, true) AS is_stale
    FROM holdfast.schema_refreshes ORDER BY engine, catalog LIMIT 10000
"""


async def counts(conn: Conn) -> dict[str, int]:
    """The number of entries of each kind."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNTS)
        found = {row[0]: row[1] for row in await cursor.fetchall()}
    return {entity: found.get(entity, 0) for entity in ("catalog", "schema", "table", "column")}


LAST_TRIED = "SELECT max(tried_at) FROM holdfast.schema_refreshes"


async def last_tried(conn: Conn) -> datetime | None:
    """The time of the last try to read a catalog."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(LAST_TRIED)
        ((at,),) = await cursor.fetchall()
    return cast("datetime | None", at)


async def stats(conn: Conn, ttl: Any) -> dict[str, Any]:
    """The number of entries, and the result of the last refresh of each catalog."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(REFRESHES, {"ttl": ttl})
        catalogs = await cursor.fetchall()
    last = max((one["refreshed_at"] for one in catalogs if one["refreshed_at"]), default=None)
    return {"entries": await counts(conn), "last_refresh": last, "catalogs": catalogs}
