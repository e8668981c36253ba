"""Reference lists: codes that columns may have. Units are one of them, and a sync of units provisions its year."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row

from holdfast.services.ingestion.models.definitions import Column
from holdfast.services.ingestion.staging.checks import literal
from holdfast.services.ingestion.staging.validate import Layout

Conn = psycopg.AsyncConnection[Any]
COLUMNS: Final = (
    Column(name="code", required=True, headers=("id", "unit_id")),
    Column(name="label", headers=("name",)),
    Column(name="parent"),
)


def upsert_statement(layout: Layout, name: str, job_id: int) -> str:
    """Inserts and updates the codes of the good rows. Codes that the file does not have stay: entries refer to them."""
    return f"""
        INSERT INTO holdfast.reference_values (list, code, label, attributes, last_seen_job_id)
        SELECT {literal(name)}, {layout.value("code")}, {layout.value("label")},
               jsonb_strip_nulls(jsonb_build_object('parent', {layout.value("parent")})), {job_id}
        FROM {layout.good_rows}
        ON CONFLICT (list, code) DO UPDATE SET label = excluded.label, attributes = excluded.attributes,
            last_seen_job_id = excluded.last_seen_job_id
    """


PROVISION = """
    INSERT INTO holdfast.ingestion_years (year, job_id) VALUES (%(year)s, %(job_id)s)
    ON CONFLICT (year) DO UPDATE SET job_id = excluded.job_id, provisioned_at = clock_timestamp()
"""
IS_PROVISIONED = "SELECT EXISTS (SELECT FROM holdfast.ingestion_years WHERE year = %(year)s)"


async def provision(conn: Conn, year: int, job_id: int) -> None:
    """The units of this year are known from now on."""
    await conn.execute(PROVISION, {"year": year, "job_id": job_id})


async def is_provisioned(conn: Conn, year: int) -> bool:
    """Whether a sync of units was done for this year."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(IS_PROVISIONED, {"year": year})
        ((found,),) = await cursor.fetchall()
    return bool(found)
