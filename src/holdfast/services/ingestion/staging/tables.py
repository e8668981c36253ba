"""The staging tables of one attempt: created, filled with COPY, and dropped.

Their names have the job's id and the fence token, so two attempts never share one. They are unlogged. The load drops them in
the transaction that ends the job. What a killed attempt leaves is dropped by the next attempt or by the loop
`ingestion_staging`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.abc import PQGen
from psycopg.pq.abc import PGconn
from psycopg.rows import tuple_row
from psycopg.waiting import Wait

from holdfast.services.ingestion.sources.opening import Rows
from holdfast.services.ingestion.staging.checks import literal
from holdfast.telemetry.error_text import error_line
from holdfast.telemetry.log import log
from holdfast.threads import in_thread

Conn = psycopg.AsyncConnection[Any]
SCHEMA: Final = "holdfast_staging"
ESCAPED: Final = r"^'(?=[=+@\t\r-])"
NAME: Final = re.compile(r"^(?:rows|errors)_(\d+)_(\d+)$")


@dataclass(frozen=True, slots=True)
class Staging:
    """The tables of one attempt."""

    job_id: int
    fence_token: int
    width: int  # columns of the file
    is_trimmed: bool = False  # no field of the file has spaces around it
    is_corrected: bool = False  # it was a file of bad rows: an apostrophe before a formula is ours
    blocks: tuple[int, int] | None = None  # only the rows in these blocks of the table: from, up to but not including

    @property
    def rows(self) -> str:
        return f"{SCHEMA}.rows_{self.job_id}_{self.fence_token}"

    @property
    def errors(self) -> str:
        return f"{SCHEMA}.errors_{self.job_id}_{self.fence_token}"

    @property
    def columns(self) -> list[str]:
        return [f"c{number}" for number in range(1, self.width + 1)]

    @property
    def cleaned(self) -> str:
        """A subquery of the rows with trimmed text, null where nothing is left, without blank rows. OFFSET 0: the trimmed text
        is computed once, however often an expression refers to it."""
        if self.is_trimmed and not self.is_corrected:
            return f"(SELECT * FROM {self.not_blank}) AS s"
        trimmed = ", ".join(f"nullif(btrim({self._original(column)}), '') AS {column}" for column in self.columns)
        return f"(SELECT line, problem, {trimmed} FROM {self.not_blank} OFFSET 0) AS s"

    def _original(self, column: str) -> str:
        return f"regexp_replace({column}, {literal(ESCAPED)}, '')" if self.is_corrected else column

    @property
    def not_blank(self) -> str:
        """FROM and WHERE of the rows that are not blank lines."""
        some = " OR ".join(f"{column} IS NOT NULL" for column in (*self.columns, "problem"))
        if self.blocks is None:
            return f"{self.rows} WHERE {some}"
        begin, end = self.blocks
        return f"{self.rows} WHERE ctid >= '({begin},0)' AND ctid < '({end},0)' AND ({some})"


def create_statement(staging: Staging, first_line: int) -> str:
    columns = ", ".join(f"{column} text" for column in staging.columns)
    return f"""
        CREATE UNLOGGED TABLE {staging.rows} (
            line bigint GENERATED ALWAYS AS IDENTITY (START WITH {first_line} CACHE 1000), problem text, {columns}
        ) WITH (autovacuum_enabled = false);
        CREATE UNLOGGED TABLE {staging.errors} (line bigint NOT NULL, column_name text, value text, reason text NOT NULL)
            WITH (autovacuum_enabled = false)
    """


def copy_statement(staging: Staging, delimiter: str) -> str:
    columns = ", ".join(staging.columns)
    return (
        f"COPY {staging.rows} ({columns}) FROM STDIN (FORMAT csv, FREEZE, DELIMITER {literal(delimiter)}, NULL '', "
        f"FORCE_NULL ({columns}), ENCODING 'UTF8')"
    )


@asynccontextmanager
async def dropped_on_error(conn: Conn, staging: Staging) -> AsyncIterator[None]:
    """Drop the tables if the block raises. They stay if it ends normally, for the load that follows."""
    try:
        yield
    except BaseException:
        if not conn.closed:
            await conn.execute(drop_statement(staging))
        raise


async def fill(conn: Conn, staging: Staging, rows: Rows) -> None:
    """Create the tables and copy the rows, in one transaction: then the rows can be frozen, and no reader checks or marks who
    wrote them. The next piece is read while the database takes the last one."""
    await drop_older(conn, staging)
    async with conn.transaction():
        await conn.execute(create_statement(staging, rows.first_line))
        await copy_rows(conn, staging, rows)
    if rows.malformed:
        await mark_malformed(conn, staging, rows)


async def copy_rows(conn: Conn, staging: Staging, rows: Rows) -> None:
    """COPY the rows. One piece is read ahead, and no more: libpq has a buffer without a limit for what the server has not taken
    yet, and would fill it with the rest of the file."""
    assert rows.dialect.delimiter is not None
    pieces = rows.pieces()
    async with conn.cursor() as cursor, cursor.copy(copy_statement(staging, rows.dialect.delimiter)) as copy:
        coming = asyncio.ensure_future(in_thread(_next, pieces))
        try:
            while (piece := await coming) is not None:
                coming = asyncio.ensure_future(in_thread(_next, pieces))
                await copy.write(piece)
                await conn.wait(until_sent(conn.pgconn))
        finally:
            await asyncio.wait({coming})  # the file must not be closed under a thread that reads it


def _next(pieces: Iterator[bytes]) -> bytes | None:
    return next(pieces, None)


def until_sent(connection: PGconn) -> PQGen[None]:
    """Wait until libpq has sent everything that was written."""
    while connection.flush():
        yield Wait.W


MARK_MALFORMED = """
    UPDATE {rows} AS s SET problem = given.problem, c1 = given.value
    FROM unnest(%(lines)s::bigint[], %(values)s::text[], %(problems)s::text[]) AS given(line, value, problem)
    WHERE s.line = given.line
"""


async def mark_malformed(conn: Conn, staging: Staging, rows: Rows) -> None:
    """Note the lines that are no rows, which were copied as rows of empty fields."""
    given = {
        "lines": [one.line for one in rows.malformed],
        "values": [one.text for one in rows.malformed],
        "problems": [one.problem for one in rows.malformed],
    }
    await conn.execute(MARK_MALFORMED.format(rows=staging.rows), given)


SIZE = "SELECT pg_relation_size('{rows}') / current_setting('block_size')::integer"


async def parts_of(conn: Conn, staging: Staging, rows: int, at_most: int) -> list[Staging]:
    """The staging table in parts of about so many rows: ranges of blocks, each read without reading the others."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(SIZE.format(rows=staging.rows))
        ((blocks,),) = await cursor.fetchall()
    each = max(1, blocks * at_most // max(rows, 1))
    return [replace(staging, blocks=(begin, begin + each)) for begin in range(0, blocks, each)]


def drop_statement(staging: Staging) -> str:
    return f"DROP TABLE IF EXISTS {staging.rows}, {staging.errors}"


LIST_TABLES = """
    SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'holdfast_staging' AND c.relkind = 'r'
"""


async def names_of_all(conn: Conn) -> list[tuple[str, int, int]]:
    """Every staging table, with its job and its fence token."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(LIST_TABLES)
        found = [(name, NAME.match(name)) for (name,) in await cursor.fetchall()]
    return [(name, int(parts[1]), int(parts[2])) for name, parts in found if parts]


async def drop_older(conn: Conn, staging: Staging) -> None:
    """Drop what earlier attempts of the job have left."""
    for name, job_id, fence_token in await names_of_all(conn):
        if job_id == staging.job_id and fence_token < staging.fence_token:
            await conn.execute(f"DROP TABLE IF EXISTS {SCHEMA}.{name}")


class Dropped(NamedTuple):
    """How many tables were dropped, and those for which that raised an error: the next pass tries those again."""

    tables: int
    failed: list[str]


# A running attempt has its fence token on the job's row. Every other table is left behind.
IS_NEEDED = "SELECT id, fence_token FROM holdfast.jobs WHERE id = ANY (%(ids)s) AND state = 'running'"


async def drop_unneeded(conn: Conn, *, lock_timeout: str = "1s") -> Dropped:
    """Drop the tables of attempts that do not run. One that is in use, or cannot be dropped, is left for the next time."""
    tables = await names_of_all(conn)
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(IS_NEEDED, {"ids": [job_id for _, job_id, _ in tables]})
        needed = set(await cursor.fetchall())
    dropped, failed = 0, []
    for name, job_id, fence_token in tables:
        if (job_id, fence_token) in needed:
            continue
        try:
            async with conn.transaction():
                await conn.execute(f"SET LOCAL lock_timeout = {literal(lock_timeout)}")
                await conn.execute(f"DROP TABLE IF EXISTS {SCHEMA}.{name}")
            dropped += 1
        except psycopg.errors.LockNotAvailable:
            continue
        except psycopg.Error as error:  # the other tables are still dropped
            if conn.broken or conn.closed:
                raise
            failed.append(name)
            log.error("ingestion_staging_not_dropped", table=name, error=error_line(error), exc_info=error)
    return Dropped(dropped, failed)
