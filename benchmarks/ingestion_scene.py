"""What the measurements of ingestion share: the files, a worker in this process, and the tables to compare with."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import psycopg

from holdfast.services.ingestion import dispatch
from holdfast.services.ingestion.dispatch import EntriesAsked, FileOptions
from holdfast.services.ingestion.kinds import KINDS
from holdfast.services.ingestion.loading import references
from holdfast.services.ingestion.models import store
from holdfast.services.ingestion.models.rules import model_of
from holdfast.services.ingestion.models.yaml_file import EXAMPLE, read_model
from holdfast.services.ingestion.setup import Ingestion, ingestion_from, ingestion_settings
from holdfast.services.ingestion.sources import files
from holdfast.services.ingestion.views import runs
from holdfast.services.ingestion.views.runs import Run
from holdfast.settings import settings
from holdfast.testing import Harness, harness

YEAR, DET_ID = 2024, 1
CABINS = ("economy", "premium", "business", "first")
# The columns, the key and the identity of the table into which the job loads, as durable as that one.
RAW_TABLE = "DROP TABLE IF EXISTS raw_flights; CREATE TABLE raw_flights (LIKE holdfast.data_entries INCLUDING ALL)"
RAW_COPY = "COPY raw_flights (det_id, year, key, unit_code, classification, amount, attributes, job_id, line) FROM STDIN"
# The file as it is, into typed columns with its natural key. Stores less than the job does.
PLAIN_TABLE = """
    DROP TABLE IF EXISTS plain_flights;
    CREATE TABLE plain_flights (
        trip_id text COLLATE "C" PRIMARY KEY, unit_id text NOT NULL, date date NOT NULL, cabin text NOT NULL,
        distance numeric NOT NULL, traveller text
    )
"""
PLAIN_COPY = "COPY plain_flights FROM STDIN (FORMAT csv, HEADER)"
RAW_TABLES = """
    DROP TABLE IF EXISTS raw_entries, raw_factors, raw_emissions;
    CREATE TABLE raw_entries AS SELECT * FROM holdfast.data_entries;
    ALTER TABLE raw_entries ADD PRIMARY KEY (id);
    CREATE TABLE raw_factors AS SELECT *, value AS base FROM holdfast.factors;
    ALTER TABLE raw_factors ADD PRIMARY KEY (id);
    CREATE TABLE raw_emissions AS SELECT * FROM holdfast.data_entry_emissions;
    ALTER TABLE raw_emissions ADD PRIMARY KEY (entry_id, factor_id);
"""


def flights_file(folder: Path, rows: int) -> Path:
    """A CSV file of flights, 49 bytes a row."""
    file = folder / f"flights-{rows}.csv"
    with file.open("w") as out:
        out.write("trip_id,unit_id,date,cabin,distance,traveller\n")
        out.writelines(
            f"T{n},U{n % 100},2024-{n % 12 + 1:02}-{n % 28 + 1:02},{CABINS[n % 4]},{n % 5000}.5,name {n}\n" for n in range(rows)
        )
    return file


def raw_file(folder: Path, rows: int) -> Path:
    """The rows that the job stores for the file of flights, as raw COPY takes them."""
    file = folder / f"raw-{rows}.tsv"
    with file.open("w") as out:
        out.writelines(
            f"{DET_ID}\t{YEAR}\tT{n}\tU{n % 100}\t{CABINS[n % 4]}\t{n % 5000}.5\t"
            f'{{"date": "2024-{n % 12 + 1:02}-{n % 28 + 1:02}", "traveller": "name {n}"}}\t1\t{n + 2}\n'
            for n in range(rows)
        )
    return file


def units_file(folder: Path) -> Path:
    file = folder / "units.csv"
    file.write_text("code,label\n" + "".join(f"U{number},unit {number}\n" for number in range(100)))
    return file


def factors_file(folder: Path, factor: float) -> Path:
    """One factor for each cabin."""
    file = folder / f"factors-{factor}.csv"
    lines = (f"co2,{cabin},{(number + 1) * factor:g}\n" for number, cabin in enumerate(CABINS))
    file.write_text("emission_type,classification,value\n" + "".join(lines))
    return file


def clear(url: str) -> None:
    """Empty the tables of the service, and write out what is dirty."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("TRUNCATE holdfast.data_entries, holdfast.data_entry_emissions, holdfast.emission_stats")
        conn.execute("CHECKPOINT")


def raw_tables(url: str) -> None:
    """Plain tables with the same content, for hand-written SQL."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(RAW_TABLES.encode())
        conn.execute("VACUUM (ANALYZE)")


class Scene:
    """A worker in this process, and a back office that dispatches jobs."""

    def __init__(self, worker: Harness, here: Ingestion) -> None:
        self._worker, self._here, self._conn = worker, here, worker.conn

    async def file(self, given: Path) -> int:
        """Put a file into the store; its id."""
        path = f"files/{uuid4().hex}"
        async with self._here.store() as kept:
            place = kept.stage(path)
            os.link(given, place)
            size = await kept.put_file(path, place)
        return (await files.add(self._conn, path, name=given.name, size=size, sha256="0" * 64, by="benchmark")).id

    async def ingest(self, given: Path) -> Run:
        """The job that ingests a file; what follows from it stays in the queue."""
        await self.run_all()  # what an earlier file has left to do
        job_id = await self.dispatch(given)
        await self.run_one("ingestion.csv_ingest")
        return await runs.get(self._conn, job_id)

    async def dispatch(self, given: Path) -> int:
        """The id of a job that replaces the entries by those of a file; somebody else runs it."""
        asked = EntriesAsked(model="co2", module="travel", det="flights", year=YEAR, mode="replace")
        return (await dispatch.dispatch_file(self._conn, asked, await self.file(given), FileOptions(), by="benchmark")).job_id

    async def factors(self, given: Path, steps: int = 0) -> None:
        """Ingest factors; `steps`: run only so many jobs."""
        file_id = await self.file(given)
        await dispatch.dispatch_factors(
            self._conn, model="co2", year=YEAR, module="travel", det="flights", file_id=file_id, options=FileOptions(),
            by="benchmark",
        )  # fmt: skip
        if steps:
            await self.run_one("ingestion.factor_ingest")
        else:
            await self.run_all()

    async def units(self, given: Path) -> None:
        await dispatch.dispatch_units(
            self._conn, year=YEAR, file_id=await self.file(given), options=FileOptions(), by="benchmark"
        )
        await self.run_all()

    async def run_one(self, kind: str) -> None:
        """Run the next job, which must be of this kind."""
        claim = await self._worker._next()
        assert claim is not None, f"no {kind} waits"
        assert claim.kind == kind, f"{claim.kind} is first, not {kind}"
        await self._worker._attempt(claim)

    async def run_all(self) -> None:
        await self._worker.drain()

    @asynccontextmanager
    async def vacuumed(self, table: str) -> AsyncIterator[None]:
        """A block after a vacuum and a checkpoint."""
        await self._conn.execute(f"VACUUM (ANALYZE) {table}")
        await self._conn.execute("CHECKPOINT")
        yield


@asynccontextmanager
async def scene_on(url: str, folder: Path) -> AsyncIterator[Scene]:
    """A scene with the CO2 model and units."""
    os.environ["HOLDFAST_INGESTION_TO"] = str(folder / "uploads")
    settings.cache_clear()
    here = ingestion_from(ingestion_settings())
    here.share()
    async with harness(url, KINDS) as worker:
        async with worker.conn.transaction():
            await store.apply(worker.conn, model_of(read_model(EXAMPLE)), by="benchmark")
        scene = Scene(worker, here)
        if not await references.is_provisioned(worker.conn, YEAR):
            await scene.units(units_file(folder))
        yield scene
