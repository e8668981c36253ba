"""What a keeper does when an executor dies, is blocked or is stopped, and what becomes of both when the keeper dies."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from keepers import CONTINUE, KILL, SESSIONS, STOP, TERM, Start, is_alive, moves, row, start_is_written, state, until

from holdfast.jobs.enqueue import enqueue_sync
from holdfast.jobs.model import NewJob

pytestmark = pytest.mark.processes
Conn = psycopg.Connection[Any]


def test_f_17_killed_executor_counts_one_crash_and_its_job_runs_again(start: Start, db: Conn):
    """K-70: whichever process runs it next. The lease is an hour and nobody waits for it."""
    job = enqueue_sync(db, NewJob("endless")).id
    keeper = start(HOLDFAST_LEASE_SECONDS="3600")
    victim = keeper.executor()
    keeper.has_begun()

    os.kill(victim, KILL)

    until(lambda: row(db, job)[:2] == ("running", 2))
    assert row(db, job) == ("running", 2, 0, 1)
    assert moves(db, job) == [("rescue", "its process was killed by SIGKILL")]
    assert keeper.hears("executor_died")[0]["cause"] == "SIGKILL"
    assert keeper.executor() != victim


@pytest.mark.parametrize(
    ("how", "cause", "reason"),
    [
        ("segfault", "SIGSEGV", "its process was killed by SIGSEGV"),
        ("exit", "exit 3", "its process ended with exit code 3"),
        ("exit in a task", "exit 4", "its process ended with exit code 4"),
        ("oom", "oom", "its process ended with 137, as after the memory ran out"),
        ("kill", "SIGKILL", "its process was killed by SIGKILL"),
        ("overflow", "SIGSEGV", "its process was killed by SIGSEGV"),
    ],
)
def test_f_17_job_that_kills_its_process_is_released_with_the_cause(start: Start, db: Conn, how: str, cause: str, reason: str):
    job = enqueue_sync(db, NewJob("dies_once", payload={"how": how})).id

    assert start("--drain").wait() == 0

    assert row(db, job) == ("completed", 2, 0, 1)
    assert moves(db, job) == [("rescue", reason), ("complete", None)]
    ((told,),) = db.execute("SELECT detail ->> 'cause' FROM holdfast.history WHERE move = 'rescue'").fetchall()
    assert told == cause


@pytest.mark.parametrize(
    ("then", "ended"),
    [("raises", ("completed", 2, 1, 0)), ("returns", ("completed", 1, 0, 0)), ("exits", ("completed", 2, 0, 1))],
)
def test_f_17_fork_bomb_does_not_affect_other_jobs(
    start: Start, db: Conn, tmp_path: Path, then: str, ended: tuple[str, int, int, int]
):
    """Copies of its executor have its claims and its connections: none of them writes anything, and none is left."""
    note = tmp_path / "pids"
    neighbour = enqueue_sync(db, NewJob("until_told")).id
    bystander = start("--kinds", "until_told")
    bystander.has_begun()
    job = enqueue_sync(db, NewJob("forks", payload={"file": str(note), "then": then})).id
    keeper = start("--kinds", "forks,quick", HOLDFAST_LEASE_SECONDS="3600")

    until(lambda: state(db, job) == "completed")
    after = enqueue_sync(db, NewJob("quick")).id
    until(lambda: state(db, after) == "completed")

    assert row(db, job) == ended
    executors = {line["pid"] for line in keeper.events("executor_ready")}
    copies = {int(pid) for pid in note.read_text().split()} - executors
    assert len(copies) == 31
    until(lambda: not any(is_alive(pid) for pid in copies), "copies were left behind")
    assert len(keeper.events("executor_died")) == (then == "exits")
    assert not any(line.startswith("Traceback") for line in keeper.said().splitlines()), "only the log has tracebacks"
    assert row(db, neighbour) == ("running", 1, 0, 0)
    bystander.signal(TERM)
    assert bystander.wait() == 0


@pytest.mark.more
def test_poll_does_not_hide_that_a_job_beside_it_had_begun(start: Start, db: Conn):
    """There is one lane for jobs, and looks have their own: whoever dies there is noted as well."""
    looked_at = enqueue_sync(db, NewJob("asked_for_ever")).id
    keeper = start("--concurrency", "1")
    until(lambda: row(db, looked_at)[:2] == ("running", 2))

    dead = enqueue_sync(db, NewJob("dies_once", payload={"how": "kill"})).id

    until(lambda: state(db, dead) == "completed")
    assert row(db, dead) == ("completed", 2, 0, 1)
    keeper.signal(TERM)


def test_waiting_jobs_of_a_dead_process_are_not_charged(start: Start, db: Conn):
    job = enqueue_sync(db, NewJob("endless")).id
    keeper = start(HOLDFAST_CRASH_AT="claim.after_commit")

    until(lambda: row(db, job)[:2] == ("running", 2))

    assert row(db, job) == ("running", 2, 0, 0)
    assert keeper.events("executor_died")[0]["cause"] == "SIGKILL"


@pytest.mark.parametrize("point", ["claim.before", "run.before_start", "run.after", "complete.after_commit_before_ack"])
def test_executor_killed_at_a_crash_point_is_replaced_and_the_job_completes(start: Start, db: Conn, point: str):
    """W-01: any crash point is recoverable, by the same keeper."""
    job = enqueue_sync(db, NewJob("counted", max_crashes=5)).id
    keeper = start("--drain", HOLDFAST_CRASH_AT=point)

    assert keeper.wait() == 0

    assert state(db, job) == "completed"
    assert db.execute("SELECT count(*) FROM holdfast.history WHERE move = 'complete'").fetchone() == (1,)


def test_f_18_handler_that_holds_the_gil_beyond_the_lease_keeps_its_job(start: Start, db: Conn):
    """Neither the database nor the handler's own checkpoint finds that the lease has ended."""
    rival = start("--kinds", "quick", HOLDFAST_LEASE_SECONDS="5")
    rival.executor()  # its beats would rescue
    job = enqueue_sync(db, NewJob("native_then_checkpoint", payload={"seconds": 9})).id
    keeper = start("--kinds", "native_then_checkpoint", HOLDFAST_LEASE_SECONDS="5")

    until(lambda: state(db, job) == "completed")

    assert row(db, job) == ("completed", 1, 0, 0)
    assert keeper.hears("executor_blocked")


def test_handler_that_holds_the_gil_from_its_start_has_a_deadline(start: Start, db: Conn):
    """Its executor cannot beat; the keeper writes its start. Beyond its longest time, the job is somebody else's."""
    job = enqueue_sync(db, NewJob("native", payload={"seconds": 1000}, max_runtime=timedelta(hours=1))).id
    start("--kinds", "native", HOLDFAST_LEASE_SECONDS="3600")
    until(lambda: start_is_written(db, job), "no start was written")
    assert db.execute("SELECT deadline_at - begun_at FROM holdfast.jobs").fetchall() == [(timedelta(hours=1),)]

    db.execute("UPDATE holdfast.jobs SET deadline_at = deadline_at - interval '2 hours'")
    start("--kinds", "quick")

    until(lambda: state(db, job) == "pending")
    assert row(db, job) == ("pending", 1, 0, 1)
    assert moves(db, job) == [("rescue", "it ran beyond its longest time")]


@pytest.mark.more
def test_f_19_lease_of_a_stopped_executor_is_not_renewed_and_its_writes_are_refused(start: Start, db: Conn):
    job = enqueue_sync(db, NewJob("until_told")).id
    first = start(HOLDFAST_LEASE_SECONDS="2")
    stopped = first.executor()
    until(lambda: start_is_written(db, job))
    os.kill(stopped, STOP)
    second = start()
    until(lambda: row(db, job)[:2] == ("running", 2))

    os.kill(stopped, CONTINUE)
    first.signal(TERM)

    assert first.wait() == 0
    assert first.events("writeback_stale_attempt") != []
    second.signal(TERM)
    assert second.wait() == 0
    assert row(db, job) == ("completed", 2, 0, 1)
    assert [move for move, _ in moves(db, job)] == ["rescue", "complete"]


def test_f_03_executors_die_with_their_keeper_and_their_jobs_are_rescued(start: Start, db: Conn):
    job = enqueue_sync(db, NewJob("native", payload={"seconds": 1000})).id
    keeper = start(HOLDFAST_LEASE_SECONDS="2")
    executor = keeper.executor()
    until(lambda: start_is_written(db, job))

    keeper.signal(KILL)

    until(lambda: not is_alive(executor), "the executor outlived its keeper")
    other = start("--kinds", "quick")
    until(lambda: state(db, job) == "pending")
    assert moves(db, job) == [("rescue", "its worker went silent")]
    assert other.hears("jobs_rescued")


@pytest.mark.parametrize("point", ["keeper.after_start", "reap.in_tx", "reap.after"])
def test_keeper_killed_at_any_point_leaves_a_recoverable_state(start: Start, db: Conn, point: str):
    job = enqueue_sync(db, NewJob("dies_once", payload={"how": "kill"})).id
    doomed = start(HOLDFAST_CRASH_KEEPER_AT=point, HOLDFAST_LEASE_SECONDS="3600")  # only the keeper rescues
    assert doomed.wait() == -KILL
    until(lambda: db.execute(SESSIONS).fetchall() == [])  # no beat of theirs is on its way any more
    db.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp()")

    start()
    until(lambda: state(db, job) == "completed")

    assert db.execute("SELECT count(*) FROM holdfast.history WHERE move = 'complete'").fetchone() == (1,)


def test_processes_started_by_a_handler_end_with_its_executor(start: Start, db: Conn, tmp_path: Path):
    note = tmp_path / "pid"
    enqueue_sync(db, NewJob("leaves_a_process", payload={"file": str(note)}, max_crashes=1))
    keeper = start()
    executor = keeper.executor()
    until(lambda: note.exists() and note.read_text())

    os.kill(executor, KILL)

    until(lambda: not is_alive(int(note.read_text())), "it was left behind")


def test_executor_that_dies_at_start_is_restarted_with_backoff(start: Start, tmp_path: Path):
    (tmp_path / "deadly.py").write_text("import os; os._exit(9)")
    keeper = start(module="deadly")

    died = keeper.hears("executor_died", times=4)

    keeper.signal(TERM)
    assert keeper.wait() == 0
    assert {line["cause"] for line in died} == {"exit 9"}


@pytest.mark.parametrize(
    ("module", "source", "words"),
    [
        ("not_there", None, "cannot import not_there"),
        ("broken", "1 / 0", "importing broken failed with ZeroDivisionError"),
        ("empty", "", "no kinds in empty"),
    ],
)
def test_executor_that_can_never_start_ends_the_keeper_with_the_reason(
    start: Start, tmp_path: Path, module: str, source: str | None, words: str
):
    if source is not None:
        (tmp_path / f"{module}.py").write_text(source)
    keeper = start(module=module)

    assert keeper.wait() == 1
    assert words in keeper.said()
    assert keeper.events("executor_died") == []


def test_unknown_kind_is_named(start: Start):
    keeper = start("--kinds", "quick,quack")

    assert keeper.wait() == 1
    assert "no kind quack in their_jobs" in keeper.said()


def test_worker_row_has_name_pod_version_and_runner(start: Start, db: Conn):
    """HOLDFAST_HOSTNAME is the name people see; every incarnation has its own id."""
    keeper = start(
        "--executors", "2", "--concurrency", "3", HOLDFAST_HOSTNAME="pod-7", HOLDFAST_POD="pod-7", HOLDFAST_GIT_SHA="abc123"
    )
    keeper.hears("worker_started", times=2)

    rows = db.execute("SELECT name, pod, git_sha, runner, concurrency FROM holdfast.workers").fetchall()

    assert rows == [("pod-7", "pod-7", "abc123", "executor", 3)] * 2
    (line,) = keeper.events("keeper_started")
    assert "password" not in str(line)
    assert "@" in line["database"]


def test_secrets_are_not_in_process_arguments(start: Start, database: str):
    keeper = start()
    secret = psycopg.conninfo.conninfo_to_dict(database)["password"]

    for pid in (keeper.pid, keeper.executor()):
        assert secret not in Path(f"/proc/{pid}/cmdline").read_text()


def test_k_44_keeper_never_imports_user_modules(start: Start, tmp_path: Path):
    """K-44: a handler does not know what dispatches it, and what dispatches it does not load the handler."""
    note = tmp_path / "pids"
    (tmp_path / "tells.py").write_text(
        f"import os, holdfast\nopen({str(note)!r}, 'a').write(f'{{os.getpid()}} ')\nholdfast.job('told')(lambda: None)\n"
    )
    keeper = start(module="tells")

    executor = keeper.executor()

    assert note.read_text().split() == [str(executor)]
