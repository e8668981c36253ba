"""Schedulers: several on one database in one process, started and stopped, with a clock that is only a clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
import structlog

from factories import Conn, rows, value
from holdfast.schedule import scheduler as module
from holdfast.schedule.clock import SETTINGS, LoopClock
from holdfast.schedule.context import Pass
from holdfast.schedule.registry import Loop
from holdfast.schedule.scheduler import Scheduler, SchedulerOptions
from holdfast.schedule.steer import pause, trigger
from holdfast.schedule.term import ensure, take
from holdfast.telemetry.metrics import REGISTRY
from loop_factories import HOUR, column, loop, outcomes, until

QUICK = timedelta(milliseconds=200)
OPTIONS = SchedulerOptions(look=timedelta(milliseconds=100), grace=timedelta(seconds=30), connections=4)

Start = Callable[..., Any]


@pytest.fixture
async def start(database: str) -> AsyncIterator[Start]:
    """Starts schedulers that are stopped after the test."""
    async with AsyncExitStack() as stack:

        async def run(*loops: Loop, options: SchedulerOptions = OPTIONS) -> Scheduler:
            return await stack.enter_async_context(Scheduler(database, loops, options))

        yield run


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the scheduler logs."""
    heard: list[dict[str, Any]] = []

    def keep(_: Any, level: str, event: dict[str, Any]) -> str:
        heard.append({**event, "level": level})
        raise structlog.DropEvent

    monkeypatch.setattr(module, "log", structlog.wrap_logger(None, processors=[keep], wrapper_class=structlog.BoundLogger))
    return heard


async def ticked(conn: Conn, name: str = "tidy") -> int:
    return int(await value(conn, "SELECT count(*) FROM holdfast.loop_runs WHERE name = %s AND outcome = 'success'", name))


async def test_f_59_three_schedulers_run_every_tick_once(conn: Conn, start: Start) -> None:
    """S-20: the unique key and the row agree: no due time twice, no term twice, and every one has its run."""
    ran: list[Any] = []

    async def work(ctx: Pass) -> None:
        ran.append(ctx.due_at)

    one = loop(work, every=QUICK)
    for _ in range(3):
        await start(one)
    await until(lambda: len(ran) >= 15)

    assert len(ran) == len(set(ran))
    steps = {(after - before) % QUICK for before, after in pairwise(ran)}
    assert steps == {timedelta(0)}, "on the grid"


async def test_timer_has_the_documented_settings(start: Start, said: list[dict[str, Any]]) -> None:
    """S-02, S-09, Z-01: coalesce, one instance, a grace of 60 s; a registration replaces the last one; the runbook's events."""
    assert SETTINGS == {"coalesce": True, "max_instances": 1, "misfire_grace_time": 60}
    clock = LoopClock(lambda loop: asyncio.sleep(0))
    clock.register(loop())
    clock.register(loop(every=QUICK))
    clock.start()
    assert len(clock._scheduler.get_jobs()) == 1
    clock.stop()

    await start(loop(), loop(name="other"))

    assert [event["event"] for event in said][:3] == ["scheduler_starting", "job_registered", "job_registered"]


async def test_row_is_authoritative_and_the_timer_follows(conn: Conn, start: Start) -> None:
    """A clock that would wake in an hour wakes at once when the row says so: somebody changed it, or a wall clock jumped."""
    await start(Loop("tidy", loop().function, every=HOUR))
    await until(lambda: rows(conn, "SELECT 1 FROM holdfast.loops"))

    await conn.execute("UPDATE holdfast.loops SET next_due_at = clock_timestamp()")

    await until(lambda: ticked(conn))


async def test_triggered_run_starts_at_the_next_poll(conn: Conn, start: Start) -> None:
    """P-07"""
    await start(Loop("tidy", loop().function, every=HOUR))
    await until(lambda: rows(conn, "SELECT 1 FROM holdfast.loops"))

    await trigger(conn, "tidy", actor="ada", reason="smoke test")

    await until(lambda: ticked(conn))
    assert await outcomes(conn) == [(1, "manual", "success")]


async def test_stop_waits_for_the_running_pass(conn: Conn, database: str) -> None:
    """S-08, Z-01"""
    began, go_on = asyncio.Event(), asyncio.Event()

    async def work(ctx: Pass) -> int:
        began.set()
        await go_on.wait()
        return 1

    scheduler = Scheduler(database, [loop(work)], OPTIONS)
    await scheduler.start()
    await began.wait()
    stopping = asyncio.create_task(scheduler.stop())
    await asyncio.sleep(0)
    go_on.set()
    await stopping

    assert await outcomes(conn) == [(1, "schedule", "success")]


async def test_pass_beyond_the_grace_is_released_and_runs_elsewhere(conn: Conn, database: str, start: Start) -> None:
    """S-14: interruptible."""
    began = asyncio.Event()

    async def work(ctx: Pass) -> None:
        if ctx.term == 1:
            began.set()
            await asyncio.Event().wait()

    scheduler = Scheduler(database, [loop(work)], SchedulerOptions(look=QUICK, grace=timedelta(milliseconds=10)))
    await scheduler.start()
    await began.wait()
    await scheduler.stop()
    assert await outcomes(conn) == [(1, "schedule", "interrupted")]

    await start(loop(work))

    await until(lambda: ticked(conn))
    assert await outcomes(conn) == [(1, "schedule", "interrupted"), (2, "schedule", "success")]


async def test_slow_loop_does_not_delay_others(conn: Conn, start: Start) -> None:
    go_on = asyncio.Event()

    async def slow(ctx: Pass) -> None:
        await go_on.wait()

    await start(loop(slow, name="slow"), loop(every=QUICK, name="quick"))

    await until(lambda: _at_least(conn, 3))
    go_on.set()
    await until(lambda: ticked(conn, "slow"))


async def _at_least(conn: Conn, count: int) -> bool:
    return await ticked(conn, "quick") >= count


async def test_a_pass_longer_than_its_interval_never_overlaps(
    conn: Conn, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """S-11"""
    running = most = passes = 0

    async def work(ctx: Pass) -> None:
        nonlocal running, most, passes
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.5)
        running -= 1
        passes += 1

    with caplog.at_level(logging.WARNING, "apscheduler"):
        for _ in range(2):
            await start(loop(work, every=timedelta(milliseconds=100)))
        await until(lambda: passes >= 3)

    assert most == 1


async def test_scheduler_waits_for_a_lost_database(conn: Conn, start: Start) -> None:
    """S-17, S-18: the connections break, and the loops go on."""
    one = await start(loop(every=QUICK))
    await until(lambda: ticked(conn))

    before = await ticked(conn)
    await conn.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    await until(lambda: _more(conn, before))
    assert one.loops


async def _more(conn: Conn, count: int) -> bool:
    return await ticked(conn) > count


async def test_deleted_row_is_recreated(conn: Conn, start: Start) -> None:
    await start(Loop("tidy", loop().function, every=HOUR))
    await until(lambda: rows(conn, "SELECT 1 FROM holdfast.loops"))

    await conn.execute("DELETE FROM holdfast.loops")

    await until(lambda: rows(conn, "SELECT 1 FROM holdfast.loops"))


async def test_internal_error_is_logged_as_critical_and_stops_nothing(
    conn: Conn, start: Start, said: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-18: logged as critical; the process and its other loops go on."""
    faults = 0

    async def broken(one: Loop, place: Any) -> timedelta:
        nonlocal faults
        faults += 1
        if faults < 3:
            raise AssertionError("this should never happen")
        return await tick(one, place)

    tick = module.tick
    monkeypatch.setattr(module, "tick", broken)
    await start(loop())

    await until(lambda: ticked(conn))
    assert ("scheduler_failed", "critical") in [(event["event"], event["level"]) for event in said]


async def test_every_process_exposes_metrics_of_every_loop(conn: Conn, start: Start) -> None:
    """S-19, S-06: no loop without metrics; the interval is there for alerts on the last success."""
    await start(loop(name="watched"))

    def gauge(name: str) -> float | None:
        return REGISTRY.get_sample_value(name, {"job_name": "watched"})

    await until(lambda: gauge("background_job_last_success_timestamp_seconds"))
    assert gauge("background_job_interval_seconds") == 3600
    assert gauge("background_job_health_status") == 1


async def test_a_paused_loop_stays_paused_for_a_new_scheduler(conn: Conn, start: Start) -> None:
    await start(loop(name="other", every=QUICK), Loop("tidy", loop().function, every=HOUR))
    await until(lambda: rows(conn, "SELECT 1 FROM holdfast.loops WHERE name = 'tidy'"))
    await pause(conn, "tidy", actor="ada")
    await conn.execute("UPDATE holdfast.loops SET next_due_at = clock_timestamp() WHERE name = 'tidy'")

    await start(loop(name="another", every=QUICK), Loop("tidy", loop().function, every=HOUR))
    await until(lambda: ticked(conn, "another"))
    await until(lambda: ticked(conn, "other"))

    assert await outcomes(conn) == []
    assert await column(conn, "paused_by") == "ada"


async def test_scheduler_starts_without_a_database(said: list[dict[str, Any]]) -> None:
    """S-18: what serves people beside the loops goes on."""
    away = Scheduler("postgresql://nobody@127.0.0.1:1/nothing", [loop()], OPTIONS)
    await away.start()

    await until(lambda: "scheduler_database_lost" in [event["event"] for event in said])

    await away.stop()


@pytest.mark.more
async def test_f_60_two_hundred_due_loops_with_dead_holders_all_run(conn: Conn, start: Start) -> None:
    """The rest is done by whoever looks next, and each tick succeeds once."""

    async def work(ctx: Pass) -> None:
        async with ctx.transaction() as own:
            await own.execute("INSERT INTO public.witness (loop, term) VALUES (%s, %s)", [ctx.name, ctx.term])

    loops = [loop(work, name=f"loop_{number}") for number in range(200)]
    await ensure(conn, loops)
    for one in loops[:100]:
        assert (await take(conn, one, "the one that died")).term is not None
    await conn.execute("UPDATE holdfast.loops SET held_until = clock_timestamp() - interval '1 s' WHERE holder IS NOT NULL")

    for _ in range(2):
        await start(*loops)
    await until(lambda: _all_have_run(conn, len(loops)))

    assert await rows(conn, "SELECT term, count(*) FROM public.witness GROUP BY term ORDER BY term") == [(1, 100), (2, 100)]
    twice = "SELECT name FROM holdfast.loop_runs WHERE outcome = 'success' GROUP BY name, due_at HAVING count(*) > 1"
    assert await rows(conn, twice) == []


async def _all_have_run(conn: Conn, count: int) -> bool:
    return bool(await value(conn, "SELECT count(*) FROM holdfast.loop_runs WHERE outcome = 'success'") >= count)
