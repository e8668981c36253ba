"""`holdfast worker run` as a process: signals, a real SIGKILL at a crash point, and clear words for wrong arguments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.jobs.enqueue import enqueue_sync
from holdfast.jobs.model import NewJob

pytestmark = pytest.mark.processes

JOBS = """
import asyncio
import holdfast

@holdfast.job("quick")
async def quick() -> None: ...

@holdfast.job("endless")
async def endless() -> None:
    await asyncio.Event().wait()

@holdfast.job("counted", max_crashes=5)
async def counted(ctx: holdfast.Context) -> int:
    return ctx.job.attempt_no
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
            [sys.executable, "-m", "holdfast", "worker", "run", "--import", module, "--url", database, *arguments],
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


def test_sigterm_gives_back_what_runs_and_the_process_ends_well(start: Start, database: str):
    """K-68: the signal ends the loop; K-69: the grace is kept; the job is released without burning an attempt."""
    with psycopg.connect(database, autocommit=True) as conn:
        made = enqueue_sync(conn, NewJob("endless"))
        worker = start(HOLDFAST_GRACE_SECONDS="0.1")
        until(lambda: state_of(conn, made.id)[0] == "running")

        worker.send_signal(signal.SIGTERM)

        assert worker.wait(60) == 0
        assert state_of(conn, made.id) == ("pending", 1, 0, 0)


def test_drain_ends_by_itself_when_there_is_nothing_left(start: Start, database: str):
    with psycopg.connect(database, autocommit=True) as conn:
        made = [enqueue_sync(conn, NewJob("quick")) for _ in range(20)]

        assert start("--drain").wait(60) == 0

        assert {state_of(conn, job.id)[0] for job in made} == {"completed"}


@pytest.mark.parametrize("point", ["claim.before", "claim.after_commit", "run.before_start", "run.after"])
def test_a_worker_killed_at_a_crash_point_is_followed_by_another_that_completes_its_job(
    start: Start, database: str, point: str
):
    with psycopg.connect(database, autocommit=True) as conn:
        made = enqueue_sync(conn, NewJob("counted", max_crashes=5))
        doomed = start(HOLDFAST_CRASH_AT=point, HOLDFAST_LEASE_SECONDS="1")
        assert doomed.wait(60) == -signal.SIGKILL

        start("--queue", "default")
        until(lambda: state_of(conn, made.id)[0] == "completed")

        ends = conn.execute("SELECT count(*) FROM holdfast.history WHERE move = 'complete'").fetchone()
        assert ends == (1,)


def test_a_module_that_is_not_there_is_named(start: Start):
    worker = start(module="not_there")

    assert worker.wait(60) == 1
    assert worker.stderr is not None
    said = worker.stderr.read()
    assert "cannot import not_there" in said
    assert "Traceback" not in said
