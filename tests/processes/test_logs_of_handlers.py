"""Whatever a handler writes, where it runs and with which library: every line of it says which job it is about."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psycopg
import pytest

import programs
from holdfast.jobs.enqueue import enqueue_sync
from holdfast.jobs.model import NewJob

pytestmark = pytest.mark.processes

JOBS = """
import asyncio
import logging
import structlog
import holdfast

old, new = logging.getLogger("theirs"), structlog.get_logger()

def say(place):
    old.info("old from %s", place)
    new.info("new from " + place, nested={"password": "the-canary"})

@holdfast.job("in_loop")
async def in_loop() -> None:
    say("loop")
    await asyncio.create_task(asyncio.to_thread(say, "a thread of a task"))

@holdfast.job("in_thread")
def in_thread() -> None:
    say("thread")

@holdfast.job("in_process", run_in="process")
async def in_process() -> None:
    say("process")

@holdfast.job("that_fails", max_attempts=1)
async def that_fails() -> None:
    raise RuntimeError("cannot reach postgresql://ops:the-canary@db.example/x\\n{'level': 'fake'}")
"""
PLACES = {
    "loop": "in_loop",
    "a thread of a task": "in_loop",
    "thread": "in_thread",
    "process": "in_process",
}


def test_f_75_handler_lines_name_their_job_and_contain_no_secret(tmp_path: Path, database: str):
    """V-04, Q-02, W-22."""
    (tmp_path / "their_jobs.py").write_text(JOBS)
    pipeline = "0a6c2c0e-4f6e-4b63-b6b7-2c1f1c9d2f11"
    with psycopg.connect(database, autocommit=True) as conn:
        ids = {kind: enqueue_sync(conn, NewJob(kind, pipeline_id=pipeline)).id for kind in {*PLACES.values()}}
        failing = enqueue_sync(conn, NewJob("that_fails", max_attempts=1))
    settings = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    path = os.pathsep.join([str(tmp_path), settings.get("PYTHONPATH", "")])

    words = ("worker", "run", "--import", "their_jobs", "--dsn", database, "--drain")
    done = programs.run(*words, env={**settings, "PYTHONPATH": path, "HOLDFAST_HOSTNAME": "w-1"}, folder=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "the-canary" not in done.stderr
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    for place, kind in PLACES.items():
        written = [line for line in lines if line["event"] in (f"old from {place}", f"new from {place}")]
        assert len(written) == 2, f"{place}: {lines}"
        for line in written:
            about = {"job_id": ids[kind], "kind": kind, "attempt": 1, "worker": "w-1", "pipeline_id": pipeline}
            assert line | about == line
            assert len(line["attempt_id"]) == 36
    (failed,) = [line for line in lines if line["event"] == "job_failed"]
    assert failed["job_id"] == failing.id
    assert _kept(database) == {
        (ids[kind], 1, f"{age} from {place}") for place, kind in PLACES.items() for age in ("old", "new")
    }, "and with each job, what its handler said; our own lines about it are not its handler's"
    assert "fake" in failed["error"]  # inside its field


def _kept(database: str) -> set[tuple[int, int, str]]:
    """The lines with the jobs, none of which has a secret in it."""
    with psycopg.connect(database) as conn:
        whole = [row[0] for row in conn.execute("SELECT t::text FROM holdfast.log_lines t")]
        assert not any("the-canary" in line for line in whole)
        return set(conn.execute("SELECT job_id, attempt_no, message FROM holdfast.log_lines").fetchall())
