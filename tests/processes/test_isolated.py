"""Isolated handlers: they have all operations, and their crash does not affect other jobs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import isolated_kinds as kinds
import pytest

import programs
from factories import column, job, moves_of, rows, start_worker, take, value
from holdfast import Worker, WorkerOptions
from holdfast import job as kind
from holdfast.errors import UsageError
from holdfast.jobs.cancel import cancel
from holdfast.jobs.control import pause
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.rescue import rescue_worker
from holdfast.jobs.views.explain import explain
from holdfast.telemetry.metrics import stale_writebacks
from holdfast.worker.isolated import parent as isolated
from holdfast.worker.kinds import registered
from programs import Started
from workers import beside, ended, until

pytestmark = pytest.mark.processes

POINTS = ("run.before_start", "run.after", "complete.in_tx_after_update", "publish.in_tx_after")
STEP = 1 if "HOLDFAST_TEST_EVERYTHING" in os.environ else 3  # the first and the last; a child is a new process that imports all
OURS = [made for name, made in registered().items() if name.startswith(("isolated.", "shared."))]
QUICK = WorkerOptions(concurrency=4, beat=timedelta(milliseconds=200), lease=timedelta(seconds=60), grace=timedelta(seconds=5))


STARTED = {"test_handler_runs_in_a_child_process_that_is_reused", "test_sync_handler_can_be_isolated"}


@pytest.fixture(autouse=True)
def children_are_forked(request: pytest.FixtureRequest) -> Iterator[None]:
    """A new interpreter takes a second to import everything: it is enough that two tests start one."""
    with nullcontext() if request.node.originalname in STARTED else programs.forked_children():
        yield


def working(database: str, options: WorkerOptions = QUICK) -> AbstractAsyncContextManager[Worker]:
    return beside(Worker(database, OURS, options))


async def said_in(mark: Path) -> int:
    """The process id that a handler left there, once it has begun."""

    def look() -> str:
        return mark.read_text() if mark.exists() else ""

    async def is_there() -> str:
        return look()

    return int(await until(is_there))


async def is_gone(pid: int) -> None:
    async def gone() -> bool:
        return not _is_running(pid)

    await until(gone)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# ---------------------------------------------------------------------------------------------------------------------
# Like any other handler
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.more
async def test_handler_runs_in_a_child_process_that_is_reused(database: str, conn: Any) -> None:
    first, second = await enqueue(conn, kinds.where.new()), None
    async with working(database):
        here = await ended(conn, first.id)
        second = await enqueue(conn, kinds.where.new())
        there = await ended(conn, second.id)

    assert here.result["parent"] == os.getpid()
    assert here.result["pid"] != os.getpid()
    assert there.result["pid"] == here.result["pid"], "an idle process is used again"
    await is_gone(here.result["pid"])


@pytest.mark.more
async def test_sync_handler_can_be_isolated(database: str, conn: Any) -> None:
    made = await enqueue(conn, kinds.where_plain.new())
    async with working(database):
        found = await ended(conn, made.id)

    assert (found.state, found.progress, found.message) == ("completed", 0.5, "half")
    assert found.result != os.getpid()


async def test_isolated_context_has_all_operations(database: str, conn: Any) -> None:
    await conn.execute("CREATE TABLE published (job_id bigint, note text)")
    made = await enqueue(conn, kinds.everything.new(note="hello"))
    async with working(database):
        found = await ended(conn, made.id)

        async def followed() -> bool:
            return (
                await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE kind = 'isolated.follow' AND state = 'completed'")
                == 2
            )

        await until(followed)

    assert (found.state, found.result, found.message) == ("completed", {"note": "hello"}, "hello")
    assert await rows(conn, "SELECT * FROM published") == [(made.id, "hello")]
    assert await rows(conn, "SELECT kind, handle FROM holdfast.effects") == [("pod", "pod-1")]
    assert sorted(await rows(conn, "SELECT result FROM holdfast.jobs WHERE kind = 'isolated.follow'")) == [
        ("chained",),
        ("from inside",),
    ]


async def test_isolated_errors_are_retried_and_end_like_others(database: str, conn: Any) -> None:
    made = await enqueue(conn, kinds.fails.new())
    async with working(database):
        found = await ended(conn, made.id)

    assert (found.state, found.errors, found.crashes) == ("failed", 2, 0)
    assert await moves_of(conn, made.id) == ["retry", "fail"]


# ---------------------------------------------------------------------------------------------------------------------
# Deaths
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "cause"), [("exit", "exit 3"), ("segfault", "SIGSEGV"), ("sigkill", "SIGKILL"), ("abort", "SIGABRT")]
)
async def test_f_17_handler_that_kills_its_process_is_released_with_the_cause(
    database: str, conn: Any, how: str, cause: str
) -> None:
    """F-17, F-19: no lease has to run out, which would take a minute here."""
    made = await enqueue(conn, kinds.dies.new(how=how))
    async with working(database):
        found = await ended(conn, made.id)

    assert (found.state, found.crashes, found.errors, found.cause) == ("failed", 1, 0, cause)
    assert found.is_quarantined


async def test_job_whose_process_died_is_completed_by_the_next(database: str, conn: Any) -> None:
    made = await enqueue(conn, kinds.dies_once.new())
    async with working(database):
        found = await ended(conn, made.id)

    assert (found.state, found.result, found.crashes) == ("completed", 2, 1)
    assert await column(conn, made.id, "alone") is False, "it was the only one in there"


async def test_death_of_an_idle_child_is_not_charged_to_a_job(database: str, conn: Any) -> None:
    async with working(database):
        pid = (await ended(conn, (await enqueue(conn, kinds.where.new())).id)).result["pid"]
        os.kill(pid, signal.SIGKILL)
        found = await ended(conn, (await enqueue(conn, kinds.where.new())).id)

    assert (found.state, found.attempt_no, found.crashes) == ("completed", 1, 0)


async def test_child_ends_with_its_worker_and_its_job_is_released(database: str, conn: Any, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    made = await enqueue(conn, kinds.deaf.new(mark=str(mark)))
    options = WorkerOptions(concurrency=1, beat=timedelta(milliseconds=200), grace=timedelta(milliseconds=100))
    async with working(database, options):
        pid = await said_in(mark)

    assert not _is_running(pid), "it is gone before its job is anybody else's"
    found = await job(conn, made.id)
    assert (found.state, found.crashes, found.errors) == ("pending", 0, 0)


async def test_processes_started_by_a_handler_end_with_it(database: str, conn: Any, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    made = await enqueue(conn, kinds.starts_another.new(mark=str(mark)))
    async with working(database):
        started = await said_in(mark)
        await cancel(conn, made.id, actor="ada")
        await ended(conn, made.id)

    await is_gone(started)


# ---------------------------------------------------------------------------------------------------------------------
# Stopping what does not listen
# ---------------------------------------------------------------------------------------------------------------------


async def test_cancel_interrupts_an_isolated_async_handler(database: str, conn: Any, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    made = await enqueue(conn, kinds.waits.new(mark=str(mark)))
    async with working(database):
        await said_in(mark)
        await cancel(conn, made.id, actor="ada", reason="wrong year")
        found = await ended(conn, made.id)

    assert (found.state, found.crashes) == ("cancelled", 0)


@pytest.mark.more
async def test_cancel_ends_a_handler_without_checkpoints(database: str, conn: Any, tmp_path: Path) -> None:
    """It is asked, and after a moment its process is killed."""
    mark = tmp_path / "mark"
    made = await enqueue(conn, kinds.deaf.new(mark=str(mark)))
    async with working(database):
        pid = await said_in(mark)
        await cancel(conn, made.id, actor="ada", reason="wrong year")
        found = await ended(conn, made.id)
        await is_gone(pid)

    assert (found.state, found.crashes) == ("cancelled", 0)


async def test_stopped_child_does_not_block_its_worker_and_can_be_cancelled(database: str, conn: Any, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    made = await enqueue(conn, kinds.waits.new(mark=str(mark)))
    async with working(database):
        pid = await said_in(mark)
        os.kill(pid, signal.SIGSTOP)
        assert (await ended(conn, (await enqueue(conn, kinds.innocent.new())).id)).state == "completed"
        await cancel(conn, made.id, actor="ada")
        found = await ended(conn, made.id)
        await is_gone(pid)

    assert found.state == "cancelled"


async def test_f_19_handler_beyond_max_runtime_is_killed(database: str, conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """F-19: it holds the interpreter's lock, so that nothing inside its process could stop it. An error, and no crash."""
    monkeypatch.setattr(isolated, "STOP_TIMEOUT", 1.0)
    made = await enqueue(conn, kinds.overruns.new())
    async with working(database):
        found = await ended(conn, made.id)

    assert "was killed" in found.error
    assert (found.state, found.cause, found.errors, found.crashes) == ("failed", "timeout", 1, 0)


async def test_f_18_handler_that_holds_the_gil_does_not_delay_the_event_loop(database: str, conn: Any, tmp_path: Path) -> None:
    """F-18: others complete while it holds on, and the loop turns all the time."""
    mark = tmp_path / "mark"
    made = await enqueue(conn, kinds.holds_the_gil.new(mark=str(mark), seconds=600))
    async with working(database):
        await said_in(mark)
        others = [await enqueue(conn, kinds.innocent.new()) for _ in range(10)]
        for other in others:
            assert (await ended(conn, other.id)).state == "completed"
        assert (await job(conn, made.id)).state == "running", "all that happened while it held on"
        await cancel(conn, made.id, actor="ada")
        await ended(conn, made.id)


@pytest.mark.more
async def test_lost_attempt_is_ended_and_writes_nothing(database: str, conn: Any, tmp_path: Path) -> None:
    mark, refused = tmp_path / "mark", stale_writebacks.labels("heartbeat")._value.get
    before = refused()
    made = await enqueue(conn, kinds.deaf.new(mark=str(mark)))
    async with working(database) as worker:
        pid = await said_in(mark)
        await pause(conn, kinds.deaf.kind, actor="ada")
        await rescue_worker(conn, worker.id, cause="test", error="taken away", jobs=[made.id])
        await is_gone(pid)

    assert await moves_of(conn, made.id) == ["rescue"]
    assert refused() - before == 1


# ---------------------------------------------------------------------------------------------------------------------
# Alone
# ---------------------------------------------------------------------------------------------------------------------


async def test_job_that_must_run_alone_is_isolated(database: str, conn: Any) -> None:
    made = await enqueue(conn, kinds.innocent.new())
    other = await enqueue(conn, kinds.innocent.new())
    dead = await start_worker(conn)
    await take(conn, made.id, dead)
    await take(conn, other.id, dead)
    await rescue_worker(conn, dead, cause="SIGKILL", error="its process was killed by SIGKILL")

    begun: list[int] = []
    async with working(database) as worker:
        assert worker._environment.isolated is not None
        original = worker._environment.isolated.run

        async def noting(kind: Any, claim: Any, introduce: Any) -> Any:
            begun.append(claim.id)
            return await original(kind, claim, introduce)

        worker._environment.isolated.run = noting  # type: ignore[method-assign]
        assert (await ended(conn, made.id)).state == "completed"
        assert (await ended(conn, other.id)).state == "completed"

    assert sorted(begun) == [made.id, other.id]
    assert "alone in a process because an earlier one died with 1 other" in await explain(conn, made.id)


@pytest.mark.parametrize("max_crashes", [1, pytest.param(3, marks=pytest.mark.more)])
async def test_f_17_crashing_job_is_quarantined_without_affecting_others(
    database: str, conn: Any, tmp_path: Path, max_crashes: int
) -> None:
    """F-17: nobody marked it as dangerous; it kills whole workers, and later only the process that it has for itself."""
    innocent = [await enqueue(conn, replace(kinds.innocent.new(seconds=0.3), max_crashes=max_crashes)) for _ in range(10)]
    poison = await enqueue(conn, replace(kinds.poison.new(), max_crashes=max_crashes))
    innocent += [await enqueue(conn, replace(kinds.innocent.new(seconds=0.3), max_crashes=max_crashes)) for _ in range(10)]

    deaths = await _work_until_all_ended(database, conn, tmp_path)

    found = await job(conn, poison.id)
    assert found.is_quarantined
    assert (found.crashes, found.cause) == (max_crashes, "exit 9")
    assert {(await job(conn, one.id)).state for one in innocent} == {"completed"}
    assert deaths == 0, "an executor died of it, and its keeper lived on; then it had a process of its own"


@contextmanager
def a_worker_process(database: str, folder: Path, **environment: str) -> Iterator[Started]:
    """`holdfast worker run` with our kinds; whatever is left of it is ended afterwards."""
    settings = {
        **{key: text for key, text in os.environ.items() if not key.startswith("HOLDFAST_")},
        "PYTHONPATH": os.pathsep.join([str(Path(kinds.__file__).parent), os.environ.get("PYTHONPATH", "")]),
        "HOLDFAST_BEAT_SECONDS": "0.2",
        **environment,
    }
    command = ("worker", "run", "--import", "isolated_kinds", "--dsn", database)
    with (folder / "worker.log").open("ab") as log:
        process = programs.start(*command, env=settings, folder=folder, out=log, err=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


async def test_child_dies_with_its_worker_at_any_point(database: str, conn: Any, tmp_path: Path) -> None:
    """It holds the interpreter's lock, so that it cannot hear the end of the line: the kernel ends it."""
    mark = tmp_path / "mark"
    await enqueue(conn, kinds.holds_the_gil.new(mark=str(mark), seconds=600))
    with a_worker_process(database, tmp_path):
        child = await said_in(mark)
        os.kill(_parent_of(child), signal.SIGKILL)
        await is_gone(child)


@pytest.mark.parametrize("point", POINTS[::STEP])
async def test_child_killed_at_a_crash_point_is_replaced(database: str, conn: Any, tmp_path: Path, point: str) -> None:
    """A real SIGKILL of the child, wherever it is; the worker lives on, and what was published was published once."""
    await conn.execute("CREATE TABLE published (job_id bigint, note text)")
    made = await enqueue(conn, kinds.publishes.new(note="hello"))
    with a_worker_process(database, tmp_path, HOLDFAST_CRASH_AT=point) as worker:
        found = await ended(conn, made.id)
        assert worker.poll() is None

    assert (found.state, found.crashes) == ("completed", 1)
    assert await moves_of(conn, made.id) == ["rescue", "complete"]
    assert await rows(conn, "SELECT * FROM published") == [(made.id, "hello")]


async def _work_until_all_ended(database: str, conn: Any, folder: Path) -> int:
    """Workers one after the other, as a cluster would start them; how many died."""
    deaths, alive = 0, "SELECT count(*) FROM holdfast.jobs WHERE finished_at IS NULL"
    while await value(conn, alive):
        with a_worker_process(database, folder, HOLDFAST_LEASE_SECONDS="1") as process:

            async def is_over(process: Started = process) -> bool:
                return process.poll() is not None or not await value(conn, alive)

            await until(is_over)
            deaths += process.poll() is not None
    return deaths


def test_function_that_cannot_be_imported_is_refused() -> None:
    async def inner() -> None: ...

    with pytest.raises(UsageError, match="another process cannot import"):
        kind("isolated.inner", run_in="process")(inner)


@pytest.mark.parametrize(("run_in", "is_async"), [("thread", True), ("loop", False), ("pod", True)])
def test_run_in_that_does_not_fit_the_function_is_refused(run_in: str, is_async: bool) -> None:
    async def an_async() -> None: ...

    def a_plain() -> None: ...

    with pytest.raises(UsageError):
        kind("isolated.misplaced", run_in=run_in)(an_async if is_async else a_plain)


async def test_logs_of_an_isolated_process_survive_its_death(database: str, conn: Any) -> None:
    job_id = (await enqueue(conn, kinds.says_and_dies.new())).id
    async with working(database):
        assert (await ended(conn, job_id)).state == "completed"

    found = await rows(conn, "SELECT attempt_no, line_no, message, fields->>'pid' FROM holdfast.log_lines ORDER BY 1, 2")
    assert [line[:3] for line in found] == [(1, 1, "here"), (2, 1, "here")]
    assert str(os.getpid()) not in {pid for *_, pid in found}


async def test_isolated_handler_learns_of_a_shutdown(database, conn, tmp_path: Path):
    mark = tmp_path / "begun"
    made = await enqueue(conn, kinds.watches_for_the_end.new(mark=str(mark)))
    patient = replace(QUICK, grace=timedelta(seconds=60))

    async with working(database, patient):

        async def begun() -> bool:
            return mark.exists()

        await until(begun)

    found = await job(conn, made.id)
    assert (found.state, found.result) == ("completed", "in time")


async def test_isolated_handler_reads_results_of_its_parents(database: str, conn: Any) -> None:
    parents = [(await kinds.where_plain.using(tx=conn).enqueue()).id for _ in range(2)]
    made = await kinds.total.using(tx=conn, after=parents).enqueue()

    async with working(database):
        done = await ended(conn, made.id)

    results = [(await job(conn, parent)).result for parent in parents]
    assert (done.state, done.result) == ("completed", sum(results))
