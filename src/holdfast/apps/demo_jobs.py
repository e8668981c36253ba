"""The jobs of the demo: a pipeline that adds up a ledger. Imported by: the demo's worker processes."""

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
    CREATE SCHEMA IF NOT EXISTS demo;
    DROP TABLE IF EXISTS demo.ledger, demo.sums;
    CREATE TABLE demo.ledger (part int NOT NULL, amount int NOT NULL);
    CREATE TABLE demo.sums (part int PRIMARY KEY, amount bigint NOT NULL, attempt_id uuid NOT NULL);
    INSERT INTO demo.ledger SELECT part, part * row FROM generate_series(1, {parts}) AS part, generate_series(1, {rows}) AS row;
"""
ADD_UP = "SELECT sum(amount) FROM demo.ledger WHERE part = %s"
PUBLISH = "INSERT INTO demo.sums (part, amount, attempt_id) VALUES (%s, %s, %s)"
TOTAL = "SELECT sum(amount), count(*) FROM demo.sums"


@job("holdfast.demo.load")
async def load(ctx: Context) -> Done:
    """Fill the ledger; the parts and the total wait for it."""
    await ctx.progress(0.5, "filling the ledger")
    statements = CREATE.format(parts=PARTS, rows=ROWS_PER_PART)

    async def publish(conn: psycopg.AsyncConnection[Any]) -> None:
        await conn.execute(statements)

    return Done({"parts": PARTS}, publish=publish)


@job("holdfast.demo.part", max_crashes=5)
async def part(ctx: Context, number: int) -> Done:
    """Add up one part, slowly enough to be watched and to be killed."""
    for step in range(1, 5):
        await ctx.progress(step / 5, "adding up")
        await asyncio.sleep(0.35)
    await ctx.progress(0.95, "about to publish")
    await asyncio.sleep(0.6)

    # Only this attempt can publish: the row and the end of the job commit together, or neither does.
    async def publish(conn: psycopg.AsyncConnection[Any]) -> None:
        row = await (await conn.execute(ADD_UP, [number])).fetchone()
        assert row is not None
        await conn.execute(PUBLISH, [number, row[0], ctx.attempt_id])

    return Done({"part": number}, publish=publish)


@job("holdfast.demo.total")
async def total(ctx: Context) -> Done:
    """Runs once every part has completed."""
    async with ctx.connection() as conn:
        row = await (await conn.execute(TOTAL)).fetchone()
    assert row is not None
    return Done({"total": int(row[0]), "parts": row[1]})


KINDS: list[Job[..., Any]] = [load, part, total]
