"""One tick, top to bottom: events, metrics, health, failures, and what happens to a pass whose term is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import structlog

from factories import Conn, rows
from holdfast.errors import UsageError
from holdfast.schedule.context import Pass, SyncPass
from holdfast.schedule.read import get_loop
from holdfast.schedule.registry import Loop, Result
from holdfast.schedule.scheduler import show
from holdfast.schedule.steer import trigger
from holdfast.schedule.term import ensure
from holdfast.schedule.tick import Place, tick
from holdfast.telemetry.metrics import REGISTRY
from loop_factories import column, loop, make_due, outcomes, silence, taken, until, witness


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every event that is logged, in order."""
    from holdfast.schedule import reconcile, steer
    from holdfast.schedule import tick as module

    said: list[dict[str, Any]] = []

    def keep(_: Any, level: str, event: dict[str, Any]) -> str:
        said.append({**event, "level": level})
        raise structlog.DropEvent

    recorder = structlog.wrap_logger(None, processors=[keep], wrapper_class=structlog.BoundLogger)
    for one in (module, reconcile, steer):
        monkeypatch.setattr(one, "log", recorder)
    return said


async def run(conn: Conn, place: Place, one: Loop) -> None:
    await ensure(conn, [one])
    await tick(one, place)


def buckets(job_name: str) -> list[str]:
    families = REGISTRY.restricted_registry(["background_job_execution_duration_seconds_bucket"]).collect()
    samples = [sample for family in families for sample in family.samples if sample.labels.get("job_name") == job_name]
    return [sample.labels["le"] for sample in samples if "le" in sample.labels]


async def test_pass_is_logged_counted_and_recorded(conn: Conn, place: Place, events: list[dict[str, Any]]) -> None:
    """S-04, S-05, V-01, V-02, V-05, Z-01: events, counter and histogram with its buckets, by the documents' names."""

    async def work(ctx: Pass) -> Result:
        return Result(3, 1, 2, {"orphaned_pods_cleaned": 3})

    before = metric("background_job_execution_total", job_name="tidy", status="success")
    observed = metric("background_job_execution_duration_seconds_count", job_name="tidy")
    await run(conn, place, loop(work))

    assert [event["event"] for event in events] == ["tidy_job_started", "tidy_job_completed"]
    assert [event["loop"] for event in events] == ["tidy", "tidy"]
    assert events[1]["orphaned_pods_cleaned"] == 3
    assert "duration_seconds" in events[1]
    assert metric("background_job_execution_total", job_name="tidy", status="success") == before + 1
    assert metric("background_job_execution_duration_seconds_count", job_name="tidy") == observed + 1
    assert buckets("tidy") == ["0.1", "0.5", "1.0", "2.5", "5.0", "10.0", "30.0", "60.0", "120.0", "+Inf"]
    assert metric("holdfast_loop_items_total", job_name="tidy", outcome="failed") >= 1
    assert await rows(conn, "SELECT outcome, items, failed_items, skipped_items FROM holdfast.loop_runs") == [
        ("success", 3, 1, 2)
    ]


async def test_failing_pass_is_recorded_with_its_error(conn: Conn, place: Place, events: list[dict[str, Any]]) -> None:
    """S-04, S-05, S-17, V-01, Z-01: exceptions never crash the process; failures are measured; the next tick tries again."""

    async def work(ctx: Pass) -> None:
        raise RuntimeError("the warehouse is away")

    observed = metric("background_job_execution_duration_seconds_count", job_name="tidy")
    failed = metric("background_job_execution_total", job_name="tidy", status="failed")
    await run(conn, place, loop(work))

    assert [event["event"] for event in events] == ["tidy_job_started", "tidy_job_failed"]
    assert isinstance(events[-1]["exc_info"], RuntimeError), "with its stack"
    assert metric("background_job_execution_duration_seconds_count", job_name="tidy") == observed + 1
    assert metric("background_job_execution_total", job_name="tidy", status="failed") == failed + 1
    view = await get_loop(conn, "tidy")
    assert (view.failures, view.last_outcome, view.last_error) == (1, "failed", "RuntimeError: the warehouse is away")


async def test_three_failures_make_a_loop_unhealthy_until_the_next_success(conn: Conn, place: Place) -> None:
    """S-06, S-07, V-03: health 0 after 3 or more failures in a row, kept in the database and so the same in every process."""
    ok = False

    async def work(ctx: Pass) -> None:
        if not ok:
            raise RuntimeError("no")

    seen = []
    for turn in range(5):
        ok = turn == 4
        await make_due(conn)
        await run(conn, place, loop(work))
        view = await get_loop(conn, "tidy")
        show(view)
        seen.append((view.is_healthy, metric("background_job_health_status", job_name="tidy")))

    assert seen == [(True, 1), (True, 1), (False, 0), (False, 0), (True, 1)]
    assert view.last_success_at is not None
    assert metric("background_job_last_success_timestamp_seconds", job_name="tidy") == view.last_success_at.timestamp()
    assert metric("background_job_interval_seconds", job_name="tidy") == 3600


async def test_lost_database_fails_the_pass_and_rolls_back_its_writes(
    conn: Conn, place: Place, events: list[dict[str, Any]]
) -> None:
    """S-17: no corruption: what the pass wrote in its open transaction is not there."""

    async def work(ctx: Pass) -> None:
        async with ctx.transaction() as own:
            await own.execute("INSERT INTO public.witness (loop) VALUES ('tidy')")
            pid = own.info.backend_pid
            await conn.execute("SELECT pg_terminate_backend(%s)", [pid])
            await own.execute("SELECT 1")

    await run(conn, place, loop(work))

    assert await witness(conn) == []
    assert await outcomes(conn) == [(1, "schedule", "failed")]
    assert (events[-1]["event"], events[-1]["level"]) == ("tidy_job_failed", "error")
    assert isinstance(events[-1]["exc_info"], psycopg.Error), "with its stack"
    await make_due(conn)
    await run(conn, place, loop())
    assert (await outcomes(conn))[-1] == (2, "schedule", "success")


async def test_sync_function_runs_in_a_thread_without_blocking_the_event_loop(conn: Conn, place: Place) -> None:
    """S-10: nothing blocks the loop."""
    entered, go_on = threading.Event(), threading.Event()

    def work(ctx: SyncPass) -> int:
        entered.set()
        assert go_on.wait(60), "the event loop was blocked"
        with ctx.transaction() as own:
            own.execute("INSERT INTO public.witness (loop, who) VALUES (%s, 'thread')", [ctx.name])
        return 1

    running = asyncio.create_task(run(conn, place, loop(work)))
    await until(entered.is_set)
    go_on.set()
    await running

    assert await witness(conn) == [("tidy", None, "thread")]
    assert await outcomes(conn) == [(1, "schedule", "success")]


async def test_pass_renews_its_lease(conn: Conn, places: Any) -> None:
    here, there = await places("here"), await places("there")
    began, go_on = asyncio.Event(), asyncio.Event()

    async def work(ctx: Pass) -> None:
        began.set()
        await go_on.wait()

    slow = loop(work, lease=timedelta(seconds=8))
    running = asyncio.create_task(run(conn, here, slow))
    await began.wait()
    taken_until = await column(conn, "held_until")
    await until(lambda: _is_held_beyond(conn, taken_until))
    await tick(loop(), there)
    go_on.set()
    await running

    assert await outcomes(conn) == [(1, "schedule", "success")]


async def _is_held_beyond(conn: Conn, moment: Any) -> bool:
    return bool(await column(conn, "held_until") > moment)


async def test_f_14_replaced_pass_is_cancelled_and_its_writes_refused(
    conn: Conn, places: Any, events: list[dict[str, Any]]
) -> None:
    here, there = await places("here"), await places("there")
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(ctx: Pass) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def quick(ctx: Pass) -> None:
        async with ctx.transaction() as own:
            await own.execute("INSERT INTO public.witness (loop, who) VALUES ('tidy', 'there')")

    before = metric("holdfast_loop_terms_lost_total", job_name="tidy")
    running = asyncio.create_task(run(conn, here, loop(slow, lease=timedelta(seconds=2))))
    await began.wait()
    while [outcome for *_, outcome in await outcomes(conn)] != ["abandoned", "success"]:
        await silence(conn)
        await tick(loop(quick), there)
    async with asyncio.timeout(60):
        await running

    assert cancelled.is_set()
    assert await witness(conn) == [("tidy", None, "there")]
    assert "loop_term_lost" in [event["event"] for event in events]
    assert metric("holdfast_loop_terms_lost_total", job_name="tidy") == before + 1


async def test_f_14_thread_that_lost_its_term_is_refused_at_its_write(conn: Conn, places: Any) -> None:
    here, there = await places("here"), await places("there")
    began, go_on = threading.Event(), threading.Event()
    refused: list[str] = []

    def slow(ctx: SyncPass) -> None:
        began.set()
        go_on.wait(60)
        with psycopg.connect(here.url, autocommit=True) as own, own.transaction():
            try:
                ctx.write(own)
            except Exception as error:
                refused.append(type(error).__name__)
                raise
            own.execute("INSERT INTO public.witness (loop, who) VALUES ('tidy', 'here')")

    running = asyncio.create_task(run(conn, here, loop(slow, lease=timedelta(hours=1))))
    await until(began.is_set)
    await silence(conn)
    await tick(loop(), there)
    go_on.set()
    async with asyncio.timeout(60):
        await running

    assert refused == ["TermLost"]
    assert await witness(conn) == []
    assert await outcomes(conn) == [(1, "schedule", "abandoned"), (2, "schedule", "success")]


async def test_check_refuses_after_the_local_deadline(conn: Conn, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a side effect outside: a process that slept through its lease must not be sure of anything."""
    began = time.monotonic()
    reached: list[str] = []

    async def work(ctx: Pass) -> None:
        ctx.check()
        reached.append("in time")
        monkeypatch.setattr("holdfast.schedule.context.time.monotonic", lambda: began + 3600)
        ctx.check()
        reached.append("too late")

    await run(conn, place, loop(work))

    assert reached == ["in time"]


async def test_write_without_a_transaction_is_refused(conn: Conn, place: Place) -> None:
    said: list[str] = []

    async def work(ctx: Pass) -> None:
        async with ctx.connection() as own:
            with pytest.raises(UsageError) as wrong:
                await ctx.write(own)
            said.append(str(wrong.value))

    await run(conn, place, loop(work))

    assert "needs an open transaction" in said[0]


async def test_idle_quiet_loop_is_logged_first_and_every_five_minutes(
    conn: Conn, place: Place, events: list[dict[str, Any]]
) -> None:
    """V-05: at INFO, `grep tidy_job` tells a loop that has nothing to do from one that does not run."""
    at_info: list[list[str]] = []
    for _ in range(4):
        del events[:]
        await run(conn, place, loop(is_quiet=True))
        await make_due(conn)
        at_info.append([event["event"] for event in events if event["level"] == "info"])
        if len(at_info) == 3:
            place.quiet._logged_at["tidy"] -= 301  # five minutes later

    every = ["tidy_job_started", "tidy_job_completed"]
    assert at_info == [every, [], [], every]
    assert events[-1]["passes"] == 3, "how many there were since the last such line"


async def test_quiet_loop_with_results_is_logged(conn: Conn, place: Place, events: list[dict[str, Any]]) -> None:
    async def work(ctx: Pass) -> int:
        return items

    items = 0
    one = loop(work, is_quiet=True)
    await run(conn, place, one)
    await make_due(conn)
    items = 2
    await run(conn, place, one)

    assert [event["event"] for event in events[-2:] if event["level"] == "info"] == ["tidy_job_completed"]
    assert (events[-1]["done"], events[-1]["passes"]) == (2, 1)


async def test_failed_daily_tick_is_retried_before_the_next_day(conn: Conn, place: Place) -> None:
    """B-03: after 5, 10, 20, 40 minutes, then every hour, as the same tick; the day's schedule stays where it is."""
    works = False

    async def work(ctx: Pass) -> None:
        if not works:
            raise RuntimeError("the warehouse is away")

    daily = loop(work, every=timedelta(days=1))
    await run(conn, place, daily)
    due, following = (await rows(conn, "SELECT due_at FROM holdfast.loop_runs"))[0][0], await column(conn, "next_due_at")
    minutes: list[int] = []
    for _ in range(6):
        view = await get_loop(conn, "tidy")
        assert view.retry_at is not None
        assert view.last_finished_at is not None
        minutes.append(round((view.retry_at - view.last_finished_at).total_seconds() / 60))
        assert await tick(daily, place) > timedelta(minutes=4), "not before its time"
        await conn.execute("UPDATE holdfast.loops SET retry_at = clock_timestamp()")
        works = len(minutes) == 6
        await tick(daily, place)

    assert minutes == [5, 10, 20, 40, 60, 60]
    assert await rows(conn, "SELECT trigger, due_at, outcome FROM holdfast.loop_runs ORDER BY id") == [
        *[("schedule", due, "failed")] * 6,
        ("schedule", due, "success"),
    ]
    assert (await column(conn, "retry_at"), await column(conn, "next_due_at"), await column(conn, "failures")) == (
        None,
        following,
        0,
    )


@pytest.mark.parametrize("fields", [{"every": timedelta(minutes=4)}, {"retry_after": None}])
async def test_loop_with_a_near_tick_or_retries_disabled_has_no_retry(conn: Conn, place: Place, fields: dict[str, Any]) -> None:
    async def work(ctx: Pass) -> None:
        raise RuntimeError("no")

    await run(conn, place, loop(work, **fields))

    assert await column(conn, "retry_at") is None


async def test_failed_triggered_run_changes_no_retry(conn: Conn, place: Place) -> None:
    async def work(ctx: Pass) -> None:
        raise RuntimeError("no")

    one = loop(work, first_run="after_interval")
    await ensure(conn, [one])
    await trigger(conn, "tidy", actor="ada", reason="test")
    await tick(one, place)

    assert await outcomes(conn) == [(1, "manual", "failed")]
    assert await column(conn, "retry_at") is None


async def test_daily_tick_of_dead_holders_is_retried_before_the_next_day(conn: Conn, place: Place) -> None:
    """B-03: a pass that took its process down twice has failed like one that raised."""
    daily = loop(every=timedelta(days=1))
    await taken(conn, daily)
    await silence(conn, ago=timedelta(minutes=5))  # nobody was there to begin it again in time

    assert timedelta(minutes=4) < await tick(daily, place) <= timedelta(minutes=5)

    await conn.execute("UPDATE holdfast.loops SET retry_at = clock_timestamp()")
    await tick(daily, place)
    assert await outcomes(conn) == [(1, "schedule", "abandoned"), (2, "schedule", "success")]


async def test_a_pass_knows_which_tick_it_is(conn: Conn, place: Place) -> None:
    seen: list[Any] = []

    async def work(ctx: Pass) -> None:
        seen.extend([ctx.name, ctx.term, ctx.due_at, ctx.is_manual, ctx.actor])

    await run(conn, place, loop(work))

    assert seen == ["tidy", 1, (await rows(conn, "SELECT due_at FROM holdfast.loop_runs"))[0][0], False, None]
