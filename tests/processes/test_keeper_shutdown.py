"""SIGTERM and SIGINT: claiming stops at once, running jobs get their grace, and the database is tidy in time afterwards,
whatever the executors are doing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psycopg
import pytest
from keepers import INT, PATIENCE, STOP, TERM, Kept, Start, is_alive, moves, row, start_is_written, state, until
from proof.proxy import Proxy

from holdfast.jobs.enqueue import enqueue_sync
from holdfast.jobs.model import NewJob
from holdfast.worker.keeper.keeper import RELEASE_TIMEOUT
from programs import KEEPER_TIMEOUT

pytestmark = pytest.mark.processes
Conn = psycopg.Connection[Any]
PATIENT = {KEEPER_TIMEOUT: str(PATIENCE)}


def runs(start: Start, db: Conn, kind: str, *arguments: str, grace: float = 0.3, **payload: Any) -> tuple[int, Kept, int]:
    """A job of this kind, running under a keeper: the job, the keeper, the executor's pid."""
    job = enqueue_sync(db, NewJob(kind, payload=payload)).id
    keeper = start(*arguments, HOLDFAST_GRACE_SECONDS=str(grace), **PATIENT)
    executor = keeper.executor()
    keeper.has_begun()
    return job, keeper, executor


def nobody_is_left(executor: int, db: Conn) -> bool:
    """No process, no held job, no living lease."""
    held = db.execute("SELECT id FROM holdfast.jobs WHERE worker_id IS NOT NULL").fetchall()
    leases = db.execute("SELECT id, stopped_at FROM holdfast.workers WHERE lease_until > clock_timestamp()").fetchall()
    assert (held, leases) == ([], [])
    return not is_alive(executor)


@pytest.mark.parametrize("number", [TERM, INT])
def test_f_15_idle_worker_exits_with_0_and_leaves_no_row(start: Start, db: Conn, number: int):
    """K-68: SIGTERM and SIGINT."""
    keeper = start("--executors", "2")
    keeper.hears("worker_started", times=2)
    executors = [line["pid"] for line in keeper.events("executor_ready")]

    keeper.signal(number)

    assert keeper.wait() == 0
    assert all(nobody_is_left(executor, db) for executor in executors)


def test_f_15_unfinished_job_is_released_without_using_an_attempt(start: Start, db: Conn):
    """K-69: the grace is kept."""
    job, keeper, executor = runs(start, db, "endless")

    keeper.signal(TERM)

    assert keeper.wait() == 0
    assert row(db, job) == ("pending", 1, 0, 0)
    assert moves(db, job) == [("release", "shutdown")]
    assert nobody_is_left(executor, db)


@pytest.mark.parametrize("kind", ["until_told", "snoozes_when_told"])
def test_k_66_job_that_ends_within_the_grace_completes(start: Start, db: Conn, kind: str):
    """K-66, K-67: a handler that looks at `ctx.stopping` comes to its end early; the keeper does nothing more."""
    job, keeper, executor = runs(start, db, kind, grace=300)

    keeper.signal(TERM)

    assert keeper.wait() == 0
    expected = {"until_told": ("complete", None), "snoozes_when_told": ("snooze", "the rest another time")}
    first, *others = moves(db, job)
    assert first == expected[kind]
    assert set(others) <= {("release", "shutdown")}  # by a claim that was on its way when the signal came
    assert keeper.events("executor_cut_off") == keeper.events("jobs_given_back") == []
    assert nobody_is_left(executor, db)


def test_nothing_is_claimed_after_the_signal(start: Start, db: Conn):
    _, keeper, _ = runs(start, db, "endless", grace=300)
    keeper.signal(TERM)
    keeper.hears("worker_stopping")

    late = enqueue_sync(db, NewJob("quick")).id

    beats: set[object] = set()
    while len(beats) < 4:  # it lives and beats on, and each beat would have been an occasion to claim
        beats.add(db.execute("SELECT beat_at FROM holdfast.workers").fetchall()[0])
    assert state(db, late) == "pending"
    assert set(moves(db, late)) <= {("release", "shutdown")}  # by a claim that was on its way when the signal came
    keeper.signal(TERM)


def test_k_65_job_blocked_in_native_code_is_released_in_time(start: Start, db: Conn):
    """K-65: the main thread of its process is blocked for 1000 s and holds the GIL; the keeper gives its job back.

    It gives itself 2 s for that, and here as long as it takes: that is measured by `proof/recovery.py` (`release_sigterm_s`).
    """
    job, keeper, executor = runs(start, db, "native", seconds=1000)

    keeper.signal(TERM)

    assert keeper.wait() == 0
    assert RELEASE_TIMEOUT == 2.0
    assert keeper.events("keeper_gave_up") == []
    assert row(db, job) == ("pending", 1, 0, 0)
    assert moves(db, job) == [("release", "shutdown")]
    assert keeper.events("jobs_given_back")[0]["released"] == [job]
    assert nobody_is_left(executor, db)


def test_k_65_stopped_executor_is_killed_and_its_job_released(start: Start, db: Conn):
    job, keeper, executor = runs(start, db, "endless")
    os.kill(executor, STOP)

    keeper.signal(TERM)

    assert keeper.wait() == 0
    assert moves(db, job) == [("release", "shutdown")]
    assert nobody_is_left(executor, db)


@pytest.mark.parametrize("kind", ["native_fails", "endless_fails"])
def test_t_06_fail_on_shutdown_fails_the_job_and_sets_the_exit_code(start: Start, db: Conn, kind: str):
    """T-06, K-65, K-67: `Worker received SIGTERM`, unlocked and never retried, whether its process is blocked or not."""
    payload = {"seconds": 1000} if kind == "native_fails" else {}
    job, keeper, executor = runs(start, db, kind, **payload)

    keeper.signal(TERM)

    assert keeper.wait() == 1
    assert row(db, job) == ("failed", 1, 1, 0)
    assert moves(db, job) == [("fail", "Worker received SIGTERM")]
    assert nobody_is_left(executor, db)


def test_k_64_checkpoint_ends_a_job_that_fails_on_shutdown(start: Start, db: Conn):
    """K-64: at once, and not at the end of the grace."""
    job, keeper, _ = runs(start, db, "action_by_action", grace=300)

    keeper.signal(TERM)

    assert keeper.wait() == 1
    assert moves(db, job) == [("fail", "Worker received SIGTERM")]


def test_unstarted_jobs_are_released_even_with_fail_on_shutdown(start: Start, db: Conn):
    jobs = [enqueue_sync(db, NewJob("native_fails", payload={"seconds": 1000})).id for _ in range(3)]
    keeper = start("--concurrency", "3", HOLDFAST_GRACE_SECONDS="0.1", **PATIENT)
    until(lambda: {state(db, job) for job in jobs} == {"running"})
    keeper.has_begun()
    keeper.executor()

    keeper.signal(TERM)

    assert keeper.wait() == 1
    assert sorted(state(db, job) for job in jobs) == ["failed", "pending", "pending"]


def test_second_signal_ends_everything_immediately(start: Start, db: Conn):
    job, keeper, executor = runs(start, db, "native", grace=300, seconds=1000)
    keeper.signal(TERM)
    keeper.hears("keeper_stopping")

    keeper.signal(INT)

    assert keeper.wait() == 128 + INT
    assert moves(db, job) == [("release", "shutdown")]
    assert nobody_is_left(executor, db)


def test_f_21_unresponsive_database_does_not_delay_the_exit(start: Start, db: Conn, database: str):
    """K-69: the keeper gives up after the time that it gives itself, and ends; its lease gives the job to others."""
    proxy = Proxy(database)
    job = enqueue_sync(db, NewJob("native", payload={"seconds": 1000})).id
    keeper = start(url=proxy.url, HOLDFAST_GRACE_SECONDS="0.3", HOLDFAST_LEASE_SECONDS="3")
    executor = keeper.executor()
    keeper.has_begun()
    proxy.swallow()

    keeper.signal(TERM)

    assert keeper.wait() == 1
    assert keeper.events("keeper_gave_up")
    until(lambda: not is_alive(executor))
    assert state(db, job) == "running"
    start("--kinds", "quick")
    until(lambda: state(db, job) == "pending")
    proxy.close()


@pytest.mark.parametrize("when", ["keeper_started", "executor_ready"])
def test_signal_during_the_start_ends_the_start(start: Start, db: Conn, tmp_path: Path, when: str):
    (tmp_path / "slow_to_import.py").write_text("import time; time.sleep(1000 if __debug__ else 0)")
    module = "slow_to_import" if when == "keeper_started" else "their_jobs"
    keeper = start(module=module)
    keeper.hears(when)

    keeper.signal(TERM)

    assert keeper.wait() in (0, -TERM)  # a signal that comes before anybody listens ends the process as it always did
    assert db.execute("SELECT count(*) FROM holdfast.jobs WHERE worker_id IS NOT NULL").fetchone() == (0,)


def test_grace_fits_into_the_kubernetes_period(start: Start, db: Conn):
    """K-69: told the pod's `terminationGracePeriodSeconds`, a worker keeps 5 s of it for the end."""
    _, keeper, _ = runs(start, db, "until_told")
    keeper.signal(TERM)
    keeper.wait()
    other = start(HOLDFAST_TERMINATION_GRACE_SECONDS="300")
    other.executor()
    other.signal(TERM)
    other.wait()

    assert other.events("keeper_stopping")[0]["grace_s"] == 295


def test_jobs_of_a_keeper_that_dies_during_shutdown_are_rescued(start: Start, db: Conn):
    job = enqueue_sync(db, NewJob("native", payload={"seconds": 1000})).id
    crash = {"HOLDFAST_CRASH_KEEPER_AT": "keeper.before_release"}
    keeper = start(HOLDFAST_GRACE_SECONDS="0.1", HOLDFAST_LEASE_SECONDS="2", **crash, **PATIENT)
    executor = keeper.executor()
    until(lambda: start_is_written(db, job))

    keeper.signal(TERM)

    assert keeper.wait() == -9
    until(lambda: not is_alive(executor))
    start("--kinds", "quick")
    until(lambda: state(db, job) == "pending")
    assert moves(db, job) == [("rescue", "its worker went silent")]
