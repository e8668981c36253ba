"""The kernel's own loops do what workers do with their beats, and prune."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from factories import EXPIRED, Conn, add, column, end, everything, hold, rows, silence, state_of, take, value
from holdfast.apps.scheduler import scheduler_for, with_intervals
from holdfast.jobs import effects
from holdfast.jobs.declare import Declaration, as_json
from holdfast.jobs.enqueue import enqueue_many
from holdfast.jobs.kinds import publish
from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import Fail
from holdfast.jobs.periodic.schedule import Schedule
from holdfast.jobs.pipelines import Pipeline
from holdfast.jobs.rerun import rerun
from holdfast.schedule import kernel
from holdfast.schedule.kernel import INTERVALS, kernel_loops
from holdfast.schedule.registry import Loop
from holdfast.schedule.term import ensure
from holdfast.schedule.tick import Place, tick
from holdfast.settings import settings_class
from loop_factories import HOUR, loop, make_due, nothing

DAY = timedelta(days=1)


async def run(conn: Conn, place: Place, name: str, **options: Any) -> tuple[Any, ...]:
    """One pass of a kernel loop: its outcome, and how many items it handled."""
    (one,) = (one for one in kernel_loops(**options) if one.name == name)
    await ensure(conn, [one])
    await make_due(conn, name)
    await tick(one, place)
    found = await rows(conn, "SELECT outcome, items, error FROM holdfast.loop_runs WHERE name = %s ORDER BY id", name)
    return found[-1]


async def everything_else(conn: Conn) -> dict[str, list[str]]:
    """Every row, but for those that each pass writes about itself."""
    return {table: lines for table, lines in (await everything(conn)).items() if table not in {"loops", "loop_runs"}}


def pages_of(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[int, int]]:
    """The limit of each call of a function of the kernel's loops, and how many it returned."""
    read, pages = getattr(kernel, name), []

    async def recorded(*arguments: Any, limit: int, **options: Any) -> Any:
        found = await read(*arguments, limit=limit, **options)
        pages.append((limit, len(found)))
        return found

    monkeypatch.setattr(kernel, name, recorded)
    return pages


async def test_rescue_loop_takes_jobs_of_silent_workers_in_pages(
    conn: Conn, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-12, S-14: the limit counts workers. A second pass finds nothing to do."""
    await enqueue_many(conn, [NewJob("k")] * 130)
    await conn.execute(
        "UPDATE holdfast.jobs SET state = 'running', attempt_id = gen_random_uuid(), worker_id = gen_random_uuid()"
    )
    await conn.execute(
        "INSERT INTO holdfast.workers (id, name, host, pid, version, lease_until)"
        " SELECT worker_id, 'w', 'h', 1, '1', clock_timestamp() + %s FROM holdfast.jobs",
        [EXPIRED],
    )
    pages = pages_of(monkeypatch, "rescue")

    assert await run(conn, place, "rescue") == ("success", 130, None)

    assert pages == [(100, 100), (100, 30)]
    assert await rows(conn, "SELECT DISTINCT state FROM holdfast.jobs") == [("pending",)]
    before = await everything_else(conn)
    assert await run(conn, place, "rescue") == ("success", 0, None)
    assert await everything_else(conn) == before


async def test_promote_loop_makes_due_jobs_claimable_and_notifies(connect: Any, conn: Conn, place: Place) -> None:
    listener = await connect()
    await listener.execute("LISTEN holdfast")
    job_id = await add(conn, run_after=timedelta(milliseconds=1))
    later = await add(conn, run_after=DAY)
    _ = [hint async for hint in listener.notifies(timeout=0.2)]

    assert await run(conn, place, "promote") == ("success", 1, None)

    assert await column(conn, job_id, "run_after") is None
    assert await column(conn, later, "run_after") is not None
    assert [hint async for hint in listener.notifies(timeout=30, stop_after=1)], "idle workers are told"


async def test_effects_are_cleaned_by_a_process_with_the_cleaner(conn: Conn, place: Place) -> None:
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


async def test_stored_pipeline_status_follows_its_jobs(conn: Conn, place: Place) -> None:
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


async def test_pipelines_are_read_in_pages(conn: Conn, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-12: the third page is of those that have ended."""
    for _ in range(120):
        await pipeline(conn)
    await conn.execute("UPDATE holdfast.jobs SET state = 'cancelled', finished_at = clock_timestamp()")
    pages = pages_of(monkeypatch, "read_stored_statuses")

    assert await run(conn, place, "pipeline_status") == ("success", 120, None)

    assert pages == [(100, 100), (100, 20), (100, 100)]


async def test_prune_keeps_jobs_younger_than_the_retention(conn: Conn, place: Place) -> None:
    old, young = await hold(conn), await hold(conn)
    await end(conn, old)
    await end(conn, young)
    await conn.execute("UPDATE holdfast.jobs SET finished_at = finished_at - interval '40 days' WHERE id = %s", [old.id])

    assert await run(conn, place, "prune", retention=None) == ("success", 0, None)
    assert await run(conn, place, "prune", retention=30 * DAY) == ("success", 1, None)

    assert await rows(conn, "SELECT id FROM holdfast.jobs") == [(young.id,)]


async def test_prune_removes_old_runs_and_idle_ones_sooner(conn: Conn, place: Place) -> None:
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


async def refuse(conn: Conn, table: str, row_id: object, when: str = "UPDATE") -> None:
    """A trigger raises for one row, whatever is done to it."""
    row = "OLD" if when == "DELETE" else "NEW"
    await conn.execute(
        f"CREATE FUNCTION holdfast.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF {row}.id::text = '{row_id}'"
        f" THEN RAISE EXCEPTION 'row % is broken', {row}.id; END IF; RETURN {row}; END $$;"
        f" CREATE TRIGGER refuse BEFORE {when} ON holdfast.{table} FOR EACH ROW EXECUTE FUNCTION holdfast.refuse()"
    )


async def failed_items(conn: Conn, name: str) -> Any:
    return await value(conn, "SELECT failed_items FROM holdfast.loop_runs WHERE name = %s ORDER BY id DESC LIMIT 1", name)


async def test_failing_delayed_job_does_not_stop_other_promotions(conn: Conn, place: Place) -> None:
    """S-16, E-23: nor the periodic jobs that are due."""
    await publish(conn, [as_json(Declaration("report.daily", periodic=Schedule(HOUR)))], worker="a worker")
    await conn.execute("UPDATE holdfast.periodic_jobs SET next_due_at = clock_timestamp() - interval '1 second'")
    jobs = [await add(conn, run_after=timedelta(milliseconds=1)) for _ in range(130)]
    await conn.execute("UPDATE holdfast.jobs SET run_after = clock_timestamp() - interval '1 minute'")
    await refuse(conn, "jobs", jobs[7])

    assert await run(conn, place, "promote") == ("success", 129 + 1, None)

    assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE kind = 'report.daily'") == 1

    assert await rows(conn, "SELECT id FROM holdfast.jobs WHERE run_after IS NOT NULL") == [(jobs[7],)]
    assert await failed_items(conn, "promote") == 1


async def test_failing_pipeline_does_not_stop_other_pipelines(
    conn: Conn, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """S-16, E-23: logged with its id and its error."""
    ids = [(await pipeline(conn))[0] for _ in range(3)]
    await conn.execute("UPDATE holdfast.jobs SET state = 'cancelled', finished_at = clock_timestamp()")
    await refuse(conn, "pipelines", sorted(ids)[0])

    assert await run(conn, place, "pipeline_status") == ("success", 2, None)

    assert await value(conn, "SELECT count(*) FROM holdfast.pipelines WHERE status = 'cancelled'") == 2
    assert await failed_items(conn, "pipeline_status") == 1
    (logged,) = [record for record in caplog.records if "loop_item_failed" in record.getMessage()]
    assert (logged.levelname, f"item='{sorted(ids)[0]}'" in logged.getMessage()) == ("ERROR", True)
    assert f"\npsycopg.errors.RaiseException: row {sorted(ids)[0]} is broken" in logged.getMessage(), "with its stack"


async def test_failing_job_does_not_stop_other_prunes(conn: Conn, place: Place) -> None:
    """S-16, E-23"""
    claims = [await hold(conn) for _ in range(3)]
    for claim in claims:
        await end(conn, claim)
    await conn.execute("UPDATE holdfast.jobs SET finished_at = finished_at - interval '40 days'")
    await conn.execute("INSERT INTO holdfast.tallies VALUES ('a', 1), ('a', 2), ('b', 1)")
    await refuse(conn, "jobs", claims[1].id, "DELETE")

    assert await run(conn, place, "prune", retention=30 * DAY) == ("success", 2, None)

    assert await rows(conn, "SELECT id FROM holdfast.jobs") == [(claims[1].id,)]
    assert await rows(conn, "SELECT name, count FROM holdfast.tallies ORDER BY name") == [("a", 3), ("b", 1)]


async def test_failing_rescue_does_not_roll_back_others(conn: Conn, place: Place) -> None:
    """E-23: the jobs of a dead worker stay rescued when an overdue job of a living one cannot be taken."""
    dead, overdue = await hold(conn), await hold(conn, max_runtime=timedelta(seconds=1))
    await silence(conn, dead)
    await conn.execute("UPDATE holdfast.jobs SET deadline_at = clock_timestamp() - %s WHERE id = %s", [HOUR, overdue.id])
    await refuse(conn, "jobs", overdue.id)

    await run(conn, place, "rescue")

    assert await state_of(conn, dead.id) == "pending"
    assert await state_of(conn, overdue.id) == "running"


async def test_pass_without_work_changes_only_its_own_rows(conn: Conn, place: Place) -> None:
    """S-14: idempotent; a pass that finds nothing writes nothing."""
    await hold(conn)
    await add(conn, run_after=DAY)
    before = await everything_else(conn)

    for name in INTERVALS:
        assert (await run(conn, place, name))[0] == "success"

    assert await everything_else(conn) == before


@pytest.mark.parametrize("prefix", ["HOLDFAST", "GRAPH_OLAP"])
def test_intervals_are_set_by_prefixed_and_compatibility_names(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the document, each for the loop of that name. The service of `reconciliation` does not exist yet."""
    monkeypatch.setenv("HOLDFAST_COMPATIBILITY_NAMES", "true")
    said = {"lifecycle": 600, "export_reconciliation": 5, "schema_cache": 86400}
    for name, seconds in said.items():
        monkeypatch.setenv(f"{prefix}_{name.upper()}_JOB_INTERVAL_SECONDS", str(seconds))

    intervals = settings_class()().intervals

    assert intervals == {name: timedelta(seconds=seconds) for name, seconds in said.items()}
    nightly = Loop("schema_cache", nothing, cron="0 2 * * *")
    hourly = loop(name="another")
    changed = with_intervals([nightly, hourly], intervals)
    assert [(one.every, one.cron) for one in changed] == [(DAY, None), (hourly.every, None)]


async def test_scheduler_follows_the_settings(database: str) -> None:
    given = settings_class()(rescue_job_interval_seconds=7, scheduler_look_seconds=3, hostname="pod-1")

    made = scheduler_for(database, given)

    assert set(INTERVALS) <= set(made.loops)
    assert made.loops["rescue"].every == timedelta(seconds=7)
    assert made.options.look == timedelta(seconds=3)
    assert made.holder.startswith("pod-1:")
