"""Periodic jobs: one job for each due time, whichever process enqueues it and wherever it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from factories import add, hold, job, rows, state_of, value
from holdfast.errors import Draining, NotFound, Refused
from holdfast.jobs import control
from holdfast.jobs.client import connect as connect_client
from holdfast.jobs.declare import Declaration, as_json
from holdfast.jobs.kinds import prune_kinds, publish
from holdfast.jobs.model import Lock
from holdfast.jobs.periodic import read, steer
from holdfast.jobs.periodic.enqueue_due import HOLD_DUE, enqueue_due
from holdfast.jobs.periodic.schedule import LATE, MOST_CAUGHT_UP, Schedule, due_times, key_of
from holdfast.jobs.promote import promote_all_due
from holdfast.jobs.renew import renew
from holdfast.testing import Crash, crash_at

Conn = psycopg.AsyncConnection[Any]
Connect = Callable[[], Awaitable[Conn]]
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
KIND = "report.daily"


async def declare(conn: Conn, kind: str = KIND, *, every: timedelta | None = HOUR, locks: Any = None, **says: Any) -> None:
    """A worker starts that declares this kind as periodic."""
    schedule = None if every is None and "cron" not in says else Schedule(every, **says)
    await publish(conn, [as_json(Declaration(kind, periodic=schedule, locks=locks))], worker="a worker")


async def make_due(conn: Conn, ago: timedelta = timedelta(0), kind: str = KIND) -> datetime:
    """Move the next due time to the past; the due time."""
    return await value(  # type: ignore[no-any-return]
        conn,
        "UPDATE holdfast.periodic_jobs SET next_due_at = clock_timestamp() - %s WHERE kind = %s RETURNING next_due_at",
        ago,
        kind,
    )


async def jobs_of(conn: Conn, kind: str = KIND) -> list[Any]:
    return [row[0] for row in await rows(conn, "SELECT payload FROM holdfast.jobs WHERE kind = %s ORDER BY id", kind)]


# ---------------------------------------------------------------------------------------------------------------------
# One job for each due time
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_due_time_is_enqueued_once_with_its_arguments(conn: Conn) -> None:
    await declare(conn, payload={"region": "eu"}, gives_due_at=True)
    due_at = await make_due(conn)

    (made,) = await enqueue_due(conn)

    assert (await job(conn, made)).payload == {"region": "eu", "due_at": due_at.astimezone(UTC).isoformat()}
    assert await enqueue_due(conn) == []
    view = await read.get_periodic(conn, KIND)
    assert (view.last_job_id, view.last_due_at, view.next_due_at) == (made, due_at, due_at + HOUR)


async def test_nothing_is_enqueued_before_the_due_time(conn: Conn) -> None:
    await declare(conn)

    assert await enqueue_due(conn) == []


async def test_locked_schedule_is_skipped(conn: Conn, connect: Connect) -> None:
    """Stepped: the other process has the row, enqueues, commits."""
    await declare(conn)
    await make_due(conn)
    other = await connect()

    async with other.transaction():
        assert await rows(other, HOLD_DUE)
        assert await enqueue_due(conn) == []  # does not wait
        assert len(await enqueue_due(other)) == 1
        assert await enqueue_due(conn) == []

    assert await enqueue_due(conn) == []
    assert len(await jobs_of(conn)) == 1


async def test_eight_processes_enqueue_each_due_time_once(conn: Conn, connect: Connect) -> None:
    await declare(conn)
    others = [await connect() for _ in range(8)]

    for number in range(1, 6):
        await make_due(conn)
        made = await asyncio.gather(*(enqueue_due(other) for other in others))
        assert sum(map(len, made)) == 1
        assert len(await jobs_of(conn)) == number


async def test_enqueued_due_time_is_not_enqueued_again_after_a_reset(conn: Conn) -> None:
    """The second guard: the key of the due time."""
    await declare(conn, payload={"n": 1}, gives_due_at=True)
    due_at = await make_due(conn)
    (first,) = await enqueue_due(conn)
    await declare(conn, payload={"n": 2}, gives_due_at=True)
    await conn.execute("UPDATE holdfast.periodic_jobs SET next_due_at = %s", [due_at])

    again = await enqueue_due(conn)

    assert again == [first]
    assert await jobs_of(conn) == [{"n": 1, "due_at": due_at.astimezone(UTC).isoformat()}]


async def test_crash_before_the_commit_leaves_the_due_time_to_others(conn: Conn, connect: Connect) -> None:
    await declare(conn)
    due_at = await make_due(conn)
    dying = await connect()

    with crash_at("periodic.in_tx_after_enqueue"), pytest.raises(Crash):
        await enqueue_due(dying)

    assert await jobs_of(conn) == []
    assert (await read.get_periodic(conn, KIND)).next_due_at == due_at
    assert len(await enqueue_due(conn)) == 1


async def test_crash_after_the_commit_has_enqueued_the_job(conn: Conn, connect: Connect) -> None:
    await declare(conn)
    await make_due(conn)
    dying = await connect()

    with crash_at("periodic.after_commit"), pytest.raises(Crash):
        await enqueue_due(dying)

    assert await enqueue_due(conn) == []
    assert len(await jobs_of(conn)) == 1


async def test_refused_schedule_keeps_its_error_and_others_run(conn: Conn) -> None:
    locks = as_json(Declaration("x"))["locks"]
    assert locks is None
    await publish(
        conn,
        [
            as_json(Declaration("a.locked", periodic=Schedule(HOUR)))
            | {"locks": [{"key": "k", "most": 1, "when_busy": "reject"}]},
            as_json(Declaration("b.free", periodic=Schedule(HOUR))),
        ],
        worker="a worker",
    )
    await add(conn, "holder", locks=(Lock("k", when_busy="reject"),))
    await make_due(conn, HOUR * 2, "a.locked")
    await make_due(conn, kind="b.free")

    assert len(await enqueue_due(conn)) == 1

    view = await read.get_periodic(conn, "a.locked")
    assert view.last_error is not None
    assert "was not enqueued" in view.last_error
    assert view.next_due_at > datetime.now(UTC)


async def test_schedule_that_the_database_refuses_keeps_its_error_and_others_run(conn: Conn) -> None:
    await conn.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no such jobs here'; END $$;"
        " CREATE TRIGGER refuse BEFORE INSERT ON holdfast.jobs FOR EACH ROW WHEN (NEW.kind = 'a.refused')"
        " EXECUTE FUNCTION refuse()"
    )
    kinds = [as_json(Declaration(name, periodic=Schedule(HOUR))) for name in ("a.refused", "b.free")]
    await publish(conn, kinds, worker="a worker")
    await make_due(conn, HOUR * 2, "a.refused")
    await make_due(conn, kind="b.free")

    assert len(await enqueue_due(conn)) == 1

    view = await read.get_periodic(conn, "a.refused")
    assert "no such jobs here" in str(view.last_error)
    assert view.next_due_at > datetime.now(UTC)


async def test_due_time_waits_for_the_end_of_an_error_that_concerns_every_job(conn: Conn) -> None:
    await declare(conn)
    due_at = await make_due(conn)
    await conn.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE insufficient_privilege; END $$;"
        " CREATE TRIGGER refuse BEFORE INSERT ON holdfast.jobs FOR EACH ROW EXECUTE FUNCTION refuse()"
    )

    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await enqueue_due(conn)

    assert (await read.get_periodic(conn, KIND)).next_due_at == due_at
    await conn.execute("DROP TRIGGER refuse ON holdfast.jobs")
    assert len(await enqueue_due(conn)) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Workers learn of it
# ---------------------------------------------------------------------------------------------------------------------


async def test_heartbeat_returns_the_next_due_time(conn: Conn) -> None:
    claim = await hold(conn)
    await declare(conn)

    beat = await renew(conn, claim.worker_id, [claim], lease=HOUR)

    assert beat.next_due is not None
    assert timedelta(0) < beat.next_due <= HOUR


async def test_promote_enqueues_periodic_jobs(conn: Conn) -> None:
    await declare(conn)
    await make_due(conn)

    promoted = await promote_all_due(conn)

    assert promoted.jobs == 1
    assert promoted.next_due is not None
    assert promoted.next_due > timedelta(0)


# ---------------------------------------------------------------------------------------------------------------------
# Due times that were missed
# ---------------------------------------------------------------------------------------------------------------------

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOURLY = Schedule(HOUR)


@pytest.mark.parametrize(
    ("catch_up", "late", "times", "missed"),
    [
        ("last", timedelta(0), [NOON], 0),
        ("last", HOUR * 2.5, [NOON + HOUR * 2], 2),
        ("skip", LATE, [NOON], 0),
        ("skip", LATE + timedelta(seconds=1), [], 1),
        ("skip", HOUR * 2 + LATE, [NOON + HOUR * 2], 2),
        ("skip", HOUR * 2.5, [], 3),
        ("all", HOUR * 2.5, [NOON, NOON + HOUR, NOON + HOUR * 2], 0),
    ],
)
def test_catch_up_decides_about_missed_due_times(catch_up: Any, late: timedelta, times: list[datetime], missed: int) -> None:
    due = due_times(HOURLY, catch_up, NOON, NOON + late)

    assert due.times == times
    assert due.missed == missed
    assert due.next_due_at == NOON + HOUR * (late // HOUR + 1)


def test_catch_up_of_all_is_bounded() -> None:
    due = due_times(HOURLY, "all", NOON, NOON + HOUR * 500)

    assert len(due.times) == MOST_CAUGHT_UP
    assert due.times[-1] == NOON + HOUR * 500
    assert due.missed == 501 - MOST_CAUGHT_UP


async def test_all_missed_due_times_are_enqueued_in_order(conn: Conn) -> None:
    await declare(conn, catch_up="all", gives_due_at=True)
    due_at = await make_due(conn, HOUR * 2)

    assert len(await enqueue_due(conn)) == 3

    assert [one["due_at"] for one in await jobs_of(conn)] == [(due_at + HOUR * n).astimezone(UTC).isoformat() for n in range(3)]


async def test_a_daily_cron_follows_the_time_zone_through_a_clock_change(conn: Conn) -> None:
    """02:30 does not exist on 29 March 2026 in Zurich: it is due at the end of the gap, and once."""
    zurich = Schedule(cron="30 2 * * *", timezone="Europe/Zurich", catch_up="all")
    first = datetime(2026, 3, 28, 1, 30, tzinfo=UTC)

    due = due_times(zurich, "all", first, datetime(2026, 3, 30, 1, tzinfo=UTC))

    assert due.times == [first, datetime(2026, 3, 29, 1, 0, tzinfo=UTC), datetime(2026, 3, 30, 0, 30, tzinfo=UTC)]


# ---------------------------------------------------------------------------------------------------------------------
# Declarations come, change and go
# ---------------------------------------------------------------------------------------------------------------------


async def test_republishing_the_same_declaration_changes_nothing(conn: Conn) -> None:
    await declare(conn, payload={"a": 1})
    before = await rows(conn, "SELECT p.*, p.xmin::text FROM holdfast.periodic_jobs p")

    await declare(conn, payload={"a": 1})

    assert await rows(conn, "SELECT p.*, p.xmin::text FROM holdfast.periodic_jobs p") == before


async def test_new_timetable_resets_the_due_time_and_new_arguments_do_not(conn: Conn) -> None:
    await declare(conn)
    due_at = await make_due(conn)

    await declare(conn, payload={"a": 1})
    assert (await read.get_periodic(conn, KIND)).next_due_at == due_at

    await declare(conn, every=DAY)
    assert (await read.get_periodic(conn, KIND)).next_due_at > due_at + HOUR * 23


async def test_schedule_is_disabled_when_its_kind_no_longer_declares_it(conn: Conn) -> None:
    await declare(conn)
    await make_due(conn)

    await declare(conn, every=None)

    assert await enqueue_due(conn) == []
    assert (await read.get_periodic(conn, KIND)).status == "disabled"
    with pytest.raises(Refused, match="declares no schedule"):
        await steer.run_now(conn, KIND, actor="me")

    await declare(conn)
    assert (await read.get_periodic(conn, KIND)).status == "no worker"
    assert await enqueue_due(conn) == [], "what was due while it was disabled is not enqueued"


async def test_worker_without_the_kind_keeps_the_schedule(conn: Conn) -> None:
    await declare(conn)

    await declare(conn, "other.kind", every=None)

    assert (await read.get_periodic(conn, KIND)).disabled_at is None


async def test_a_schedule_is_pruned_with_its_kind(conn: Conn) -> None:
    await declare(conn)

    await prune_kinds(conn)
    assert len(await read.list_periodic(conn)) == 1

    await conn.execute("UPDATE holdfast.kinds SET published_at = published_at - interval '200 days'")
    await prune_kinds(conn)
    assert await read.list_periodic(conn) == []


# ---------------------------------------------------------------------------------------------------------------------
# Operators
# ---------------------------------------------------------------------------------------------------------------------


async def test_paused_schedule_enqueues_nothing_and_resumes_with_the_next_due_time(conn: Conn) -> None:
    await declare(conn, catch_up="all")
    await make_due(conn, HOUR * 2)
    await steer.pause(conn, KIND, actor="me", reason="a holiday")

    assert await enqueue_due(conn) == []
    view = await read.get_periodic(conn, KIND)
    assert (view.status, view.paused_by, view.next_runs()) == ("paused", "me", [])

    assert await steer.resume(conn, KIND) is True
    assert await enqueue_due(conn) == []
    assert await steer.resume(conn, KIND) is False


async def test_drained_kind_catches_up_after_resume(conn: Conn) -> None:
    await declare(conn)
    await make_due(conn)
    await control.drain(conn, KIND, actor="me")

    assert await enqueue_due(conn) == []
    with pytest.raises(Draining):
        await steer.run_now(conn, KIND, actor="me")

    await control.resume(conn, KIND)
    assert len(await enqueue_due(conn)) == 1


async def test_run_now_enqueues_a_job_and_keeps_the_due_time(conn: Conn) -> None:
    await declare(conn, gives_due_at=True)
    before = (await read.get_periodic(conn, KIND)).next_due_at
    await steer.pause(conn, KIND, actor="me")

    run = await steer.run_now(conn, KIND, actor="me", reason="a test")
    twice = await steer.run_now(conn, KIND, actor="me")

    assert run.job_id != twice.job_id
    assert await state_of(conn, run.job_id) == "pending"
    view = await read.get_periodic(conn, KIND)
    assert (view.next_due_at, view.last_job_id) == (before, twice.job_id)


async def test_runs_are_listed_newest_first_with_their_due_times(conn: Conn) -> None:
    await declare(conn)
    due_at = await make_due(conn)
    (first,) = await enqueue_due(conn)
    second = (await steer.run_now(conn, KIND, actor="me")).job_id

    runs = await read.list_runs(conn, KIND)

    assert [(run.job_id, run.trigger) for run in runs] == [(second, "manual"), (first, "schedule")]
    assert runs[1].due_at == due_at
    assert [run.job_id for run in await read.list_runs(conn, KIND, before=second)] == [first]


async def test_unknown_schedule_error_lists_the_known_ones(conn: Conn) -> None:
    await declare(conn)

    for act in (steer.pause(conn, "nope", actor="me"), steer.resume(conn, "nope"), steer.run_now(conn, "nope", actor="me")):
        with pytest.raises(NotFound, match=KIND):
            await act
    with pytest.raises(NotFound, match=KIND):
        await read.get_periodic(conn, "nope")


async def test_client_has_all_schedule_operations(conn: Conn, database: str) -> None:
    await declare(conn)

    async with connect_client(database) as client:
        run = await client.periodic.run(KIND, actor="me")
        await client.periodic.pause(KIND, actor="me")
        assert [one.status for one in await client.periodic.list()] == ["paused"]
        assert await client.periodic.resume(KIND)
        view = await client.periodic.get(KIND)
        assert [one.job_id for one in await client.periodic.runs(KIND)] == [run.job_id]

    assert view.last_state == "pending"
    assert len(view.next_runs()) == 5


def test_keys_sort_by_due_time() -> None:
    assert key_of(NOON) < key_of(NOON + timedelta(microseconds=1)) < key_of(NOON + DAY)
    assert key_of(NOON) == key_of(NOON.astimezone())
