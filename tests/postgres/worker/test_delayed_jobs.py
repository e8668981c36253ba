"""Delayed jobs are taken up when they are due: each of several, of one enqueue or of a bulk, and no poll is needed for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from factories import HOUR, add, clock, rows, value
from holdfast import Context, Worker, WorkerOptions
from holdfast.jobs.enqueue import enqueue, enqueue_many
from holdfast.jobs.model import NewJob
from holdfast.jobs.promote import Promoted, next_due, promote_due
from holdfast.worker.kinds import job
from holdfast.worker.sweeps import A_LITTLE, AGAIN, Sweeps
from workers import beside, until

# Nobody looks by itself within the test: what happens after the first beat was planned.
NEVER = WorkerOptions(concurrency=1, beat=HOUR, lease=3 * HOUR, grace=timedelta(seconds=5))


class Recorded(Sweeps):
    """The sweeps of a worker whose plans are only written down."""

    def __init__(self, answer: Promoted) -> None:
        async def promote() -> Promoted:
            return answer

        self._transport: Any = type("Answers", (), {"promote": staticmethod(promote)})
        self._beginning, self.plans, self.nudges = set(), list[tuple[timedelta | None, str]](), 0
        self._claiming: Any = type("Counted", (), {"wake": staticmethod(self._count)})

    def _count(self) -> None:
        self.nudges += 1

    def _when(self, wait: timedelta | None, work: Callable[[], Any], *, ahead: timedelta | None = None) -> None:
        self.plans.append((wait, work.__name__))


@pytest.mark.parametrize(
    ("answer", "planned", "nudges"),
    [
        (Promoted(1, timedelta(seconds=3)), timedelta(seconds=3) + A_LITTLE, 1),
        (Promoted(0, timedelta(seconds=3)), timedelta(seconds=3) + A_LITTLE, 0),
        (Promoted(1000, timedelta(seconds=-2)), timedelta(0), 1),  # more are due than one promotion takes
        (Promoted(0, timedelta(seconds=-2)), AGAIN, 0),  # somebody else promotes those: not again at once
        (Promoted(2, None), None, 1),
    ],
)
async def test_next_promotion_is_planned_for_the_next_due_job(answer: Promoted, planned: timedelta | None, nudges: int) -> None:
    sweeps = Recorded(answer)

    await sweeps._promote()

    assert sweeps.plans == ([] if planned is None else [(planned, "_promote")])
    assert sweeps.nudges == nudges


async def test_next_due_time_is_that_of_the_first_remaining_job(conn: Any) -> None:
    assert await next_due(conn) is None
    due = await add(conn, run_after=HOUR)
    await add(conn, run_after=3 * HOUR)
    await add(conn, run_after=2 * HOUR)
    await conn.execute("UPDATE holdfast.jobs SET run_after = clock_timestamp() WHERE id = %s", [due])

    assert await promote_due(conn) == [due]

    left = await next_due(conn)
    assert left is not None
    assert HOUR < left <= 2 * HOUR


@pytest.mark.parametrize("count", [3, 60], ids=["one by one", "by copy"])
async def test_delayed_jobs_run_on_time_without_polling(database: str, conn: Any, count: int) -> None:
    """The polls are an hour apart: only a hint and what was planned can wake this worker."""
    ran: list[int] = []

    @job("delayed.note")
    async def note(ctx: Context) -> None:
        ran.append(ctx.job.id)

    first_of_all = await add(conn, "delayed.note")
    async with beside(Worker(database, [note], NEVER)):
        await until(lambda: _is(ran == [first_of_all]))  # the connection that claims is the one that listens
        before = await clock(conn)
        new = [NewJob("delayed.note", run_after=_after(number, count)) for number in range(count)]
        made = await enqueue_many(conn, new) if count > 3 else [await enqueue(conn, one) for one in new]
        await until(lambda: _is(len(ran) == count + 1))

    first, last = made[0].id, made[count - 1].id
    assert ran.index(first) < ran.index(last), "those that are due later run later"
    early = await rows(
        conn,
        "SELECT job_id FROM holdfast.history WHERE claimed_at < %s + interval '0.4 s' AND job_id <> %s",
        before,
        first_of_all,
    )
    assert early == [], "and none runs before its time"


def _after(number: int, count: int) -> timedelta:
    """Three moments, well apart from each other."""
    return timedelta(seconds=0.4 * (1 + number * 3 // count))


async def _is(found: bool) -> bool:
    return found


async def test_bulk_enqueue_of_delayed_jobs_notifies_workers(connect: Any) -> None:
    conn, listener = await connect(), await connect()
    await listener.execute("LISTEN holdfast")

    await enqueue_many(conn, [NewJob("k", queue="slow", run_after=HOUR) for _ in range(60)])
    await conn.execute("SELECT pg_notify('holdfast', 'end')")

    heard = []
    async with asyncio.timeout(30):
        async for hint in listener.notifies():
            heard.append(hint.payload)
            if hint.payload == "end":
                break
    assert "@" in heard
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE run_after IS NOT NULL") == 60
