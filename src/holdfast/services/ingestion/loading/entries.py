"""Load data entries: append, upsert, or replace the scope. Runs in the transaction that ends the job."""

from __future__ import annotations

from typing import Any, Literal

import psycopg
from psycopg.rows import tuple_row

from holdfast.services.ingestion.models.definitions import DataEntryType
from holdfast.services.ingestion.staging.checks import literal
from holdfast.services.ingestion.staging.validate import Layout, joined

Conn = psycopg.AsyncConnection[Any]
Mode = Literal["append", "replace", "upsert"]
COLUMNS = "det_id, year, key, unit_code, classification, amount, attributes, job_id, line"


def existing_keys(det_id: int, year: int) -> str:
    """A query of the keys that entries have."""
    return f"SELECT key FROM holdfast.data_entries WHERE det_id = {det_id} AND year = {year}"


def insert_statement(layout: Layout, det: DataEntryType, *, det_id: int, year: int, job_id: int, mode: Mode) -> str:
    """Inserts the good rows, each once."""
    classes = [f"coalesce({layout.value(name)}::text, '')" for name in det.classification if name in layout.matched.places]
    classification = joined(classes, "'|'") if classes else "''"
    key = layout.key_text if layout.key else f"'{job_id}:' || s.line"
    values = f"{det_id}, {year}, {key}, {layout.value(det.unit)}, {classification}, {layout.value(det.amount)}::numeric"
    statement = f"""
        INSERT INTO holdfast.data_entries AS d ({COLUMNS})
        SELECT {values}, {attributes(layout, det)}, {job_id}, s.line FROM {layout.good_rows}
    """
    if layout.key:  # in the order of the index, which then grows at its end and is written once
        statement += f'ORDER BY ({key}) COLLATE "C"'
    if mode != "upsert":
        return statement
    updated = ", ".join(f"{one} = excluded.{one}" for one in COLUMNS.split(", ")[3:])
    return f"{statement} ON CONFLICT ON CONSTRAINT one_entry_per_key DO UPDATE SET {updated}"


def attributes(layout: Layout, det: DataEntryType) -> str:
    """The columns without a role as JSON; null if the file has none."""
    with_a_role = {det.amount, det.unit, *det.key, *det.classification}
    rest = [one for one in layout.present if one.column.name not in with_a_role]
    if not rest:
        return "NULL::jsonb"
    return f"jsonb_build_object({', '.join(f'{literal(one.column.name)}, {one.plain}' for one in rest)})"


DELETE_EMISSIONS = """
    DELETE FROM holdfast.data_entry_emissions m USING holdfast.data_entries e
    WHERE m.entry_id = e.id AND e.det_id = %(det_id)s AND e.year = %(year)s
      AND (%(unit)s::text IS NULL OR e.unit_code = %(unit)s)
"""
DELETE_ENTRIES = """
    DELETE FROM holdfast.data_entries
    WHERE det_id = %(det_id)s AND year = %(year)s AND (%(unit)s::text IS NULL OR unit_code = %(unit)s)
"""


async def remove(conn: Conn, det_id: int, year: int, unit: str | None) -> int:
    """Remove the entries of a scope with their emissions; how many."""
    scope = {"det_id": det_id, "year": year, "unit": unit}
    await conn.execute(DELETE_EMISSIONS, scope)
    return (await conn.execute(DELETE_ENTRIES, scope)).rowcount


COUNT = "SELECT count(*), coalesce(sum(amount), 0) FROM holdfast.data_entries WHERE det_id = %(det_id)s AND year = %(year)s"


async def totals(conn: Conn, det_id: int, year: int) -> tuple[int, Any]:
    """The number of entries of a scope, and the sum of their amounts."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT, {"det_id": det_id, "year": year})
        ((count, amount),) = await cursor.fetchall()
    return count, amount
