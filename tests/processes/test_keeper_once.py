"""`--once` for a pod per job, `--drain` until there is nothing left."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from keepers import SESSIONS, TERM, Start, moves, row, start_is_written, state, until

from holdfast.jobs.enqueue import enqueue_sync
from holdfast.jobs.model import NewJob

pytestmark = pytest.mark.processes
Conn = psycopg.Connection[Any]


def test_f_70_surplus_worker_finds_nothing_and_exits_with_0(start: Start):
    """K-67: exit code 0; nothing was claimed."""
    keeper = start("--once")

    assert keeper.wait() == 0
    assert keeper.events("no_work")
    assert keeper.events("keeper_stopped")[0]["taken"] == 0


def test_k_67_once_runs_one_job_and_exits_with_0(start: Start, db: Conn):
    """K-67: exit code 0."""
    jobs = [enqueue_sync(db, NewJob("quick")).id for _ in range(3)]

    assert start("--once").wait() == 0

    assert [state(db, job) for job in jobs] == ["completed", "pending", "pending"]


def test_once_leaves_the_next_step_of_a_chain_to_the_next_worker(start: Start, db: Conn):
    job = enqueue_sync(db, NewJob("two_steps")).id

    assert start("--once").wait() == 0

    assert state(db, job) == "completed"
    assert db.execute("SELECT kind, state FROM holdfast.jobs WHERE id <> %s", [job]).fetchall() == [("quick", "pending")]


@pytest.mark.parametrize(("kind", "after"), [("raises", "failed"), ("raises_once", "pending")])
def test_k_67_once_exits_with_1_when_the_attempt_failed(start: Start, db: Conn, kind: str, after: str):
    """K-67: exit code 1."""
    job = enqueue_sync(db, NewJob(kind, max_attempts=1 if kind == "raises" else 3)).id

    assert start("--once").wait() == 1

    assert state(db, job) == after


def test_once_exits_with_1_when_the_job_kills_its_process(start: Start, db: Conn):
    job = enqueue_sync(db, NewJob("dies_once", payload={"how": "segfault"})).id

    assert start("--once").wait() == 1

    assert row(db, job) == ("pending", 1, 0, 1)
    assert moves(db, job) == [("rescue", "its process was killed by SIGSEGV")]


def test_k_67_once_exits_with_1_when_stopped(start: Start, db: Conn):
    """K-67: exit code 1 after SIGTERM; the job is back."""
    job = enqueue_sync(db, NewJob("endless")).id
    keeper = start("--once", HOLDFAST_GRACE_SECONDS="0.1")
    until(lambda: state(db, job) == "running")

    keeper.signal(TERM)

    assert keeper.wait() == 1
    assert moves(db, job) == [("release", "shutdown")]


def test_once_claims_a_due_job_before_promotion(start: Start, db: Conn):
    job = enqueue_sync(db, NewJob("quick")).id
    db.execute("UPDATE holdfast.jobs SET run_after = clock_timestamp() - interval '1 minute' WHERE id = %s", [job])

    assert start("--once").wait() == 0

    assert state(db, job) == "completed"


@pytest.mark.more
def test_once_polls_an_engine_when_there_is_nothing_else(start: Start, db: Conn):
    job = enqueue_sync(db, NewJob("engine")).id
    assert start("--once").wait() == 0
    assert state(db, job) == "submitted"
    db.execute("UPDATE holdfast.jobs SET next_poll_at = clock_timestamp() WHERE id = %s", [job])

    assert start("--once").wait() == 0

    assert state(db, job) == "completed"


def test_once_runs_a_job_of_a_dead_worker(start: Start, db: Conn):
    job = enqueue_sync(db, NewJob("counted", max_crashes=5)).id
    doomed = start(HOLDFAST_CRASH_KEEPER_AT="reap.in_tx", HOLDFAST_CRASH_AT="run.before_start")
    assert doomed.wait() == -9
    until(lambda: db.execute(SESSIONS).fetchall() == [])  # no beat of theirs is on its way any more
    counts = int(start_is_written(db, job))
    db.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp()")

    assert start("--once").wait() == 0

    assert row(db, job) == ("completed", 2, 0, counts)
    assert [move for move, _ in moves(db, job)] == ["rescue", "complete"]


@pytest.mark.more
def test_drain_exits_when_no_job_is_left(start: Start, db: Conn):
    jobs = [enqueue_sync(db, NewJob("quick")).id for _ in range(20)]
    enqueue_sync(db, NewJob("two_steps"))

    assert start("--drain", "--executors", "2").wait() == 0

    assert {state(db, job) for job in jobs} == {"completed"}
    assert db.execute("SELECT DISTINCT state FROM holdfast.jobs").fetchall() == [("completed",)]


def test_only_named_kinds_run(start: Start, db: Conn):
    mine, theirs = enqueue_sync(db, NewJob("quick")).id, enqueue_sync(db, NewJob("counted")).id

    assert start("--drain", "--kinds", "quick").wait() == 0

    assert (state(db, mine), state(db, theirs)) == ("completed", "pending")


def test_once_and_drain_are_mutually_exclusive(start: Start):
    keeper = start("--once", "--drain")

    assert keeper.wait() == 1
    assert "--once runs one job" in keeper.said()
