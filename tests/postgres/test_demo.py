"""The demo on a database with other data: it changes none of it, and a wrong result is reported as wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Worker
from holdfast.apps import demo, demo_jobs
from holdfast.database.pool import connect
from holdfast.jobs.pipelines import Pipeline
from holdfast.jobs.views.read import list_jobs
from holdfast.toolkit import demo as toolkit

RIGHT = demo.End(demo.EXPECTED, parts=6, publishers=6, jobs=8, attempts=10, refused=1, recovered_after=3.21)


async def run(url: str, conn: psycopg.AsyncConnection[Any]) -> tuple[Pipeline, int]:
    """The demo's jobs, without the trouble; the pipeline and its total."""
    pipeline, ids = await demo._enqueue(conn)
    await Worker(url, demo_jobs.KINDS).run(until_empty=True)
    (total,) = [job for job in (await list_jobs(conn, pipeline_id=pipeline.id)).jobs if job.id == ids[-1]]
    return pipeline, total.result["total"]


@pytest.mark.more
async def test_demo_keeps_rows_of_other_runs(database: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demo_jobs.asyncio, "sleep", _at_once)
    conn = await connect(database)
    async with conn:
        await conn.execute("CREATE SCHEMA demo")
        await conn.execute("CREATE TABLE demo.ledger AS SELECT 'theirs' AS line")
        await conn.execute("CREATE SCHEMA holdfast_demo")
        await conn.execute("CREATE TABLE holdfast_demo.keepsake AS SELECT 'from an earlier look' AS line")

        first, first_total = await run(database, conn)
        second, second_total = await run(database, conn)
        for statement in demo_jobs.REMOVE:
            await conn.execute(statement, [first.id])

        assert first_total == second_total == demo.EXPECTED
        assert {job.progress for job in (await list_jobs(conn, pipeline_id=second.id)).jobs if job.kind != "demo.total"} == {
            1.0
        }
        assert await rows(conn, "SELECT line FROM demo.ledger") == [("theirs",)]
        assert await rows(conn, "SELECT line FROM holdfast_demo.keepsake") == [("from an earlier look",)]
        assert await rows(conn, "SELECT DISTINCT run::text FROM holdfast_demo.sums") == [(second.id,)]
        await conn.execute("DROP SCHEMA demo, holdfast_demo CASCADE")


def test_second_demo_keeps_files_of_the_first_and_removes_those_of_ended_processes(tmp_path: Path):
    first = toolkit.new_folder(tmp_path)
    ended = tmp_path / "run-ended"
    ended.mkdir()

    second = toolkit.new_folder(tmp_path)

    while toolkit._in_use:
        toolkit._in_use.pop().close()
    assert first.is_dir()
    assert second.is_dir()
    assert not ended.exists()


async def rows(conn: psycopg.AsyncConnection[Any], statement: str) -> list[Any]:
    return await (await conn.execute(statement)).fetchall()


_sleep = asyncio.sleep


async def _at_once(_: float) -> None:
    await _sleep(0)


def test_correct_result_is_reported():
    assert RIGHT.is_right
    assert "[bold green]correct[/]" in RIGHT.lines()[0]
    assert "each of 6 parts was published exactly once" in RIGHT.lines()[1]
    assert "its job ran again 3.2 s after SIGKILL" in RIGHT.lines()[2]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"total": None}, "total none of"),
        ({"total": 7}, "total 7 of"),
        ({"parts": 5, "publishers": 5}, "5 of 6 parts were published, by 5 attempts"),
        ({"publishers": 5}, "6 of 6 parts were published, by 5 attempts"),
    ],
)
def test_wrong_result_is_reported(wrong: dict[str, Any], said: str):
    end = replace(RIGHT, **wrong)

    assert not end.is_right
    assert "[bold red]WRONG[/]" in end.lines()[0]
    assert said in "\n".join(end.lines())


def test_job_without_second_attempt_is_reported():
    assert "its job never ran again" in "\n".join(replace(RIGHT, recovered_after=None).lines())
