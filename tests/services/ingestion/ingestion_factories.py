"""Short words for tests of ingestion: the CO2 model, a back office that stores and dispatches files, and what is in the
tables."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from uuid import uuid4

import httpx2
import psycopg

import holdfast
from factories import rows, value
from holdfast.jobs.model import JobId
from holdfast.services.ingestion import dispatch
from holdfast.services.ingestion.dispatch import Dispatched, EntriesAsked, FileOptions
from holdfast.services.ingestion.kinds import KINDS
from holdfast.services.ingestion.models import store
from holdfast.services.ingestion.models.rules import model_of
from holdfast.services.ingestion.models.yaml_file import EXAMPLE, read_model
from holdfast.services.ingestion.setup import Ingestion
from holdfast.services.ingestion.sources import files
from holdfast.services.ingestion.views import runs
from holdfast.services.ingestion.views.runs import Run
from holdfast.testing import Harness

Client = httpx2.AsyncClient
Conn = psycopg.AsyncConnection[Any]
YEAR = 2024
UNITS = "code,label\nU1,Physics\nU2,Chemistry\n"
FACTORS = "emission_type,classification,value\nco2,economy,0.2\nco2,business,0.5\nch4,economy,0.01\n"
FLIGHTS = """trip_id,unit_id,date,cabin,distance,traveller
T1,U1,2024-01-31,economy,1000,Ada
T2,U2,2024-02-29,business,500.5,
T3,U1,2024-03-01,economy,2000,Bob
"""


async def apply_co2(conn: Conn) -> None:
    async with conn.transaction():
        await store.apply(conn, model_of(read_model(EXAMPLE)), by="test")


class Back:
    """Stores files, dispatches jobs, and runs them in this process."""

    def __init__(self, conn: Conn, harness: Harness, here: Ingestion) -> None:
        self.conn, self.harness, self.here = conn, harness, here

    async def file(self, content: str | bytes, name: str = "rows.csv") -> int:
        """Store a file; its id."""
        data = content.encode() if isinstance(content, str) else content
        path = f"files/{uuid4().hex}"
        async with self.here.store() as kept:
            await kept.put(path, data)
        sha256 = hashlib.sha256(data).hexdigest()
        return (await files.add(self.conn, path, name=name, size=len(data), sha256=sha256, by="test")).id

    async def provision(self, units: str | bytes = UNITS, year: int = YEAR) -> None:
        """Sync units, so that entries of the year can be ingested."""
        await dispatch.dispatch_units(self.conn, year=year, file_id=await self.file(units), options=FileOptions(), by="test")
        await self.harness.drain()

    async def dispatch(
        self, content: str | bytes, module: str = "travel", det: str = "flights", *, year: int = YEAR,
        options: FileOptions | None = None, **asked: Any,
    ) -> Dispatched:  # fmt: skip
        """Dispatch a file of entries."""
        wanted = EntriesAsked(model="co2", module=module, det=det, year=year, **asked)
        return await dispatch.dispatch_file(self.conn, wanted, await self.file(content), options or FileOptions(), by="test")

    async def ingest(self, content: str | bytes, module: str = "travel", det: str = "flights", **more: Any) -> Run:
        """Dispatch a file of entries and run the whole pipeline; its first job."""
        made = await self.dispatch(content, module, det, **more)
        await self.harness.drain()
        return await runs.get(self.conn, made.job_id)

    async def factors(self, content: str = FACTORS, **more: Any) -> Run:
        """Ingest factors and what follows from them."""
        given = {"module": "travel", "det": "flights"} | more
        options = given.pop("options", FileOptions())
        made = await dispatch.dispatch_factors(
            self.conn, model="co2", year=YEAR, file_id=await self.file(content), options=options, by="test", **given
        )
        await self.harness.drain()
        return await runs.get(self.conn, made.job_id)

    async def pipeline(self, run: Run) -> list[Run]:
        """The jobs of its pipeline, oldest first."""
        return (await runs.listed(self.conn, limit=100, pipeline_id=run.pipeline_id))[::-1]


async def run_elsewhere(conn: Conn, database: str, job_id: JobId) -> bool:
    """Ask the worker of another pod to run this job, as the dispatch of a request does; whether it did."""
    worker = holdfast.Worker(database, KINDS)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        while not await value(conn, "SELECT count(*) FROM holdfast.workers WHERE id = %s", worker.id):
            await asyncio.sleep(0.01)

    done = await worker.run_by_id(job_id)
    worker.stop()
    await running
    return done


async def entries_of(conn: Conn) -> list[tuple[Any, ...]]:
    """Key, unit, classification and amount of every entry."""
    return await rows(conn, "SELECT key, unit_code, classification, amount FROM holdfast.data_entries ORDER BY key, id")


async def kg_of(conn: Conn) -> Decimal:
    """The sum of all emissions."""
    return await value(conn, "SELECT coalesce(sum(kg), 0) FROM holdfast.data_entry_emissions")


async def statistics_of(conn: Conn) -> dict[tuple[str, str], Decimal]:
    """Kilograms by unit and emission type."""
    found = await rows(conn, "SELECT unit_code, emission_type, sum(kg) FROM holdfast.emission_stats GROUP BY 1, 2")
    return {(unit, emission): kg for unit, emission, kg in found}


async def from_scratch(conn: Conn) -> dict[tuple[str, str], Decimal]:
    """The same as `statistics_of`, computed from entries and factors."""
    found = await rows(
        conn,
        """SELECT coalesce(e.unit_code, ''), f.emission_type, sum(e.amount * f.value) FROM holdfast.data_entries e
           JOIN holdfast.factors f ON (f.det_id, f.year, f.classification) = (e.det_id, e.year, e.classification)
           WHERE e.amount IS NOT NULL GROUP BY 1, 2""",
    )
    return {(unit, emission): kg for unit, emission, kg in found}


async def staging_tables(conn: Conn) -> list[str]:
    found = await rows(
        conn, "SELECT relname FROM pg_class WHERE relnamespace = 'holdfast_staging'::regnamespace AND relkind = 'r'"
    )
    return sorted(name for (name,) in found)


def results(jobs: Sequence[Run]) -> list[tuple[str, str | None]]:
    return [(one.job_type, one.result) for one in jobs]
