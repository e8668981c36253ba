"""The test helpers for handlers: crash points, moving time, and error messages."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from factories import HOUR, job, rows
from holdfast import Context, Lock, NewJob, crashpoint
from holdfast import job as kind_of
from holdfast.crashpoints import POINTS
from holdfast.errors import UnknownKind, UsageError
from holdfast.jobs.claim import claim_by_id
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.kinds import job_by_name
from holdfast.jobs.model import WorkerId
from holdfast.jobs.renew import WorkerInfo, register
from holdfast.testing import Harness, crash_at, harness

OF_A_WORKER = ("claim.before", "claim.in_tx", "claim.after_commit", "lock.after", "run.before_start", "run.mid", "run.after")


@kind_of("harness.tied", locks=lambda table: [Lock(table)])
async def tied(ctx: Context, table: str) -> None:
    await ctx.checkpoint()
    crashpoint("mine")


@pytest.fixture
async def h(database: str) -> AsyncIterator[Harness]:
    async with harness(database, [tied]) as made:
        yield made


async def of_a_dead_worker(conn: Any) -> int:
    """A job that somebody claimed whose lease is half a minute."""
    other = WorkerId(str(uuid4()))
    await register(conn, WorkerInfo(other, "other", "elsewhere", 1, "test"), lease=timedelta(seconds=30))
    made = await enqueue(conn, tied.new(table="t"))
    assert await claim_by_id(conn, other, made.id) is not None
    return made.id


@pytest.mark.parametrize("point", [*OF_A_WORKER, "unlock.after", "complete.after_commit_before_ack", "mine"])
async def test_job_survives_a_crash_at_every_point_and_releases_its_lock(h: Harness, conn: Any, point: str) -> None:
    report = await h.prove_safe(lambda: tied.new(table="t"), points=[point])

    assert report.is_safe, report
    assert (await h.run(tied.new(table="t"))).state == "completed"
    assert await rows(conn, "SELECT key FROM holdfast.lock_holders") == []


async def test_harness_migrates_a_database_and_may_do_so_again(empty_database: str) -> None:
    for _ in range(2):
        async with harness(empty_database, [tied]) as made:
            assert (await made.run(tied.new(table="t"))).state == "completed"


async def test_harness_publishes_its_kinds(h: Harness, conn: Any) -> None:
    made = await enqueue(conn, await job_by_name(conn, "harness.tied", {"table": "t"}, locks=(Lock("t"),)))

    assert await h.drain() == [made.id]


async def test_unreached_point_is_in_the_report(h: Harness) -> None:
    report = await h.prove_safe(lambda: tied.new(table="t"), points=["hb.after", "elsewhere"])

    assert (report.never_reached, report.is_safe) == (["hb.after", "elsewhere"], False)


async def test_jobs_of_a_crashed_worker_run_after_its_lease(h: Harness, conn: Any) -> None:
    made = await of_a_dead_worker(conn)
    assert await h.drain() == []

    await h.move_time(HOUR)

    assert await h.drain() == [made]
    found = await job(conn, made)
    assert (found.state, found.crashes) == ("completed", 1)


@pytest.mark.parametrize("point", ["reap.in_tx", "reap.after"])
async def test_crash_during_a_rescue_is_counted(h: Harness, conn: Any, point: str) -> None:
    made = await of_a_dead_worker(conn)
    await h.move_time(HOUR)

    with crash_at(point) as hits:
        await h.drain()

    assert hits == [point]
    assert (await job(conn, made)).state == "completed"


async def test_crash_in_the_rescue_after_a_crash_does_not_fail_the_test(h: Harness) -> None:
    with crash_at("run.mid"), crash_at("reap.in_tx"), crash_at("reap.after"):
        ended = await h.run(tied.new(table="t"))

    assert (ended.state, ended.crashes) == ("completed", 1)


def test_misspelled_crash_point_is_refused() -> None:
    said = "point cannot be 'hb.befor': must be one of hb.in_tx, hb.after; use another prefix for your own points"
    with pytest.raises(UsageError, match=re.escape(said)), crash_at("hb.befor"):
        pytest.fail("the block was entered")


@pytest.mark.parametrize("point", ["run.mid", "chraged"])
async def test_unreached_point_fails_the_test(point: str) -> None:
    with pytest.raises(UsageError, match=f"crash point '{point}' was never reached"), crash_at(point):
        pass

    with crash_at(point, must_reach=False) as hits:
        pass
    assert hits == []


def test_error_of_the_test_is_not_hidden_by_an_unreached_point() -> None:
    with pytest.raises(ZeroDivisionError), crash_at("run.mid"):
        raise ZeroDivisionError


@pytest.mark.parametrize("point", POINTS)
def test_every_point_on_the_list_can_be_armed(point: str) -> None:
    with crash_at(point, must_reach=False):
        pass


MISTAKEN: dict[str, tuple[Any, str]] = {
    "a kind": (lambda h: h.run(tied), "a job cannot be <job harness.tied>: must be the result of .new(…); use tied.new(…)"),
    "a word": (lambda h: h.run("tied"), "a job cannot be 'tied': must be the result of .new(…); use render.new(…)"),
    "seconds": (lambda h: h.move_time(5), "by cannot be 5: must be a timedelta; use timedelta(seconds=5)"),
    "a job": (lambda h: h.prove_safe(tied.new(table="t"), ["mine"]), "must be a function; use make=lambda: render.new"),
    "one point": (lambda h: h.prove_safe(lambda: tied.new(table="t"), "mine"), "must be a list; use points=['run.after']"),
    "makes no job": (lambda h: h.prove_safe(lambda: tied, ["mine"]), "use tied.new(…) with its arguments"),
}


@pytest.mark.parametrize(("call", "said"), MISTAKEN.values(), ids=MISTAKEN.keys())
async def test_invalid_argument_is_named(h: Harness, call: Any, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        await call(h)


async def test_unknown_kind_is_named(h: Harness) -> None:
    with pytest.raises(UnknownKind, match="no handler for other; registered: harness.tied"):
        await h.prove_safe(lambda: NewJob("other"), points=["mine"])
