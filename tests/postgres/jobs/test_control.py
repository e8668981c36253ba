"""Pause and drain, per kind or for all."""

from __future__ import annotations

from typing import Any

import pytest

from factories import add, end, hold, rows, start_worker, state_of, submit, take
from holdfast.errors import Draining
from holdfast.jobs.claim import claim
from holdfast.jobs.control import Control, controls, drain, pause, resume
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.model import Lock, NewJob


async def test_controls_can_be_read(conn: Any) -> None:
    await pause(conn, "a", actor="ada", reason="slow")
    await drain(conn, "b", actor="bob")
    await drain(conn, actor="eve", reason="upgrade")

    assert await controls(conn) == [
        Control("*", False, True, "upgrade", "eve"),
        Control("a", True, False, "slow", "ada"),
        Control("b", False, True, None, "bob"),
    ]


async def test_a_kind_can_be_paused_and_drained(conn: Any) -> None:
    await pause(conn, "a", actor="ada", reason="slow")
    await drain(conn, "a", actor="bob", reason="upgrade")

    assert await controls(conn) == [Control("a", True, True, "upgrade", "bob")]


async def test_second_pause_keeps_the_time_of_the_first(conn: Any) -> None:
    await pause(conn, "a", actor="ada"), await drain(conn, "a", actor="ada")
    first = await rows(conn, "SELECT paused_at, drained_at FROM holdfast.controls")

    await pause(conn, "a", actor="bob"), await drain(conn, "a", actor="bob")

    assert await rows(conn, "SELECT paused_at, drained_at FROM holdfast.controls") == first


async def test_resume_ends_pause_and_drain_and_reports_whether_it_changed_anything(conn: Any) -> None:
    await pause(conn, "a", actor="ada"), await drain(conn, "a", actor="ada")

    assert [await resume(conn, "a"), await resume(conn, "a")] == [True, False]

    assert await controls(conn) == []


async def test_paused_kind_accepts_new_jobs_and_running_ones_continue(conn: Any) -> None:
    running = await hold(conn)
    await pause(conn, "k", actor="ada")

    waiting = await add(conn)
    await end(conn, running)

    assert (await state_of(conn, running.id), await state_of(conn, waiting)) == ("completed", "pending")


async def test_drained_kind_runs_its_existing_jobs(conn: Any) -> None:
    """K-63, E-53: queued jobs still start, and new ones are refused."""
    waiting, claimed = await add(conn), await hold(conn)
    await submit(conn, claimed)
    await drain(conn, "k", actor="ada", reason="upgrade")

    assert [c.id for c in await claim(conn, await start_worker(conn), kinds=["k"])] == [waiting]

    with pytest.raises(Draining) as refused:
        await enqueue(conn, NewJob("k"))
    assert (refused.value.kind, refused.value.reason) == ("k", "upgrade")


@pytest.mark.parametrize("most", [None, 5])
async def test_pause_of_shared_kinds_lets_an_exclusive_job_get_its_lock(conn: Any, most: int | None) -> None:
    """What `docs/runbooks/a-lock-is-never-free.md` says to do."""
    worker, kinds = await start_worker(conn), ["read", "write"]
    reader = await hold(conn, "read", worker=worker, locks=(Lock("t", most=most),))
    writer = await add(conn, "write", locks=(Lock("t"),))
    assert await claim(conn, worker, kinds=kinds) == []

    await pause(conn, "read", actor="ada", reason="the writer starves")
    late = await add(conn, "read", locks=(Lock("t", most=most),))
    assert await claim(conn, worker, kinds=kinds) == []
    await end(conn, reader)
    (wrote,) = await claim(conn, worker, kinds=kinds)
    await end(conn, wrote)
    await resume(conn, "read")

    assert wrote.id == writer
    assert [claimed.id for claimed in await claim(conn, worker, kinds=kinds)] == [late]


async def test_resume_of_one_kind_keeps_the_control_of_all_kinds(conn: Any) -> None:
    job_id = await add(conn)
    await pause(conn, actor="ada")
    await pause(conn, "k", actor="ada")
    worker = await start_worker(conn)

    await resume(conn, "k")
    still = await claim(conn, worker, kinds=["k"])
    await resume(conn)

    assert still == []
    assert (await take(conn, job_id, worker)).id == job_id


async def test_resuming_wakes_idle_workers(connect: Any) -> None:
    listener, conn = await connect(), await connect()
    await listener.execute("LISTEN holdfast")
    await pause(conn, "k", actor="ada")

    await resume(conn, "k")

    heard = [note.channel async for note in listener.notifies(timeout=60, stop_after=1)]
    assert heard == ["holdfast"]
