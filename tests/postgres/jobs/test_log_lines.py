"""The lines that an attempt has logged: fenced like every write, the same number once, a bounded tail, gone with the job."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from factories import HOUR, add, clock, end, hold, make_due, replace, rows, start_worker, take, value, waits
from holdfast.jobs import logs
from holdfast.jobs.logs import Numbered, write
from holdfast.jobs.model import Claim
from holdfast.jobs.outcome import Retry
from holdfast.jobs.prune import prune
from holdfast.jobs.views.logs import read_lines
from holdfast.telemetry.kept import Line

LONG_AGO = "2001-01-01T00:00:00+00:00"


def said(claim: Claim, number: int, message: str = "m", level: str = "info", **fields: Any) -> Numbered:
    return Numbered(claim, number, Line(LONG_AGO, level, message, fields))


async def messages(conn: Any, job_id: Any, **which: Any) -> list[str]:
    return [line.message for line in await read_lines(conn, job_id, **which)]


async def test_line_keeps_level_message_and_fields_and_gets_the_database_time(conn: Any) -> None:
    """The worker's clock is a label: it may be years off, and the order does not depend on it."""
    claim = await hold(conn)
    before = await clock(conn)

    fields = {"rows": 5, "deep": {"of": [1, None, True]}, "text": 'ü 🙂 \\ " \n , {}'}
    held = await write(conn, [said(claim, 1, 'quoted "\\ {x},NULL\n', "warning", **fields), said(claim, 2)])

    first, second = await read_lines(conn, claim.id)
    assert held == {claim.attempt_id}
    assert (first.attempt_no, first.line_no, first.level, first.message) == (1, 1, "warning", 'quoted "\\ {x},NULL\n')
    assert first.fields == fields
    assert (first.said_at.year, second.id) == (2001, "1.2")
    assert before <= first.at <= second.at


async def test_lines_of_a_replaced_attempt_are_refused_and_earlier_ones_kept(conn: Any) -> None:
    stale = await hold(conn, max_crashes=9)
    await write(conn, [said(stale, 1, "in time")])
    following = await replace(conn, stale)

    assert await write(conn, [said(stale, 2, "late"), said(following, 1, "next")]) == {following.attempt_id}

    assert [(line.attempt_no, line.message) for line in await read_lines(conn, stale.id)] == [(1, "in time"), (2, "next")]


async def test_write_waits_for_a_concurrent_finish_and_is_refused(connect: Any) -> None:
    """The guard is asked once more on the row as it is when it is locked: no line comes after the end."""
    conn, ending, writing = await connect(), await connect(), await connect()
    claim = await hold(conn)

    async with ending.transaction():
        await end(ending, claim)
        late = asyncio.create_task(write(writing, [said(claim, 1)]))
        await waits(conn, writing)

    assert await late == set()
    assert await rows(conn, "SELECT FROM holdfast.log_lines") == []


async def test_batch_locks_jobs_in_id_order(connect: Any) -> None:
    conn, other, writing = await connect(), await connect(), await connect()
    worker = await start_worker(conn)
    first, last = await hold(conn, worker=worker), await hold(conn, worker=worker)

    async with other.transaction():
        await other.execute("SELECT FROM holdfast.jobs WHERE id = %s FOR UPDATE", [first.id])
        written = asyncio.create_task(write(writing, [said(last, 1), said(first, 1)]))
        await waits(conn, writing)
        await other.execute("SELECT FROM holdfast.jobs WHERE id = %s FOR UPDATE NOWAIT", [last.id])

    assert await written == {first.attempt_id, last.attempt_id}


async def test_repeated_line_number_is_stored_once(conn: Any) -> None:
    """After an answer that was lost everything is written once more."""
    claim = await hold(conn)

    for _ in range(3):
        assert await write(conn, [said(claim, 1, "one"), said(claim, 2, "two")]) == {claim.attempt_id}

    assert await messages(conn, claim.id) == ["one", "two"]


async def test_only_the_last_lines_of_an_attempt_are_kept(conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_LINES", 5)
    claim, other = await hold(conn), await hold(conn)
    await write(conn, [said(other, 1, "of another job")])

    for begin in (1, 4, 7):
        await write(conn, [said(claim, number, str(number)) for number in range(begin, begin + 3)])

    assert await messages(conn, claim.id) == ["5", "6", "7", "8", "9"]
    assert await messages(conn, other.id) == ["of another job"]


async def test_only_the_lines_of_the_last_attempts_are_kept(conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_ATTEMPTS", 2)
    job_id = await add(conn, max_attempts=9)
    for _ in range(4):
        claim = await take(conn, job_id)
        await write(conn, [said(claim, 1, str(claim.attempt_no))])
        await end(conn, claim, Retry("again", delay=timedelta(0)))
        await make_due(conn, job_id)

    assert await messages(conn, job_id) == ["3", "4"]


async def test_lines_are_found_by_attempt_level_tail_and_place(conn: Any) -> None:
    first = await hold(conn, max_crashes=9)
    await write(conn, [said(first, 1, "a", "debug"), said(first, 2, "b", "error"), said(first, 3, "c")])
    second = await replace(conn, first)
    await write(conn, [said(second, 1, "d", "critical"), said(second, 2, "e", "warning")])
    job_id = first.id

    assert await messages(conn, job_id) == ["a", "b", "c", "d", "e"]
    assert await messages(conn, job_id, attempt=2) == ["d", "e"]
    assert await messages(conn, job_id, level="warning") == ["b", "d", "e"]
    assert await messages(conn, job_id, tail=2) == ["d", "e"]
    assert await messages(conn, job_id, tail=2, attempt=1) == ["b", "c"]
    assert await messages(conn, job_id, tail=3, level="error") == ["b", "d"]
    assert await messages(conn, job_id, tail=99) == ["a", "b", "c", "d", "e"]
    assert await messages(conn, job_id, after=(1, 2), limit=2) == ["c", "d"]
    assert await messages(conn, job_id, after=(1, 3)) == ["d", "e"]
    assert await messages(conn, job_id, after=(2, 2)) == []


async def test_lines_are_deleted_with_their_job(conn: Any) -> None:
    old, young = await hold(conn), await hold(conn)
    await write(conn, [said(old, 1, "old"), said(young, 1, "young")])
    await end(conn, old)
    await conn.execute("UPDATE holdfast.jobs SET finished_at = finished_at - interval '1 day' WHERE id = %s", [old.id])

    assert await prune(conn, older_than=HOUR) == 1

    assert await value(conn, "SELECT array_agg(message) FROM holdfast.log_lines") == ["young"]
