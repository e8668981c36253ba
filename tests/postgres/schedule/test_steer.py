"""Trigger, pause and resume a loop, and read its state."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from factories import Conn, everything, together
from holdfast.errors import NotFound, Refused, TriggeredTooOften
from holdfast.schedule.context import Pass
from holdfast.schedule.read import get_loop, get_run, list_loops, list_runs
from holdfast.schedule.steer import pause, resume, trigger
from holdfast.schedule.term import ensure
from holdfast.schedule.tick import Place, tick
from loop_factories import HOUR, column, loop, make_due, outcomes, silence, taken

LATER = {"first_run": "after_interval"}


async def test_triggered_run_starts_at_the_next_poll_and_can_be_followed(conn: Conn, place: Place) -> None:
    """E-20: the answer names the run, and the run can be asked for until it has ended."""
    seen: list[Any] = []

    async def work(ctx: Pass) -> int:
        seen.append((ctx.is_manual, ctx.actor, ctx.reason, ctx.due_at))
        return 4

    one = loop(work, **LATER)
    await ensure(conn, [one])

    queued = await trigger(conn, "tidy", actor="ops.user", reason="post-deployment smoke test")
    assert (await get_run(conn, queued.run_id)).outcome == "queued"
    await tick(one, place)

    assert seen == [(True, "ops.user", "post-deployment smoke test", None)]
    run = await get_run(conn, queued.run_id)
    assert (run.outcome, run.items, run.trigger, run.actor) == ("success", 4, "manual", "ops.user")


async def test_trigger_records_actor_and_reason(conn: Conn, monkeypatch: pytest.MonkeyPatch) -> None:
    """P-04: an event with user and reason; the time is on the run, with both."""
    said: list[Any] = []

    class Log:
        def info(self, event: str, **fields: Any) -> None:
            said.append((event, fields))

    monkeypatch.setattr("holdfast.schedule.steer.log", Log())
    await ensure(conn, [loop(**LATER)])

    queued = await trigger(conn, "tidy", actor="ops.user", reason="debugging")

    fields = {"job_name": "tidy", "triggered_by": "ops.user", "reason": "debugging", "run_id": queued.run_id}
    assert said == [("manual_job_trigger", fields)]
    run = await get_run(conn, queued.run_id)
    assert (run.actor, run.reason, run.queued_at) == ("ops.user", "debugging", queued.triggered_at)


async def test_triggered_run_keeps_the_schedule_s_22(conn: Conn, place: Place) -> None:
    """S-22"""
    one = loop(**LATER)
    await ensure(conn, [one])
    due = await column(conn, "next_due_at")

    await trigger(conn, "tidy", actor="ada", reason="debugging")
    await tick(one, place)

    assert await column(conn, "next_due_at") == due
    assert await outcomes(conn) == [(1, "manual", "success")]


async def test_triggered_run_waits_for_the_running_one(conn: Conn, place: Place) -> None:
    """S-11, E-20: the same row, so the two never overlap."""
    await taken(conn, loop())
    await trigger(conn, "tidy", actor="ada", reason="incident")

    await tick(loop(), place)

    assert [outcome for *_, outcome in await outcomes(conn)] == ["running", "queued"]


async def test_loop_can_be_triggered_once_a_minute(connect: Any, conn: Conn, place: Place) -> None:
    """P-03: the refusal says how long to wait. The limit is in the database, so it holds for all processes."""
    one = loop(**LATER)
    await ensure(conn, [one, loop(name="other", **LATER)])
    await trigger(conn, "tidy", actor="ada", reason="first")
    await tick(one, place)

    with pytest.raises(TriggeredTooOften) as refused:
        await trigger(await connect(), "tidy", actor="bob", reason="second")

    assert 1 <= refused.value.retry_after <= 60
    assert f"wait {refused.value.retry_after} s" in str(refused.value)
    await trigger(conn, "other", actor="bob", reason="another loop has its own minute")
    await conn.execute("UPDATE holdfast.loops SET triggered_at = triggered_at - interval '1 minute'")
    await trigger(conn, "tidy", actor="bob", reason="a minute later")


async def test_concurrent_triggers_create_one_run(connect: Any, conn: Conn) -> None:
    await ensure(conn, [loop(**LATER)])
    connections = [await connect() for _ in range(5)]

    async def ask(one: Conn) -> str:
        try:
            await trigger(one, "tidy", actor="ada", reason="all at once")
        except TriggeredTooOften:
            return "refused"
        return "queued"

    assert sorted(await together(*(ask(one) for one in connections))) == ["queued"] + ["refused"] * 4


async def test_unknown_loop_is_refused(conn: Conn) -> None:
    """E-20: every loop can be triggered, and no other name; a refusal does not start the minute."""
    await ensure(conn, [loop(**LATER)])
    before = await everything(conn)

    for act in (trigger(conn, "tidi", actor="ada", reason="typo"), pause(conn, "tidi", actor="ada"), resume(conn, "tidi")):
        with pytest.raises(NotFound, match="there are: tidy"):
            await act
    with pytest.raises(NotFound):
        await get_loop(conn, "tidi")
    with pytest.raises(NotFound):
        await get_run(conn, 404)

    assert await everything(conn) == before


async def test_second_trigger_before_the_start_is_refused(conn: Conn) -> None:
    await ensure(conn, [loop(**LATER)])
    queued = await trigger(conn, "tidy", actor="ada", reason="first")
    await conn.execute("UPDATE holdfast.loops SET triggered_at = triggered_at - interval '1 minute'")

    with pytest.raises(Refused, match=f"run {queued.run_id} of tidy is still queued"):
        await trigger(conn, "tidy", actor="bob", reason="second")


async def test_triggered_run_of_a_dead_process_starts_again(conn: Conn, place: Place) -> None:
    await ensure(conn, [loop(**LATER)])
    queued = await trigger(conn, "tidy", actor="ada", reason="incident")
    await taken(conn, loop(**LATER))
    await silence(conn)

    await tick(loop(**LATER), place)

    assert await outcomes(conn) == [(1, "manual", "abandoned"), (2, "manual", "success")]
    assert {(run.actor, run.reason) for run in await list_runs(conn, "tidy")} == {("ada", "incident")}
    assert (await get_run(conn, queued.run_id)).outcome == "abandoned"


async def test_paused_loop_runs_only_when_triggered(conn: Conn, place: Place) -> None:
    await ensure(conn, [loop()])
    await pause(conn, "tidy", actor="ada", reason="the warehouse is being upgraded")

    await tick(loop(), place)
    assert await outcomes(conn) == []
    view = await get_loop(conn, "tidy")
    assert (view.status, view.paused_by, view.paused_reason) == ("paused", "ada", "the warehouse is being upgraded")
    assert view.wait is None

    await trigger(conn, "tidy", actor="ada", reason="look at it once")
    await tick(loop(), place)
    assert await outcomes(conn) == [(1, "manual", "success")]


async def test_resumed_loop_continues_with_its_next_tick(conn: Conn, place: Place) -> None:
    await ensure(conn, [loop()])
    await pause(conn, "tidy", actor="ada")
    await make_due(conn, late=timedelta(hours=5, minutes=30))

    assert [await resume(conn, "tidy"), await resume(conn, "tidy")] == [True, False]
    await tick(loop(), place)

    assert await outcomes(conn) == [], "what was missed while it was paused is not made up for"
    await make_due(conn)
    await tick(loop(), place)
    assert await outcomes(conn) == [(1, "schedule", "success")]


async def test_loops_and_their_runs_can_be_read(conn: Conn, place: Place) -> None:
    """When it ran last, how it went, when it is due next; and the history of runs, page by page."""
    await ensure(conn, [loop(), loop(name="other", every=None, cron="0 2 * * *", timezone="Europe/Zurich")])
    for _ in range(3):
        await make_due(conn)
        await tick(loop(), place)

    first, second = await list_loops(conn)
    assert (first.name, first.cron, first.timezone) == ("other", "0 2 * * *", "Europe/Zurich")
    assert (second.name, second.every, second.last_outcome, second.status) == ("tidy", HOUR, "success", "waiting")
    newest, middle = await list_runs(conn, "tidy", limit=2)
    (oldest,) = await list_runs(conn, "tidy", before=middle.id)
    assert [newest.term, middle.term, oldest.term] == [3, 2, 1]
    assert newest.took is not None
