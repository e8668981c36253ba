"""Find the bad rows of a staging table, by set-based SQL. Every check is one pass over the rows, in the database.

A row is bad if it is malformed, if a column has no valid value, if its key is twice in the file, or, when entries are
appended, if an entry with its key exists. Each reason is a row of the attempt's table of errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row

from holdfast.services.ingestion.models.definitions import Column
from holdfast.services.ingestion.staging.checks import Checked, literal
from holdfast.services.ingestion.staging.columns import Matched
from holdfast.services.ingestion.staging.tables import Staging

Conn = psycopg.AsyncConnection[Any]
BETWEEN: Final = "chr(31)"  # separates the parts of a key
MEMORY: Final = "SET LOCAL work_mem = '128MB'"


@dataclass(frozen=True, slots=True)
class Counts:
    """How many rows there are. Blank lines are not counted."""

    read: int
    bad: int

    @property
    def good(self) -> int:
        return self.read - self.bad


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a file and what they have to be."""

    staging: Staging
    columns: tuple[Column, ...]
    matched: Matched
    key: tuple[str, ...] = ()
    decimal: str = "."
    year: int | None = None  # of the entries
    has_errors: bool = True  # whether the table of errors may have rows

    def checked(self, name: str) -> Checked:
        """The expressions of a column of the model that the file has."""
        column = next(one for one in self.columns if one.name == name)
        return Checked(column, f"s.{self.matched.places[name]}", self.decimal, name in self.key, self.year)

    def value(self, name: str | None, otherwise: str = "NULL") -> str:
        """The value of a column, if the file has it."""
        return otherwise if name is None or name not in self.matched.places else self.checked(name).value

    @property
    def present(self) -> list[Checked]:
        return [self.checked(column.name) for column in self.columns if column.name in self.matched.places]

    @property
    def key_text(self) -> str:
        """The natural key as text; null if there is none."""
        return joined([self.checked(name).canonical for name in self.key], BETWEEN) if self.key else "NULL"

    @property
    def good_rows(self) -> str:
        """FROM and WHERE of the rows without errors."""
        if not self.has_errors:
            return f"{self.staging.cleaned} WHERE true"
        return f"{self.staging.cleaned} WHERE NOT EXISTS (SELECT FROM {self.staging.errors} e WHERE e.line = s.line)"


def joined(texts: Sequence[str], between: str) -> str:
    return texts[0] if len(texts) == 1 else f"concat_ws({between}, {', '.join(texts)})"


def count_statement(layout: Layout) -> str:
    """The number of rows, and whether one is bad: a plain query, which runs in parallel. Most files have no bad row."""
    reasons = ", ".join(one.reason for one in layout.present)
    return (
        f"SELECT count(*), coalesce(bool_or(coalesce(s.problem, {reasons}) IS NOT NULL), false) FROM {layout.staging.cleaned}"
    )


def bad_values_statement(layout: Layout) -> str:
    """Lists every invalid value. Only rows with one are looked at value by value."""
    reasons = [one.reason for one in layout.present]
    values = [
        f"({literal(one.column.name)}, {one.text}, {reason})" for one, reason in zip(layout.present, reasons, strict=True)
    ]
    return f"""
        INSERT INTO {layout.staging.errors}
        WITH bad AS MATERIALIZED (
            SELECT * FROM {layout.staging.cleaned} WHERE coalesce(s.problem, {", ".join(reasons)}) IS NOT NULL
        )
        SELECT s.line, v.name, left(v.value, 200), v.reason
        FROM bad AS s, LATERAL (VALUES {", ".join(values)}) AS v(name, value, reason)
        WHERE s.problem IS NULL AND v.reason IS NOT NULL
        UNION ALL SELECT s.line, NULL, s.c1, s.problem FROM bad AS s WHERE s.problem IS NOT NULL
    """


def has_duplicates_query(layout: Layout) -> str:
    """A row if several good rows may have the same key. Hashes are compared: that is cheaper, and most files have no
    duplicates. Two keys with the same hash cost the exact search below, and nothing else."""
    return f"SELECT FROM {layout.good_rows} HAVING count(DISTINCT hashtextextended({layout.key_text}, 0)) < count(*)"


def duplicates_statement(layout: Layout) -> str:
    """Lists the good rows whose key an earlier good row has."""
    return f"""
        INSERT INTO {layout.staging.errors}
        WITH good AS MATERIALIZED (SELECT s.line, {layout.key_text} AS key FROM {layout.good_rows}),
             twice AS (SELECT key, min(line) AS line FROM good GROUP BY key HAVING count(*) > 1)
        SELECT g.line, {literal(", ".join(layout.key))}, left(replace(g.key, {BETWEEN}, ', '), 200),
               'is a duplicate of line ' || t.line
        FROM twice t JOIN good g ON g.key = t.key AND g.line > t.line
    """


def existing_statement(layout: Layout, existing: str) -> str:
    """Lists the good rows whose key exists. `existing` is a query of the keys."""
    return f"""
        INSERT INTO {layout.staging.errors}
        SELECT s.line, {literal(", ".join(layout.key))}, left(replace({layout.key_text}, {BETWEEN}, ', '), 200),
               'exists already; use mode=upsert to replace it'
        FROM {layout.staging.cleaned} JOIN ({existing}) AS x(key) ON x.key = {layout.key_text}
        WHERE NOT EXISTS (SELECT FROM {layout.staging.errors} e WHERE e.line = s.line)
    """


async def validate(conn: Conn, layout: Layout, *, existing: str | None = None) -> Counts:
    """Fill the table of errors; how many rows are good and bad. `existing`: keys that no row may have."""
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(MEMORY)
        await cursor.execute(count_statement(layout))
        ((read, has_bad),) = await cursor.fetchall()
        if has_bad:
            await cursor.execute(bad_values_statement(layout))
        so_far = layout if has_bad else replace(layout, has_errors=False)
        if layout.key and await _has_rows(cursor, has_duplicates_query(so_far)):
            await cursor.execute(duplicates_statement(layout))
        if layout.key and existing is not None and await _has_rows(cursor, existing):
            await cursor.execute(existing_statement(layout, existing))
        await cursor.execute(f"SELECT count(DISTINCT line) FROM {layout.staging.errors}")
        ((bad,),) = await cursor.fetchall()
    return Counts(read, bad)


async def _has_rows(cursor: psycopg.AsyncCursor[Any], query: str) -> bool:
    await cursor.execute(f"SELECT EXISTS ({query})")
    ((found,),) = await cursor.fetchall()
    return bool(found)
