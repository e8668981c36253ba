"""`holdfast worker run` as a process: signals, a real SIGKILL at a crash point, and clear words for wrong arguments."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Worker
from holdfast.jobs.cancel import cancel
from holdfast.jobs.enqueue import enqueue_sync
from holdfast.jobs.model import JobId, NewJob
from holdfast.jobs.rescue import rescue

pytestmark = pytest.mark.processes

JOBS = """
import asyncio
import pathlib
import holdfast

@holdfast.job("quick")
async def quick() -> None: ...

@holdfast.job("endless")
async def endless() -> None:
    await asyncio.Event().wait()

@holdfast.job("slow")
async def slow(may_end: str) -> str:
    while not pathlib.Path(may_end).exists():
        await asyncio.sleep(0.02)
    return "too late"

@holdfast.job("counted", max_crashes=5)
async def counted(ctx: holdfast.Context) -> int:
    return ctx.job.attempt_no
"""

OTHERS = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'holdfast' AND pid <> pg_backend_pid()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, database: str) -> Iterator[Start]:
    """Starts workers on the test's own database; whatever is left of them is killed afterwards."""
    (tmp_path / "their_jobs.py").write_text(JOBS)
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str, module: str = "their_jobs", **environment: str) -> subprocess.Popen[str]:
        settings = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        path = os.pathsep.join([str(tmp_path), settings.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "worker", "run", "--import", module, "--dsn", database, *arguments],
            env={**settings, "PYTHONPATH": path, "HOLDFAST_BEAT_SECONDS": "0.2", **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def until(reached: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def state_of(conn: psycopg.Connection[Any], job_id: int) -> Any:
    return conn.execute("SELECT state, attempt_no, errors, crashes FROM holdfast.jobs WHERE id = %s", [job_id]).fetchone()


@pytest.mark.more
def test_sigterm_releases_running_jobs_and_exits_with_0(start: Start, database: str):
    """K-68: the signal ends the loop; K-69: the grace is kept; the job is released without burning an attempt."""
    with psycopg.connect(database, autocommit=True) as conn:
        made = enqueue_sync(conn, NewJob("endless"))
        worker = start(HOLDFAST_GRACE_SECONDS="0.1")
        until(lambda: state_of(conn, made.id)[0] == "running")

        worker.send_signal(signal.SIGTERM)

        assert worker.wait(60) == 0
        assert state_of(conn, made.id) == ("pending", 1, 0, 0)


@pytest.mark.more
def test_drain_exits_when_no_job_is_left(start: Start, database: str):
    with psycopg.connect(database, autocommit=True) as conn:
        made = [enqueue_sync(conn, NewJob("quick")) for _ in range(20)]

        assert start("--drain").wait(60) == 0

        assert {state_of(conn, job.id)[0] for job in made} == {"completed"}


@pytest.mark.more
def test_missing_module_is_named(start: Start):
    worker = start(module="not_there")

    assert worker.wait(60) == 1
    assert worker.stderr is not None
    said = worker.stderr.read()
    assert "cannot import not_there" in said
    assert "Traceback" not in said


@pytest.mark.more
def test_replaced_attempt_is_refused_and_its_worker_exits_with_0(start: Start, database: str, tmp_path: Path):
    """K-18: its write matches no row and changes nothing, a line of the log says so, and the process exits with 0."""
    with psycopg.connect(database, autocommit=True) as conn:
        made = enqueue_sync(conn, NewJob("slow", {"may_end": str(tmp_path / "now")}))
        worker = start("--log-format", "json")
        until(lambda: state_of(conn, made.id)[0] == "running")
        attempt = conn.execute("SELECT attempt_id::text FROM holdfast.jobs").fetchone()
        asyncio.run(_cancel_by_force(database, made.id))
        before = conn.execute("SELECT j::text FROM holdfast.jobs j").fetchall()

        (tmp_path / "now").touch()
        worker.send_signal(signal.SIGTERM)
        _, logged = worker.communicate(timeout=60)

        assert worker.returncode == 0
        events = [json.loads(line) for line in logged.splitlines() if line.startswith("{")]
        refused = [event for event in events if event["event"] == "writeback_stale_attempt"]
        assert {(event["job_id"], event["attempt_id"]) for event in refused} == {(made.id, *(attempt or ()))}
        operations = [event["operation"] for event in refused]  # a beat may have come between the cancel and the end
        assert len(operations) == len(set(operations))
        assert conn.execute("SELECT j::text FROM holdfast.jobs j").fetchall() == before


async def _cancel_by_force(database: str, job_id: int) -> None:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn:
        await cancel(conn, JobId(job_id), actor="ada", force=True)


@pytest.mark.more
def test_claim_has_the_configured_lease_and_the_job_is_hidden_meanwhile(start: Start, database: str):
    """K-20: 1800 s of document 001; killed, it is nobody else's until the lease is over by the database's clock."""
    left = "SELECT extract(epoch FROM lease_until - beat_at) FROM holdfast.workers"
    with psycopg.connect(database, autocommit=True) as conn:
        made = enqueue_sync(conn, NewJob("endless"))
        doomed = start(HOLDFAST_LEASE_SECONDS="1800")
        until(lambda: conn.execute("SELECT begun_at >= claimed_at FROM holdfast.jobs").fetchone() == (True,))
        until(lambda: round(float((conn.execute(left).fetchone() or (0,))[0])) == 1800)
        doomed.kill()
        doomed.wait()
        until(lambda: conn.execute(OTHERS).fetchall() == [])  # no beat of its executor is on its way any more

        conn.execute("UPDATE holdfast.workers SET lease_until = lease_until - interval '1500 s'")
        assert start("--drain").wait(60) == 0
        assert asyncio.run(_rescue(database)) == []
        assert state_of(conn, made.id) == ("running", 1, 0, 0)

        conn.execute("UPDATE holdfast.workers SET lease_until = lease_until - interval '301 s' WHERE stopped_at IS NULL")
        start()
        until(lambda: state_of(conn, made.id) == ("running", 2, 0, 1))


async def _rescue(database: str) -> list[JobId]:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn:
        return await rescue(conn)


def _names(conn: psycopg.Connection[Any]) -> list[Any]:
    return conn.execute("SELECT name, id FROM holdfast.workers ORDER BY started_at").fetchall()


@pytest.mark.more
def test_worker_is_named_after_its_pod_and_each_start_is_a_new_worker(start: Start, database: str):
    """K-10: HOSTNAME in Kubernetes. For people: what fences is the incarnation (E-34)."""
    with psycopg.connect(database, autocommit=True) as conn:
        for _ in range(2):
            assert start("--drain", HOSTNAME="export-worker-7", HOLDFAST_COMPATIBILITY_NAMES="true").wait(60) == 0
        (first, first_id), (second, second_id) = _names(conn)

        assert (first, second) == ("export-worker-7", "export-worker-7")
        assert first_id != second_id


@pytest.mark.more
def test_worker_without_a_pod_name_is_named_after_its_host(start: Start, database: str):
    """K-10."""
    with psycopg.connect(database, autocommit=True) as conn:
        assert start("--drain", HOSTNAME="", HOLDFAST_COMPATIBILITY_NAMES="true").wait(60) == 0

        assert [name for name, _ in _names(conn)] == [socket.gethostname()]


def test_worker_without_a_host_name_is_named_after_its_process(monkeypatch: pytest.MonkeyPatch):
    """K-10: and the name is found once, whatever happens to the host's afterwards."""
    monkeypatch.setattr(socket, "gethostname", lambda: "")
    worker = Worker("postgresql://nowhere", [])
    monkeypatch.setattr(socket, "gethostname", lambda: "renamed")

    assert worker.info.name == f"worker-{os.getpid()}"
