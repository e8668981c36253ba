"""The direct runtime from a job to files: what is written, what can be seen, and what becomes of what nobody named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from factories import add, job, rows
from holdfast.services.exports.export.run import KIND, run
from holdfast.worker.loop import Worker

Conn = Any


async def work(database: str) -> None:
    await Worker(database, [run]).run(until_empty=True)


async def test_a_select_becomes_files_that_a_manifest_names(database: str, conn: Conn, folder: Path):
    to = folder / "out"
    job_id = await add(conn, KIND, payload={"sql": "SELECT i AS id, 'n' || i AS name FROM range(250000) t(i)", "to": str(to)})

    await work(database)

    done = await job(conn, job_id)
    assert (done.state, done.error) == ("completed", None)
    manifest = json.loads((to / "_manifest.json").read_text())
    assert manifest == done.result
    assert (manifest["rows"], manifest["job_id"]) == (250_000, job_id)
    table = pq.read_table([to / file["path"] for file in manifest["files"]], partitioning=None)
    assert table.column_names == ["id", "name"]
    assert table.column("id").to_pylist() == list(range(250_000))
    assert await rows(conn, "SELECT state FROM holdfast.effects") == [("kept",)]
