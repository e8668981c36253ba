"""The guide from a table like `data_ingestion_jobs`, run on such a table while the old dispatch has a job in flight."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psycopg
from ingestion_factories import FLIGHTS, Back, entries_of

from factories import rows, value
from holdfast.services.ingestion.views import runs

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "docs"))

from blocks import Block, blocks, run  # noqa: E402

GUIDE = ROOT / "docs/howto/migrate-from-data-ingestion-jobs.md"
COLUMNS = """
    SELECT column_name, column_default, is_nullable FROM information_schema.columns
    WHERE table_name = 'data_ingestion_jobs' ORDER BY ordinal_position
"""
INDEXES = "SELECT indexname FROM pg_indexes WHERE tablename = 'data_ingestion_jobs' ORDER BY 1"


async def old_dispatch_ends(conn: psycopg.AsyncConnection[Any], job_id: int) -> None:
    """What the old code does at the end of a job: it knows the old columns only."""
    await conn.execute("UPDATE data_ingestion_jobs SET state = 3, result = 0, status_message = 'done' WHERE id = %s", [job_id])


async def test_jobs_in_flight_finish_under_the_old_dispatch_while_new_ones_run_here(back: Back, conn: Any) -> None:
    """N-08: old rows have no job_type, and nothing of ours touches them. N-09: seven columns, one index, defaults 0 and 3."""
    table, add_columns, copy, wait = [one for one in blocks(GUIDE) if one.language == "python"]
    namespace: dict[str, Any] = {"__name__": "guide", "conn": conn}
    await back.provision()

    async def step(block: Block) -> None:
        await run(block, namespace)

    await step(table)
    before, indexes = await rows(conn, COLUMNS), await rows(conn, INDEXES)
    in_flight = await rows(conn, "SELECT * FROM data_ingestion_jobs WHERE state <> 3")
    await step(add_columns)

    added = (await rows(conn, COLUMNS))[len(before) :]
    assert added == [
        ("locked_by", None, "YES"),
        ("locked_at", None, "YES"),
        ("attempts", "0", "NO"),
        ("max_attempts", "3", "NO"),
        ("run_after", None, "YES"),
        ("pipeline_id", None, "YES"),
        ("job_type", None, "YES"),
    ]
    assert sorted(await rows(conn, INDEXES)) == sorted([*indexes, ("ix_data_ingestion_jobs_pending",)])
    assert await rows(conn, "SELECT DISTINCT attempts, max_attempts, job_type FROM data_ingestion_jobs") == [(0, 3, None)]

    new = await back.ingest(FLIGHTS)  # a new request, while an old job runs

    assert (new.result, len(await entries_of(conn))) == ("SUCCESS", 3)
    unchanged = [one[: len(before)] for one in await rows(conn, "SELECT * FROM data_ingestion_jobs WHERE state <> 3")]
    assert unchanged == in_flight
    await conn.execute("DELETE FROM holdfast.ingestions WHERE job_id > 0")  # the guide shows the old ones alone
    await step(copy)
    await step(wait)

    await old_dispatch_ends(conn, 2)
    copied = copy.text.split("from holdfast")[0]
    for _ in range(2):  # a repetition copies what has finished since, and nothing twice
        await step(Block(copy.page, copy.line, copy.language, copy.words, copied))
    assert await value(conn, "SELECT count(*) FROM data_ingestion_jobs WHERE state <> 3 AND job_type IS NULL") == 0
    old = await runs.listed(conn, limit=10)
    assert [(one.job_id, one.state, one.result) for one in old] == [
        (-1, "FINISHED", "SUCCESS"),
        (-2, "FINISHED", "SUCCESS"),
        (-3, "FINISHED", "WARNING"),
    ]
