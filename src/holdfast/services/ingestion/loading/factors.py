"""Factors: upserted in place by (type, year, emission type, classification). Stale ones are listed, never deleted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
from psycopg.rows import class_row

from holdfast.services.ingestion.models.definitions import Column
from holdfast.services.ingestion.models.store import KnownType
from holdfast.services.ingestion.staging.checks import literal
from holdfast.services.ingestion.staging.validate import Layout

Conn = psycopg.AsyncConnection[Any]


def labels_of(types: Sequence[KnownType]) -> dict[str, int]:
    """The names by which a file may call these types: `module/name`, and the name alone if it is unique. Pure."""
    found = {f"{one.module.name}/{one.det.name}": one.det_id for one in types}
    names = [one.det.name for one in types]
    return found | {one.det.name: one.det_id for one in types if names.count(one.det.name) == 1}


def columns_of(types: Sequence[KnownType]) -> tuple[Column, ...]:
    """The columns of a file of factors. The type is not needed if there is only one. Pure."""
    return (
        Column(name="det", headers=("data_entry_type",), required=len(types) > 1, allowed=tuple(labels_of(types))),
        Column(name="emission_type", required=True),
        Column(name="classification"),
        Column(name="value", type="decimal", required=True, min=Decimal(0)),
        Column(name="unit"),
    )


def given_query(layout: Layout, types: Sequence[KnownType], year: int) -> str:
    """The factors of the good rows."""
    det = literal(str(types[0].det_id))
    if "det" in layout.matched.places:
        whens = " ".join(f"WHEN {literal(label)} THEN {det_id}" for label, det_id in labels_of(types).items())
        det = f"CASE {layout.value('det')} {whens} ELSE {types[0].det_id} END"
    return f"""
        SELECT ({det})::integer AS det_id, {year}::smallint AS year, {layout.value("emission_type")} AS emission_type,
               coalesce({layout.value("classification")}, '') AS classification, {layout.value("value")} AS value,
               {layout.value("unit")} AS unit
        FROM {layout.good_rows}
    """


@dataclass(frozen=True, slots=True)
class Affected:
    """A type whose emissions change with the new factors. `is_new`: it has a factor that it did not have."""

    det_id: int
    is_new: bool


def affected_statement(given: str) -> str:
    return f"""
        SELECT g.det_id, bool_or(f.id IS NULL) AS is_new FROM ({given}) AS g LEFT JOIN holdfast.factors f
        USING (det_id, year, emission_type, classification) WHERE f.id IS NULL OR f.value <> g.value GROUP BY 1 ORDER BY 1
    """


def upsert_statement(given: str, job_id: int) -> str:
    return f"""
        INSERT INTO holdfast.factors AS f (det_id, year, emission_type, classification, value, unit, last_seen_job_id)
        SELECT g.*, {job_id} FROM ({given}) AS g
        ON CONFLICT ON CONSTRAINT one_factor_per_key DO UPDATE SET value = excluded.value, unit = excluded.unit,
            last_seen_job_id = excluded.last_seen_job_id,
            updated_at = CASE WHEN f.value = excluded.value THEN f.updated_at ELSE clock_timestamp() END
    """


async def affected(conn: Conn, given: str) -> list[Affected]:
    """The types for which these factors are new or have another value."""
    async with conn.cursor(row_factory=class_row(Affected)) as cursor:
        await cursor.execute(affected_statement(given))
        return await cursor.fetchall()


@dataclass(frozen=True, slots=True)
class StaleFactor:
    """A factor that the newest upload for its type and year did not have."""

    id: int
    module: str
    det: str
    year: int
    emission_type: str
    classification: str
    value: str
    last_seen_job_id: int
    newest_job_id: int


STALE = """
    SELECT f.id, t.module, t.name AS det, f.year, f.emission_type, f.classification, f.value::text, f.last_seen_job_id,
           newest.job_id AS newest_job_id
    FROM holdfast.factors f JOIN holdfast.data_entry_types t ON t.id = f.det_id
    JOIN (SELECT det_id, year, max(last_seen_job_id) AS job_id FROM holdfast.factors GROUP BY 1, 2) newest
      ON (newest.det_id, newest.year) = (f.det_id, f.year) AND newest.job_id > f.last_seen_job_id
    WHERE %(year)s::smallint IS NULL OR f.year = %(year)s ORDER BY f.id LIMIT %(limit)s
"""


async def stale(conn: Conn, year: int | None = None, *, limit: int = 1000) -> list[StaleFactor]:
    """Factors that the newest upload for their type and year did not have."""
    async with conn.cursor(row_factory=class_row(StaleFactor)) as cursor:
        await cursor.execute(STALE, {"year": year, "limit": limit})
        return await cursor.fetchall()
