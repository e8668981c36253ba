"""The jobs of the demo: a pipeline that adds up a ledger. Imported by: the demo's worker processes.

The database may hold other data: the tables are in the schema `holdfast_demo`, every row belongs to one run of the demo, and
nothing is dropped. `REMOVE` deletes the rows of a run.
"""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from holdfast.jobs.outcome import Done
from holdfast.worker.context import Context
from holdfast.worker.kinds import Job, job

PARTS = 6
ROWS_PER_PART = 1_000

CREATE = """
    CREATE SCHEMA IF NOT EXISTS holdfast_demo;
    CREATE TABLE IF NOT EXISTS holdfast_demo.ledger (run uuid NOT NULL, part int NOT NULL, amount int NOT NULL);
    CREATE TABLE IF NOT EXISTS holdfast_demo.sums (
        run uuid NOT NULL, part int NOT NULL, amount bigint NOT NULL, attempt_id uuid NOT NULL, PRIMARY KEY (run, part)
    );
"""
FILL = """
    INSERT INTO holdfast_demo.ledger (run, part, amount)
    SELECT %s, part, part * row FROM generate_series(1, %s) AS part, generate_series(1, %s) AS row
"""
ADD_UP = "SELECT sum(amount) FROM holdfast_demo.ledger WHERE run = %s AND part = %s"
PUBLISH = "INSERT INTO holdfast_demo.sums (run, part, amount, attempt_id) VALUES (%s, %s, %s, %s)"
TOTAL = "SELECT sum(amount), count(*) FROM holdfast_demo.sums WHERE run = %s"
PUBLISHED = "SELECT count(*), count(DISTINCT attempt_id) FROM holdfast_demo.sums WHERE run = %s"
REMOVE = (
    "DELETE FROM holdfast_demo.ledger WHERE run = %s",
    "DELETE FROM holdfast_demo.sums WHERE run = %s",
)


@job("demo.load")
async def load(ctx: Context) -> Done:
    """Fill the ledger. The parts wait for it, and the total waits for the parts."""
    await ctx.progress(1.0, "ledger prepared")

    async def publish(conn: psycopg.AsyncConnection[Any]) -> None:
        await conn.execute(CREATE)
        await conn.execute(FILL, [ctx.job.pipeline_id, PARTS, ROWS_PER_PART])

    return Done({"parts": PARTS}, publish=publish)


@job("demo.part", max_crashes=5)
async def part(ctx: Context, number: int) -> Done:
    """Add up one part, slowly enough to watch it and to kill its worker."""
    for step in range(1, 5):
        await ctx.progress(step / 5, "adding up")
        await asyncio.sleep(0.35)
    await ctx.progress(1.0, "added up")
    await asyncio.sleep(0.6)  # time to stop the worker before it publishes

    # Only this attempt can publish: the row and the completion of the job are one transaction.
    async def publish(conn: psycopg.AsyncConnection[Any]) -> None:
        row = await (await conn.execute(ADD_UP, [ctx.job.pipeline_id, number])).fetchone()
        assert row is not None
        await conn.execute(PUBLISH, [ctx.job.pipeline_id, number, row[0], ctx.attempt_id])

    return Done({"part": number}, publish=publish)


@job("demo.total")
async def total(ctx: Context) -> Done:
    """Runs once every part has completed."""
    async with ctx.connection() as conn:
        row = await (await conn.execute(TOTAL, [ctx.job.pipeline_id])).fetchone()
    assert row is not None
    return Done({"total": int(row[0]), "parts": row[1]})


KINDS: list[Job[..., Any]] = [load, part, total]
