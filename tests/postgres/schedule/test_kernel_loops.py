"""The kernel's own loops do what workers do with their beats, and prune."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from factories import EXPIRED, Conn, add, column, end, everything, hold, rows, start_worker, state_of, take, value
from holdfast.apps.scheduler import scheduler_for, with_intervals
from holdfast.jobs import effects
from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import Fail
from holdfast.jobs.pipelines import Pipeline
from holdfast.jobs.rerun import rerun
from holdfast.schedule.kernel import INTERVALS, kernel_loops
from holdfast.schedule.registry import Loop
from holdfast.schedule.term import ensure
from holdfast.schedule.tick import Place, tick
from holdfast.settings import Settings
from loop_factories import loop, make_due, nothing

DAY = timedelta(days=1)


async def run(conn: Conn, place: Place, name: str, **options: Any) -> tuple[Any, ...]:
    """One pass of a kernel loop: its outcome, and how many items it handled."""
    (one,) = (one for one in kernel_loops(**options) if one.name == name)
    await ensure(conn, [one])
    await make_due(conn, name)
    await tick(one, place)
    found = await rows(conn, "SELECT outcome, items, error FROM holdfast.loop_runs WHERE name = %s ORDER BY id", name)
    return found[-1]


async def test_rescue_takes_jobs_from_silent_workers_page_by_page(conn: Conn, place: Place) -> None:
    """S-12"""
    worker = await start_worker(conn)
    claims = [await hold(conn, worker=worker) for _ in range(130)]
    await conn.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp() + %s", [EXPIRED])

    assert await run(conn, place, "rescue") == ("success", 130, None)

    assert {await state_of(conn, claim.id) for claim in claims} == {"pending"}


async def test_promote_puts_due_jobs_where_claims_find_them_and_says_so(connect: Any, conn: Conn, place: Place) -> None:
    listener = await connect()
    await listener.execute("LISTEN holdfast")
    job_id = await add(conn, run_after=timedelta(milliseconds=1))
    later = await add(conn, run_after=DAY)
    _ = [hint async for hint in listener.notifies(timeout=0.2)]

    assert await run(conn, place, "promote") == ("success", 1, None)

    assert await column(conn, job_id, "run_after") is None
    assert await column(conn, later, "run_after") is not None
    assert [hint async for hint in listener.notifies(timeout=30, stop_after=1)], "idle workers are told"


async def test_effects_are_cleaned_by_whoever_knows_how(conn: Conn, place: Place) -> None:
    claim = await hold(conn)
    await effects.plan(conn, claim, "pod", tag="pod-1")
    await end(conn, claim, Fail("no"))
    cleaned: list[str] = []

    async def clean(effect: Any) -> bool:
        cleaned.append(effect.tag)
        return True

    assert await run(conn, place, "effects") == ("success", 0, None), "nobody here knows pods"
    assert await run(conn, place, "effects", cleaners=lambda: {"pod": clean}) == ("success", 1, None)
    assert cleaned == ["pod-1"]


async def test_wake_runs(conn: Conn, place: Place) -> None:
    assert await run(conn, place, "wake") == ("success", 0, None)


async def pipeline(conn: Conn, count: int = 1) -> tuple[str, list[int]]:
    made = Pipeline("p")
    for _ in range(count):
        made.add(NewJob("k"))
    async with conn.transaction():
        jobs = await made.enqueue(conn)
    return made.id, [job.id for job in jobs]


async def test_what_is_remembered_of_a_pipeline_follows_its_jobs(conn: Conn, place: Place) -> None:
    """The status for lists; a job that is run again makes its pipeline run again."""
    good, (one,) = await pipeline(conn)
    mixed, (two, three) = await pipeline(conn, 2)
    waiting, _ = await pipeline(conn)
    await end(conn, await take(conn, one))
    await end(conn, await take(conn, two))
    await end(conn, await take(conn, three), Fail("no"))

    async def remembered() -> dict[str, str]:
        return dict(await rows(conn, "SELECT id::text, status FROM holdfast.pipelines"))

    assert await run(conn, place, "pipeline_status") == ("success", 2, None)
    assert await remembered() == {good: "completed", mixed: "partial", waiting: "running"}
    ended = await value(conn, "SELECT finished_at FROM holdfast.pipelines WHERE id = %s", good)
    assert ended == await value(conn, "SELECT finished_at FROM holdfast.jobs WHERE id = %s", one)

    await rerun(conn, three, actor="ada")
    assert await run(conn, place, "pipeline_status") == ("success", 1, None)
    assert (await remembered())[mixed] == "running"
    assert await value(conn, "SELECT finished_at FROM holdfast.pipelines WHERE id = %s", mixed) is None


async def test_pipelines_are_gone_through_page_by_page(conn: Conn, place: Place) -> None:
    """S-12"""
    for _ in range(120):
        await pipeline(conn)
    await conn.execute("UPDATE holdfast.jobs SET state = 'cancelled', finished_at = clock_timestamp()")

    assert await run(conn, place, "pipeline_status") == ("success", 120, None)


async def test_prune_keeps_what_is_younger_than_the_retention(conn: Conn, place: Place) -> None:
    old, young = await hold(conn), await hold(conn)
    await end(conn, old)
    await end(conn, young)
    await conn.execute("UPDATE holdfast.jobs SET finished_at = finished_at - interval '40 days' WHERE id = %s", [old.id])

    assert await run(conn, place, "prune", retention=None) == ("success", 0, None)
    assert await run(conn, place, "prune", retention=30 * DAY) == ("success", 1, None)

    assert await rows(conn, "SELECT id FROM holdfast.jobs") == [(young.id,)]


async def test_prune_removes_old_runs_of_loops_and_idle_ones_sooner(conn: Conn, place: Place) -> None:
    await ensure(conn, [loop()])
    await conn.execute(
        "INSERT INTO holdfast.loop_runs (name, trigger, due_at, term, outcome, items, finished_at)"
        " SELECT 'tidy', 'schedule', clock_timestamp() - age, n, outcome, items, clock_timestamp() - age FROM (VALUES"
        " (1, 'success', 0, interval '2 h'), (2, 'success', 3, interval '2 h'), (3, 'failed', 0, interval '2 h'),"
        " (4, 'success', 3, interval '9 days'), (5, 'success', 0, interval '1 min')) AS run (n, outcome, items, age)"
    )
    await conn.execute(
        "INSERT INTO holdfast.loop_keys VALUES ('tidy', 'old', 1, clock_timestamp() - interval '9 days', 'e'),"
        " ('tidy', 'new', 1, clock_timestamp(), 'e')"
    )
    await conn.execute("UPDATE holdfast.loops SET run_id = 0")

    await run(conn, place, "prune", run_retention=7 * DAY)

    assert await rows(conn, "SELECT term FROM holdfast.loop_runs WHERE name = 'tidy' ORDER BY term") == [(2,), (3,), (5,)]
    assert await rows(conn, "SELECT key FROM holdfast.loop_keys") == [("new",)]


async def test_a_quiet_pass_changes_nothing_but_its_own_rows(conn: Conn, place: Place) -> None:
    """S-14: idempotent; a pass that finds nothing writes nothing."""
    await hold(conn)
    await add(conn, run_after=DAY)
    own = {"loops", "loop_runs"}
    before = {table: lines for table, lines in (await everything(conn)).items() if table not in own}

    for name in INTERVALS:
        assert (await run(conn, place, name))[0] == "success"

    assert {table: lines for table, lines in (await everything(conn)).items() if table not in own} == before


@pytest.mark.parametrize("prefix", ["HOLDFAST", "GRAPH_OLAP"])
def test_intervals_are_set_by_our_names_and_by_the_documents(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The four names of the document, each for the loop of that name."""
    said = {"reconciliation": 300, "lifecycle": 600, "export_reconciliation": 5, "schema_cache": 86400}
    for name, seconds in said.items():
        monkeypatch.setenv(f"{prefix}_{name.upper()}_JOB_INTERVAL_SECONDS", str(seconds))

    intervals = Settings().intervals

    assert intervals == {name: timedelta(seconds=seconds) for name, seconds in said.items()}
    nightly = Loop("schema_cache", nothing, cron="0 2 * * *")
    hourly = loop(name="another")
    changed = with_intervals([nightly, hourly], intervals)
    assert [(one.every, one.cron) for one in changed] == [(DAY, None), (hourly.every, None)]


async def test_a_scheduler_as_the_settings_say(database: str) -> None:
    given = Settings(HOLDFAST_RESCUE_JOB_INTERVAL_SECONDS=7, scheduler_look_seconds=3, HOLDFAST_HOSTNAME="pod-1")  # type: ignore[call-arg]

    made = scheduler_for(database, given)

    assert set(INTERVALS) <= set(made.loops)
    assert made.loops["rescue"].every == timedelta(seconds=7)
    assert made.options.look == timedelta(seconds=3)
    assert made.holder.startswith("pod-1:")
