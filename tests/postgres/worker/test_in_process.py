"""Jobs inside a web application: a real server, real requests, and a worker in the same event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx2
import psycopg
import pytest
import uvicorn
from fastapi import FastAPI, Request

import holdfast
from factories import add, hold, rows, silence, value
from holdfast import Done, SyncContext, Worker, WorkerOptions
from holdfast.jobs.current import current_client
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.model import JobId
from holdfast.jobs.views.read import get_job
from holdfast.worker.kinds import Job, job
from holdfast.worker.poller import PollClock
from holdfast.worker.transports.direct import Direct
from workers import beside, until

CALM = WorkerOptions(beat=timedelta(minutes=5), poll=timedelta(minutes=5), lease=timedelta(hours=1), grace=timedelta(seconds=5))
"""Nobody looks by itself within the time of a test."""
LOOKING = WorkerOptions(beat=timedelta(seconds=0.1), poll=timedelta(seconds=0.2), lease=timedelta(seconds=30))


@pytest.fixture
def unhinted(monkeypatch: pytest.MonkeyPatch) -> None:
    """No hint of the database is ever heard."""

    async def deaf(self: Direct, wake: Callable[[str], None]) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Direct, "listen", deaf)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUN_BACKGROUND_POLLER", "HOLDFAST_RUN_BACKGROUND_POLLER", "HOLDFAST_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What Holdfast logs, line by line."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(str(record.msg))  # type: ignore[method-assign]
    logger = logging.getLogger("holdfast")
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """The application under uvicorn: its requests are tasks that inherit nothing from the one that started it."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="on"))
    running = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(60):
            while not server.started:
                assert not running.done(), "it did not start"
                await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            yield http
    finally:
        server.should_exit = True
        await asyncio.wait_for(running, 60)


async def ended(conn: Any, job_id: int, seconds: float = 60) -> Any:
    async with asyncio.timeout(seconds):
        while (found := await get_job(conn, JobId(job_id))).finished_at is None:
            await asyncio.sleep(0.005)
    return found


@job("in_process.double")
async def double(number: int) -> int:
    return 2 * number


@job("in_process.first")
async def first() -> Done:
    return Done(then=[second.new(), second.using(step="b").new()])


@job("in_process.second")
async def second() -> None: ...


OURS = [double, first, second]


def an_app(lifespan: Any) -> FastAPI:
    app = FastAPI(lifespan=lifespan)

    @app.post("/double/{number}")
    async def enqueue_double(number: int) -> int:
        return (await double.enqueue(number=number)).id

    @app.get("/jobs/{job_id}")
    async def look(job_id: int, request: Request) -> str:
        return str((await request.app.state.holdfast.get(job_id)).state)

    return app


# ---------------------------------------------------------------------------------------------------------------------
# Coming and going with the application
# ---------------------------------------------------------------------------------------------------------------------


async def test_handler_logs_are_kept_and_route_logs_are_not(database: str, conn: Any) -> None:
    @job("in_process.says")
    def says(ctx: SyncContext) -> None:
        ctx.log.info("whatever the log level of the application is")
        logging.getLogger("theirs").warning("as they like it")

    app = an_app(holdfast.lifespan(database, kinds=[says], options=CALM))

    @app.post("/says")
    async def enqueue_says() -> int:
        logging.getLogger("theirs").warning("this is a request's")
        return (await says.enqueue()).id

    heard = list(logging.getLogger().handlers)
    async with serving(app) as http:
        made = (await http.post("/says")).json()
        await ended(conn, made)

    assert await rows(conn, "SELECT job_id, message FROM holdfast.log_lines ORDER BY line_no") == [
        (made, "whatever the log level of the application is"),
        (made, "as they like it"),
    ]
    assert logging.getLogger().handlers == heard, "the application has its logging for itself again"


@pytest.mark.usefixtures("unhinted")
async def test_route_enqueues_and_the_job_runs_without_a_hint(database: str, conn: Any) -> None:
    """K-47: nobody looks for minutes and no hint arrives; the enqueue itself tells the worker, in memory."""
    async with serving(an_app(holdfast.lifespan(database, kinds=OURS, options=CALM))) as http:
        made = (await http.post("/double/21")).json()
        found = await ended(conn, made)
        assert (await http.get(f"/jobs/{made}")).json() == "completed"

    assert found.result == 42


@pytest.mark.usefixtures("unhinted")
async def test_next_steps_start_without_a_hint(database: str, conn: Any) -> None:
    """K-47: a finish with children tells the worker as an enqueue does. `benchmarks/workloads/chain.py` measures the time."""
    async with serving(an_app(holdfast.lifespan(database, kinds=OURS, options=CALM))):
        made = await current_client().enqueue(first.new())
        await ended(conn, made.id)

        async def followed() -> bool:
            statement = "SELECT count(*) FROM holdfast.jobs WHERE parent_id = %s AND state = 'completed'"
            return bool(await value(conn, statement, made.id) == 2)

        await until(followed)


async def test_worker_starts_and_stops_with_the_application(database: str, conn: Any) -> None:
    """K-52, K-55, K-56: by default, and it says what it is."""
    workers = "SELECT runner, stopped_at IS NULL FROM holdfast.workers"
    async with serving(an_app(holdfast.lifespan(database, kinds=OURS, options=CALM))):

        async def is_there() -> bool:
            return bool(await rows(conn, workers))

        await until(is_there)
        assert await rows(conn, workers) == [("in process", True)]

    assert await rows(conn, workers) == [("in process", False)]
    with pytest.raises(holdfast.HoldfastError, match="no database to enqueue into"):
        current_client()


@pytest.mark.parametrize("name", ["RUN_BACKGROUND_POLLER", "HOLDFAST_RUN_BACKGROUND_POLLER"])
async def test_disabled_background_poller_only_enqueues(
    database: str, conn: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """K-55, G-06: as in the tests of an application."""
    monkeypatch.setenv("HOLDFAST_COMPATIBILITY_NAMES", "true")
    monkeypatch.setenv(name, "false")
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", database)

    async with serving(an_app(holdfast.lifespan(kinds=OURS))) as http:
        made = (await http.post("/double/21")).json()

    assert (await get_job(conn, made)).state == "pending"
    assert await value(conn, "SELECT count(*) FROM holdfast.workers") == 0


async def test_argument_overrides_the_setting(database: str, conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_RUN_BACKGROUND_POLLER", "true")
    async with serving(an_app(holdfast.lifespan(database, kinds=OURS, run=False))):
        pass

    assert await value(conn, "SELECT count(*) FROM holdfast.workers") == 0


async def test_lifespan_can_be_nested(database: str, conn: Any) -> None:
    order: list[str] = []

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[None]:
        order.append("mine")
        async with holdfast.lifespan(database, kinds=OURS, options=CALM)(app):
            order.append("jobs")
            yield
        order.append("end")

    async with serving(an_app(own)) as http:
        await ended(conn, (await http.post("/double/1")).json())

    assert order == ["mine", "jobs", "end"]


async def test_missing_schema_stops_the_start_with_a_message(database: str, conn: Any) -> None:
    await conn.execute("DROP SCHEMA holdfast CASCADE")

    with pytest.raises(holdfast.HoldfastError, match="holdfast db migrate"):
        async with holdfast.lifespan(database, kinds=OURS)(FastAPI()):
            pass


async def test_application_without_kinds_is_reported(database: str) -> None:
    with pytest.raises(holdfast.HoldfastError, match="no kinds to run"):
        async with holdfast.lifespan(database, kinds=[])(FastAPI()):
            pass


async def test_an_application_does_not_start_while_its_database_is_down() -> None:
    with pytest.raises(holdfast.errors.DatabaseProblem, match="cannot connect to u@127.0.0.1:1/none"):
        async with holdfast.lifespan("postgresql://u:p@127.0.0.1:1/none", kinds=OURS)(FastAPI()):
            pass


async def test_failed_worker_is_restarted_and_the_application_continues(
    database: str, conn: Any, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    run, starts = Worker.run, []

    async def fails_once(self: Worker, **arguments: Any) -> None:
        starts.append(self.id)
        if len(starts) == 1:
            raise psycopg.OperationalError("the database is not there yet")
        await run(self, **arguments)

    monkeypatch.setattr(Worker, "run", fails_once)
    async with serving(an_app(holdfast.lifespan(database, kinds=OURS, options=CALM))) as http:
        assert (await ended(conn, (await http.post("/double/2")).json())).state == "completed"

    assert len(set(starts)) == 2, "a new incarnation"
    assert any("runner_failed" in line for line in said)


# ---------------------------------------------------------------------------------------------------------------------
# The safety poller
# ---------------------------------------------------------------------------------------------------------------------


def working(database: str, options: WorkerOptions, kinds: list[Job[..., Any]] = OURS) -> AbstractAsyncContextManager[Worker]:
    return beside(Worker(database, kinds, options))


@pytest.mark.usefixtures("unhinted")
async def test_f_42_poller_finds_all_jobs_after_a_crash(database: str, conn: Any) -> None:
    """F-42, K-48, K-52, E-33: never claimed, claimed by a pod that is gone, delayed; and nobody is told of anything."""
    async with working(database, LOOKING):
        async with conn.transaction():  # or the worker would be the one to claim it
            dead = await hold(conn, second.kind)
            await silence(conn, dead)
        never_claimed = (await enqueue(conn, second.new(), hint=False)).id
        delayed = await add(conn, second.kind, run_after=timedelta(seconds=0.3))

        for job_id in (dead.id, never_claimed, delayed):
            assert (await ended(conn, job_id)).state == "completed"


@pytest.mark.more
async def test_ten_idle_workers_poll_less_than_once_a_second(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """K-58: every statement that they execute is counted, on a clock that runs fifty times as fast."""
    asked: list[str] = []
    execute = psycopg.AsyncCursor.execute

    async def counting(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(" ".join(str(query).split()[:2]))
        return await execute(self, query, *arguments, **options)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", counting)
    quick = WorkerOptions(concurrency=2, beat=timedelta(seconds=0.1), poll=timedelta(seconds=0.2), lease=timedelta(seconds=6))
    workers = [Worker(database, OURS, quick) for _ in range(10)]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    async with asyncio.timeout(60):
        while len(asked) < 50 or set(asked[-50:]) - {"WITH beat", "WITH picked"}:  # past all that a start costs
            await asyncio.sleep(0.05)
        begun, before = time.monotonic(), len(asked)
        while len(asked) < before + 100:
            await asyncio.sleep(0.05)
        looks, elapsed = len(asked) - before, time.monotonic() - begun
    for worker in workers:
        worker.stop()
    await asyncio.gather(*running)

    intervals = elapsed / 0.2
    assert looks <= 10 * (intervals + 1), f"{looks} statements of ten workers in {intervals:.0f} intervals of ten seconds"


async def test_worker_with_a_job_sends_heartbeats_more_often_than_it_polls(database: str, conn: Any) -> None:
    """Its lease needs it, and so does whoever wants the job to stop."""
    go = asyncio.Event()

    async def holds() -> None:
        await go.wait()

    kind = job("in_process.holds")(holds)
    options = WorkerOptions(beat=timedelta(seconds=0.1), poll=timedelta(seconds=20), lease=timedelta(seconds=60))
    async with working(database, options, [kind]):
        made = await enqueue(conn, kind.new())
        beats: set[Any] = set()

        async def beat_thrice() -> bool:
            beats.add(await value(conn, "SELECT max(beat_at) FROM holdfast.workers"))
            return len(beats) > 3

        await until(beat_thrice)
        go.set()
        await ended(conn, made.id)


async def test_heartbeat_returns_the_next_lease_end_of_other_workers(conn: Any, database: str) -> None:
    from holdfast.jobs.renew import renew

    claim = await hold(conn)
    await conn.execute(
        "UPDATE holdfast.workers SET lease_until = clock_timestamp() + interval '70 s' WHERE id = %s", [claim.worker_id]
    )
    other = await hold(conn)

    seen = await renew(conn, other.worker_id, [other], lease=timedelta(minutes=5))

    assert seen.next_expiry is not None
    assert timedelta(seconds=0) < seen.next_expiry <= timedelta(seconds=70)
    assert PollClock.of(timedelta(seconds=5), None, timedelta(minutes=5)).next_poll(0.0, seen.next_expiry) < 71


# ---------------------------------------------------------------------------------------------------------------------
# A blocked loop
# ---------------------------------------------------------------------------------------------------------------------


async def test_f_18_blocked_event_loop_is_logged_with_its_kind(database: str, conn: Any, said: list[str]) -> None:
    """F-18, E-41: seen from the heartbeat's thread while it lasts."""

    def reported() -> list[str]:
        return [line for line in said if "loop_blocked" in line and "in_process.blocks" in line]

    async def blocks() -> None:
        deadline = time.monotonic() + 30
        while not reported() and time.monotonic() < deadline:
            time.sleep(0.01)  # noqa: ASYNC251 - that is what it is for

    kind = job("in_process.blocks")(blocks)
    async with working(database, LOOKING, [kind]) as worker:
        made = await enqueue(conn, kind.new())
        assert (await ended(conn, made.id)).attempt_no == 1, "and its lease was kept"
        assert worker.loop_lag >= 0.0

    assert reported()
    assert "blocks (" in reported()[0], "where it is"
