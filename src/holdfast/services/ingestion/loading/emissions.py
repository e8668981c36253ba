"""Recalculation and aggregation: emissions are entries times factors, statistics are sums of emissions. Set-based.

Both run in the transaction that ends their job, after the lock of their scopes: whatever has committed before is included, and
whatever comes later is counted as a change that is due. While one of the statements runs, the server sends a notice after every
`STEP` emissions: that is the progress, which no other session could read before the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.errors import Diagnostic
from psycopg.rows import tuple_row

from holdfast.services.ingestion.loading import scopes
from holdfast.services.ingestion.loading.bulk import bulk

Conn = psycopg.AsyncConnection[Any]

STEP: Final = 20_000  # emissions
MATCH = "f.det_id = e.det_id AND f.year = e.year AND f.classification = e.classification"
SCOPE = "e.det_id = %(det_id)s AND e.year = %(year)s"
# One emission of each step is computed through the function that sends the notice.
KG = """
    CASE WHEN e.id %% %(step)s = 0 THEN holdfast.ingestion_step(e.amount * f.value) ELSE e.amount * f.value END
"""
UPDATE = f"""
    UPDATE holdfast.data_entry_emissions m SET kg = {KG}
    FROM holdfast.data_entries e, holdfast.factors f
    WHERE {SCOPE} AND m.entry_id = e.id AND f.id = m.factor_id AND {MATCH} AND e.amount IS NOT NULL
      AND m.kg <> e.amount * f.value
"""
REMOVE = f"""
    DELETE FROM holdfast.data_entry_emissions m USING holdfast.data_entries e, holdfast.factors f
    WHERE {SCOPE} AND m.entry_id = e.id AND f.id = m.factor_id AND NOT ({MATCH} AND e.amount IS NOT NULL)
"""
ADD = f"""
    INSERT INTO holdfast.data_entry_emissions (entry_id, factor_id, kg)
    SELECT e.id, f.id, {KG} FROM holdfast.data_entries e JOIN holdfast.factors f ON {MATCH}
    WHERE {SCOPE} AND e.amount IS NOT NULL
"""
ADD_MISSING = (
    f"{ADD} AND NOT EXISTS (SELECT FROM holdfast.data_entry_emissions m WHERE (m.entry_id, m.factor_id) = (e.id, f.id))"
)
HAS_SOME = f"""
    SELECT EXISTS (SELECT FROM holdfast.data_entries e JOIN holdfast.data_entry_emissions m ON m.entry_id = e.id WHERE {SCOPE})
"""
# How many emissions there will be, how many entries have no factor, and some of their classifications.
EXPECT = """
    SELECT coalesce(sum(f.count) FILTER (WHERE e.amount IS NOT NULL), 0)::bigint, count(*) FILTER (WHERE f.count IS NULL),
           (array_agg(DISTINCT e.classification) FILTER (WHERE f.count IS NULL))[1:5]
    FROM holdfast.data_entries e LEFT JOIN (
        SELECT classification, count(*) FROM holdfast.factors WHERE det_id = %(det_id)s AND year = %(year)s GROUP BY 1
    ) AS f USING (classification)
    WHERE e.det_id = %(det_id)s AND e.year = %(year)s
"""


@dataclass(slots=True)
class Progress:
    """How many emissions a recalculation has written so far, about, and how many it will write at most."""

    expected: int = 0
    steps: int = 0

    @property
    def done(self) -> int:
        return min(self.steps * STEP, self.expected)

    @property
    def fraction(self) -> float | None:
        """From 0 to 1; None until the number of emissions is known."""
        return self.done / self.expected if self.expected else None


@contextmanager
def counted(conn: Conn, progress: Progress) -> Iterator[None]:
    """Count the notices of the statements in the block."""
    progress.steps = 0

    def count(notice: Diagnostic) -> None:
        progress.steps += notice.message_primary == "ingestion step"

    conn.add_notice_handler(count)
    try:
        yield
    finally:
        conn.remove_notice_handler(count)


class Recalculated(NamedTuple):
    """What a recalculation changed, and the entries for which there is no factor."""

    updated: int
    added: int
    removed: int
    without_factor: int
    examples: list[str]


async def recalculate(conn: Conn, det_id: int, year: int, progress: Progress | None = None) -> Recalculated:
    """Bring the emissions of one type and year up to date. Call it in a transaction."""
    scope = {"det_id": det_id, "year": year, "step": STEP}
    progress = progress or Progress()
    found = (await scopes.lock(conn, [det_id], year)).get(det_id)
    async with bulk(conn), conn.cursor(row_factory=tuple_row) as cursor:
        updated = added = removed = 0
        await cursor.execute(EXPECT, scope)
        ((progress.expected, without, examples),) = await cursor.fetchall()
        await cursor.execute(HAS_SOME, scope)
        ((has_some,),) = await cursor.fetchall()
        with counted(conn, progress):
            if not has_some:
                added = (await cursor.execute(ADD, scope)).rowcount
            else:
                updated = (await cursor.execute(UPDATE, scope)).rowcount
                if found is None or found[1]:
                    removed = (await cursor.execute(REMOVE, scope)).rowcount
                    added = (await cursor.execute(ADD_MISSING, scope)).rowcount
    await scopes.recalculated(conn, det_id, year)
    return Recalculated(updated, added, removed, without, examples or [])


FORGET = "DELETE FROM holdfast.emission_stats WHERE det_id = ANY (%(det_ids)s) AND year = %(year)s"
SUM_UP = """
    INSERT INTO holdfast.emission_stats (det_id, year, unit_code, emission_type, entries, kg)
    SELECT e.det_id, e.year, coalesce(e.unit_code, ''), f.emission_type, count(*), sum(m.kg)
    FROM holdfast.data_entries e
    JOIN holdfast.data_entry_emissions m ON m.entry_id = e.id JOIN holdfast.factors f ON f.id = m.factor_id
    WHERE e.det_id = ANY (%(det_ids)s) AND e.year = %(year)s GROUP BY 1, 2, 3, 4
"""


async def aggregate(conn: Conn, det_ids: Sequence[int], year: int) -> int:
    """Compute the statistics of these types anew; the number of rows. Call it in a transaction."""
    given = {"det_ids": list(det_ids), "year": year}
    await scopes.lock(conn, det_ids, year)
    async with bulk(conn):
        await conn.execute(FORGET, given)
        rows = (await conn.execute(SUM_UP, given)).rowcount
    await scopes.aggregated(conn, det_ids, year)
    return rows
