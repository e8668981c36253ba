"""Bad rows for people: a list with line, column, value and reason, and a file to correct and upload again.

The list is written with the fence token of the attempt and shows the newest attempt only. The file has every bad row with the
columns of the original, and two more: `_line` and `_errors`. They are ignored when it is uploaded again. A value that a
spreadsheet would run as a formula has an apostrophe before it, which is removed when the file is uploaded again.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO
from typing import Any, Final

import psycopg
from psycopg.rows import class_row

from holdfast.services.ingestion.staging.checks import literal
from holdfast.services.ingestion.staging.tables import Staging
from holdfast.stores.port import AlreadyThere, Store

Conn = psycopg.AsyncConnection[Any]
ADDED: Final = ("_line", "_errors")


@dataclass(frozen=True, slots=True)
class RowError:
    """What is wrong with one row. Without a column: with the row as a whole."""

    line: int
    column: str | None
    value: str | None
    reason: str

    def __str__(self) -> str:
        what = "" if self.column is None else f", {self.column}"
        value = "" if self.value is None else f" {self.value!r}"
        return f"line {self.line}{what}:{value} {self.reason}"


KEEP = """
    WITH older AS (DELETE FROM holdfast.ingestion_errors WHERE job_id = {job_id} AND fence_token < {fence_token})
    INSERT INTO holdfast.ingestion_errors (job_id, fence_token, line, number, column_name, value, reason)
    SELECT {job_id}, {fence_token}, line, row_number() OVER (PARTITION BY line ORDER BY column_name), column_name, value, reason
    FROM (SELECT * FROM {errors} ORDER BY line LIMIT {most}) AS first ON CONFLICT DO NOTHING
"""


async def keep(conn: Conn, staging: Staging, most: int) -> None:
    """Keep the first errors of this attempt for the list, in place of those of earlier attempts."""
    await conn.execute(KEEP.format(job_id=staging.job_id, fence_token=staging.fence_token, errors=staging.errors, most=most))


FIRST = "SELECT line, column_name AS column, value, reason FROM {errors} ORDER BY line, column_name LIMIT 1"


async def first_of(conn: Conn, staging: Staging) -> RowError | None:
    """The error of the first bad line."""
    async with conn.cursor(row_factory=class_row(RowError)) as cursor:
        await cursor.execute(FIRST.format(errors=staging.errors))
        return await cursor.fetchone()


# Numbers with a sign begin like formulas and are none.
IS_FORMULA: Final = r"^[=+@\t\r-](?![0-9.,eE+-]*$)"
APOSTROPHE: Final = r"'\&"


def bad_rows_statement(staging: Staging) -> str:
    safe = "regexp_replace(s.{}, " + f"{literal(IS_FORMULA)}, {literal(APOSTROPHE)})"
    columns = ", ".join(map(safe.format, staging.columns))
    return f"""
        COPY (
            SELECT {columns}, s.line, e.reasons FROM {staging.rows} s
            JOIN (SELECT line, string_agg(concat_ws(': ', column_name, reason), '; ' ORDER BY column_name) AS reasons
                  FROM {staging.errors} GROUP BY line) e ON e.line = s.line
            ORDER BY s.line
        ) TO STDOUT (FORMAT csv)
    """


async def write_bad_rows(conn: Conn, staging: Staging, header: Sequence[str], store: Store) -> str:
    """Write the file of bad rows; its path in the store. It belongs to this attempt, so it is written once."""
    path = f"bad-rows/{staging.job_id}-{staging.fence_token}.csv"
    first = StringIO()
    csv.writer(first, lineterminator="\n").writerow([*header, *ADDED])
    place = store.stage(path)
    with place.open("wb") as file:
        file.write(first.getvalue().encode())
        async with conn.cursor() as cursor, cursor.copy(bad_rows_statement(staging)) as copy:
            async for piece in copy:
                file.write(piece)
    with suppress(AlreadyThere):  # the same attempt, after an answer that was lost
        await store.put_file(path, place)
    return path


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------

LIST = """
    SELECT line, column_name AS column, value, reason FROM holdfast.ingestion_errors
    WHERE job_id = %(job_id)s
      AND fence_token = (SELECT max(fence_token) FROM holdfast.ingestion_errors WHERE job_id = %(job_id)s)
    ORDER BY line, number OFFSET %(after)s LIMIT %(limit)s
"""


async def listed(conn: Conn, job_id: int, *, limit: int, after: int = 0) -> list[RowError]:
    """The errors of a job's newest attempt, in the order of the lines, after so many. There are few: the list is limited."""
    async with conn.cursor(row_factory=class_row(RowError)) as cursor:
        await cursor.execute(LIST, {"job_id": job_id, "limit": limit, "after": after})
        return await cursor.fetchall()
