"""A scheduler that serves its health, readiness and metrics."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import httpx2
import pytest

import programs

pytestmark = pytest.mark.processes
PATIENCE = 120.0


def test_scheduler_is_ready_after_reading_its_loops(database: str, tmp_path: Path) -> None:
    """Y-03, Y-10: the log names each registered loop, and the metrics of the loops are scraped from the scheduler itself."""
    log = tmp_path / "log"
    with log.open("w") as out:
        words = ("scheduler", "run", "--dsn", database, "--http", "0", "--log-format", "json")
        started = programs.start(
            *words, env=os.environ | {"HOLDFAST_SCHEDULER_LOOK_SECONDS": "0.2"}, folder=tmp_path, out=out, err=out
        )
    try:
        url = _until(lambda: re.search(r"http://[\d.:]+", log.read_text())).group()
        _until(lambda: _get(url, "/ready").status_code == 200)

        assert _get(url, "/health").json()["data"]["status"] == "ok"
        _until(lambda: 'background_job_last_success_timestamp_seconds{job_name="rescue"}' in _get(url, "/metrics").text)
        assert 'background_job_interval_seconds{job_name="schema_cache"}' in _get(url, "/metrics").text
        assert _get(url, "/api/jobs").status_code == 404
        assert "scheduler_starting" in log.read_text()
        assert log.read_text().count("job_registered") >= 6

        os.kill(started.pid, signal.SIGSTOP)  # the whole process: nothing answers
        with pytest.raises(httpx2.TimeoutException):
            httpx2.get(f"{url}/health", timeout=1, trust_env=False)
        os.kill(started.pid, signal.SIGCONT)
    finally:
        started.terminate()
        assert started.wait(PATIENCE) == 0, log.read_text()


def _get(url: str, path: str) -> httpx2.Response:
    return httpx2.get(f"{url}{path}", timeout=PATIENCE, trust_env=False)


def _until(found):
    deadline = time.monotonic() + PATIENCE
    while not (got := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return got
