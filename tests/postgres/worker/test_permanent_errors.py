"""A start, a log line or an end that the database always refuses is not retried forever."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from factories import hold, rows, start_worker, state_of, value
from holdfast import Context, Done, Worker, WorkerOptions
from holdfast.errors import UsageError
from holdfast.jobs.enqueue import enqueue, enqueue_many
from holdfast.jobs.model import Lock, NewJob, WorkerId
from holdfast.worker.job_counts import JobCounts
from holdfast.worker.keeper import keeper as product
from holdfast.worker.keeper.keeper import Keeper
from holdfast.worker.keeper.messages import ExecutorConfig, Mode
from holdfast.worker.kinds import job
from workers import beside, until

OPTIONS = WorkerOptions(concurrency=2, grace=timedelta(seconds=5))
REFUSE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE 'index row size 9000 exceeds the maximum' USING ERRCODE = '54000'; END $$;
    CREATE TRIGGER refuse BEFORE {event} ON holdfast.{table} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION refuse()
"""


async def _ended(conn: Any, count: int) -> bool:
    return bool(await value(conn, "SELECT count(*) = %s FROM holdfast.jobs WHERE state IN ('completed', 'failed')", count))


async def test_child_that_cannot_be_stored_fails_its_parent(database: str, conn: Any) -> None:
    when = "NEW.kind = 'permanent.child' AND NEW.parent_id IS NOT NULL"
    await conn.execute(REFUSE.format(event="INSERT", table="jobs", when=when))

    @job("permanent.parent", max_attempts=1)
    async def parent(ctx: Context) -> Done:
        return Done(then=[NewJob("permanent.child"), NewJob("permanent.child")])

    @job("permanent.chain", max_attempts=1)
    async def chain(ctx: Context) -> Done:
        return Done(then=[NewJob("permanent.child")])

    for kind in (parent, chain):
        await enqueue(conn, kind.new())
    async with beside(Worker(database, [parent, chain], OPTIONS)):
        await until(lambda: _ended(conn, 2))

    for state, errors, error in await rows(conn, "SELECT state, errors, error FROM holdfast.jobs"):
        assert (state, errors) == ("failed", 1)
        assert "exceeds the maximum" in error


async def test_failed_completion_does_not_block_its_batch(database: str, conn: Any) -> None:
    @job("permanent.plain", max_attempts=1)
    async def plain() -> None: ...

    made = await enqueue_many(conn, [plain.new() for _ in range(5)])
    when = f"NEW.move = 'complete' AND NEW.job_id = {made[2].id}"
    await conn.execute(REFUSE.format(event="INSERT", table="history", when=when))
    async with beside(Worker(database, [plain], WorkerOptions(concurrency=5, grace=timedelta(seconds=5)))):
        await until(lambda: _ended(conn, 5))

    failed = await rows(conn, "SELECT id FROM holdfast.jobs WHERE state = 'failed'")
    assert failed == [(made[2].id,)]


async def test_start_that_cannot_be_written_fails_the_attempt(database: str, conn: Any) -> None:
    ran = []

    @job("permanent.suspect", max_attempts=1)
    async def suspect() -> None:
        ran.append(1)

    await enqueue(conn, suspect.new())
    await conn.execute("UPDATE holdfast.jobs SET confirm_start = true")
    await conn.execute(REFUSE.format(event="UPDATE OF begun_at", table="jobs", when="NEW.begun_at IS NOT NULL"))
    async with beside(Worker(database, [suspect], OPTIONS)):
        await until(lambda: _ended(conn, 1))

    ((state, errors, error),) = await rows(conn, "SELECT state, errors, error FROM holdfast.jobs")
    assert (state, errors, ran) == ("failed", 1, [])
    assert "exceeds the maximum" in error


class DeadExecutor:
    """An executor that has exited, or was killed by its keeper."""

    pid, ready_at, database_error, start_error = 1, None, None, None

    def __init__(self, worker_id: WorkerId, counts: JobCounts | None = None) -> None:
        self.id, self.counts, self.was_killed_by_us = worker_id, counts, False
        self.begun: list[int] = []
        self.failing: list[str] = []
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.exited.set_result(-9)


@pytest.mark.parametrize(("mode", "exit_code"), [("drain", 1), ("serve", 0)])
async def test_keeper_does_not_repeat_a_rescue_that_is_refused_for_ever(
    database: str, conn: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, mode: Mode, exit_code: int
) -> None:
    """A keeper that drains ends; before its end the sweeps of one that serves may succeed."""
    claim = await hold(conn)
    await conn.execute(REFUSE.format(event="UPDATE", table="jobs", when="OLD.state = 'running'"))
    keeper = Keeper(ExecutorConfig(database, ("jobs",), mode=mode))
    children: list[Any] = [DeadExecutor(claim.worker_id), DeadExecutor(WorkerId(str(uuid4())), JobCounts())]

    def start() -> Any:
        keeper._children.append(children.pop(0))
        return keeper._children[-1]

    monkeypatch.setattr(keeper, "_start", start)
    monkeypatch.setattr(product, "restart_delay", lambda _: 0.0)
    await asyncio.wait_for(keeper._supervise(1), 30)
    await asyncio.wait_for(asyncio.gather(*keeper._tasks), 30)

    assert [line for line in caplog.messages if "worker_database_lost" in line] == []
    (refused,) = [line for line in caplog.messages if "rescue_failed" in line]
    assert "exceeds the maximum" in refused
    assert claim.worker_id in refused
    assert await value(conn, "SELECT lease_until <= clock_timestamp() FROM holdfast.workers"), "any worker may rescue them"
    assert keeper._exit_code() == exit_code
    await keeper._acts.close()


async def test_stopping_keeper_does_not_repeat_a_release_that_is_refused_for_ever(
    database: str, conn: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease cannot be ended either, and the jobs of the next executor are released all the same."""
    refused, released = [await hold(conn, worker=await start_worker(conn, name)) for name in ("refused", "released")]
    when = f"OLD.state = 'running' AND OLD.id = {refused.id}"
    await conn.execute(REFUSE.format(event="UPDATE", table="jobs", when=when))
    of_worker = "CREATE TRIGGER refuse BEFORE UPDATE ON holdfast.workers FOR EACH ROW WHEN (OLD.name = 'refused')"
    await conn.execute(f"{of_worker} EXECUTE FUNCTION refuse()")
    keeper = Keeper(ExecutorConfig(database, ("jobs",)))
    keeper._stopping.set()

    killed: list[Any] = [DeadExecutor(refused.worker_id), DeadExecutor(released.worker_id)]
    await asyncio.wait_for(keeper._release_jobs(killed), 30)

    assert [await state_of(conn, one.id) for one in (refused, released)] == ["running", "pending"]
    assert len([line for line in caplog.messages if "rescue_failed" in line]) == 1
    assert (keeper.done.given_back, keeper._exit_code()) == (1, 1)
    await keeper._acts.close()


async def test_log_line_that_cannot_be_stored_does_not_keep_others(
    database: str, conn: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await conn.execute(REFUSE.format(event="INSERT", table="log_lines", when="NEW.message = 'refused'"))

    async def is_lost() -> bool:
        return any("job_logs_lost" in message for message in caplog.messages)

    @job("permanent.talks", max_attempts=1)
    async def talks(ctx: Context) -> None:
        ctx.log.info("refused")
        await until(is_lost)
        ctx.log.info("stored")

    made = await enqueue(conn, talks.new())
    async with beside(Worker(database, [talks], OPTIONS)):
        await until(lambda: _ended(conn, 1))

    assert await state_of(conn, made.id) == "completed"
    assert await rows(conn, "SELECT message FROM holdfast.log_lines") == [("stored",)]


@pytest.mark.parametrize("name", ["unique_key", "slot_key", "idempotency_key", "step"])
def test_key_that_is_too_long_for_an_index_is_refused_by_name(name: str) -> None:
    NewJob("k", **{name: "ä" * 750})
    with pytest.raises(UsageError, match=rf"{name} cannot be .* it has 1,502 bytes, the limit is 1,500; use a hash"):
        NewJob("k", **{name: "ä" * 751})
    with pytest.raises(UsageError, match="the key of a lock cannot be .* 2,000 bytes"):
        Lock("😀" * 500)


def _incompressible(size: int) -> str:
    return "".join(chr(0x4E00 + (number * 7919) % 20000) for number in range(size // 3))


@pytest.mark.parametrize("bulk", [False, True], ids=["one", "bulk"])
async def test_values_of_maximum_length_are_accepted(conn: Any, bulk: bool) -> None:
    kind = "".join(chr(0x1F300 + (number * 31) % 700) for number in range(200))
    key = _incompressible(1500)
    await enqueue(conn, NewJob(kind, queue=kind, unique_key=key, idempotency_key=key, slot_key=key, locks=(Lock(key[:500]),)))
    parent = await enqueue(conn, NewJob(kind))
    await enqueue_many(conn, [NewJob(kind, parent_id=parent.id, step=key, queue=kind) for _ in range(60 if bulk else 1)])


@pytest.mark.parametrize("name", ["unique_key", "slot_key", "idempotency_key", "step"])
async def test_database_refuses_longer_values(conn: Any, name: str) -> None:
    also = {"unique_key": ("unique_while", "waiting"), "step": ("parent_id", 1)}.get(name, ("priority", 0))
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        await conn.execute(f"INSERT INTO holdfast.jobs (kind, {name}, {also[0]}) VALUES ('k', %s, %s)", ["a" * 1501, also[1]])
    assert refused.value.diag.constraint_name == "keys_fit_their_index"


def test_queue_name_cannot_be_a_notification_name() -> None:
    for name in ("!", "@"):
        with pytest.raises(UsageError, match="queue cannot be .*: that name is reserved"):
            NewJob("k", queue=name)
    NewJob("k", queue="a")


def test_permits_have_a_database_maximum() -> None:
    Lock("l", most=2**31 - 1)
    with pytest.raises(UsageError, match="must be between 1 and 2147483647"):
        Lock("l", most=2**31)


@pytest.mark.parametrize("count", [1, 60], ids=["one", "bulk"])
async def test_the_shortest_time_limit_can_be_stored(conn: Any, count: int) -> None:
    limits = (timedelta(microseconds=1), timedelta(microseconds=50), timedelta(days=400, microseconds=7))
    for limit in limits:
        await enqueue_many(conn, [NewJob("k", max_runtime=limit) for _ in range(count)])

    assert {found for (found,) in await rows(conn, "SELECT max_runtime FROM holdfast.jobs")} == set(limits)
