"""Measure how long it takes until a job runs again, with default settings (heartbeat 5 s, lease 30 s).

    python -m proof.recovery

Workers are the real program, `holdfast worker run`, and a witness outside records what runs. The faults: an executor is
killed and its keeper lives; keeper and executors are killed together while another worker lives, with default settings
and with `HOLDFAST_RESCUE_ON_DISCONNECT`; SIGTERM; the database crashes and restarts; a network partition, for a client
and for an API.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import psycopg
from proof.processes.checks import read_witness
from proof.processes.fork_server import descendants, until
from proof.processes.handlers import FOLDER
from proof.processes.play import CLEAR
from proof.processes.postgres import OwnPostgres
from proof.proxy import Proxy

from holdfast.database.pool import careful
from holdfast.jobs.enqueue import enqueue_sync
from holdfast.jobs.model import NewJob

ROOT = Path(__file__).parent.parent
PATIENCE = 120.0
ask = build_opener(ProxyHandler({})).open  # nobody stands between us and this machine
LONG = {"steps": 100_000, "pause": 0.05}
GOALS = {  # seconds
    "recovery_executor_s": 2.0,
    "recovery_pod_s": 36.0,
    "recovery_pod_disconnect_s": 5.0,
    "release_sigterm_s": 2.0,
    "recovery_database_s": 10.0,
    "partition_error_s": 6.0,
    "partition_api_s": 6.0,
}


class Site:
    """A server and the workers on it."""

    def __init__(self, postgres: OwnPostgres, folder: Path) -> None:
        self.postgres, self.folder = postgres, folder
        self.workers: list[subprocess.Popen[bytes]] = []

    def worker(self, **settings: str) -> subprocess.Popen[bytes]:
        """`holdfast worker run`, as anybody would start it."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        environment |= {FOLDER: str(self.folder), "PYTHONPATH": os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])}
        log = (self.folder / "log").open("ab")
        started = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "holdfast",
                "worker",
                "run",
                "--import",
                "proof.processes.handlers",
                "--dsn",
                self.postgres.url,
            ],
            env=environment | settings,
            stdout=log,
            stderr=log,
        )
        log.close()
        self.workers.append(started)
        return started

    def add(self, kind: str, **arguments: Any) -> int:
        with psycopg.connect(self.postgres.url, autocommit=True) as conn:
            return enqueue_sync(conn, NewJob(kind, {"n": 1, **arguments}, max_crashes=50)).id

    def started(self, job: int) -> list[Any]:
        return [line for line in read_witness(self.folder) if line.what == "start" and line.job == job]

    def until_started(self, job: int, times: int = 1) -> Any:
        """The line of its n-th start; its `at` is on the clock of `time.monotonic`."""
        return until(lambda: self.started(job)[times - 1 : times], PATIENCE)[0]

    def until_registered(self, count: int) -> None:
        with psycopg.connect(self.postgres.url, autocommit=True) as conn:
            until(lambda: conn.execute("SELECT count(*) >= %s FROM holdfast.workers", [count]).fetchone() == (True,), PATIENCE)

    def clear(self) -> None:
        """End every worker and begin again."""
        for worker in self.workers:
            for pid in [*descendants(worker.pid), worker.pid]:
                kill(pid)
            worker.wait()
        self.workers.clear()
        (self.folder / "witness").unlink(missing_ok=True)
        with psycopg.connect(self.postgres.url, autocommit=True) as conn:
            conn.execute(CLEAR)


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@contextmanager
def site() -> Iterator[Site]:
    with TemporaryDirectory(prefix="holdfast-recovery-") as folder:
        (Path(folder) / "witness-folder").mkdir()
        with OwnPostgres(Path(folder) / "postgres") as postgres:
            made = Site(postgres, Path(folder) / "witness-folder")
            try:
                yield made
            finally:
                made.clear()


# ---------------------------------------------------------------------------------------------------------------------
# The accidents
# ---------------------------------------------------------------------------------------------------------------------


def executor_killed(at: Site) -> float | None:
    """From the death of the process that runs the handler to its next start. None where a worker is one process."""
    worker = at.worker()
    job = at.add("proof.steps", **LONG)
    first = at.until_started(job)
    if first.pid == worker.pid:
        return None
    began = time.monotonic()
    kill(first.pid)
    return float(at.until_started(job, 2).at - began)


def pod_killed_and_disconnected(at: Site) -> float:
    """The same, where the end of a worker's database session counts."""
    return pod_killed(at, HOLDFAST_RESCUE_ON_DISCONNECT="true")


def pod_killed(at: Site, **settings: str) -> float:
    """From the death of everything that a worker is to the next start on another."""
    doomed = at.worker(**settings)
    job = at.add("proof.steps", **LONG)
    at.until_started(job)
    at.worker(**settings)
    at.until_registered(2)
    time.sleep(6 if settings else 1)  # the survivor was connected before the last beat of the one that dies
    began = time.monotonic()
    for pid in [*descendants(doomed.pid), doomed.pid]:
        kill(pid)
    return float(at.until_started(job, 2).at - began)


def told_to_stop(at: Site) -> float:
    """From SIGTERM, with no grace for handlers, to the job being free again; the longer of a handler that waits and one
    that blocks its thread."""
    longest = 0.0
    for kind, arguments in (("proof.steps", LONG), ("proof.blocking", {"pause": 120.0})):
        worker = at.worker(HOLDFAST_GRACE_SECONDS="0")
        job = at.add(kind, **arguments)
        at.until_started(job)
        with psycopg.connect(at.postgres.url, autocommit=True) as conn:
            began = time.monotonic()
            worker.send_signal(signal.SIGTERM)
            until(lambda conn=conn, job=job: _state(conn, job) == "pending", PATIENCE)
            longest = max(longest, time.monotonic() - began)
        at.clear()
    return longest


def _state(conn: psycopg.Connection[Any], job: int) -> str | None:
    row = conn.execute("SELECT state FROM holdfast.jobs WHERE id = %s", [job]).fetchone()
    return None if row is None else str(row[0])


def database_restarted(at: Site) -> float:
    """From the moment that the database answers again to the first new job that runs."""
    at.worker()
    at.until_started(at.add("proof.quick"))
    at.postgres.restart(signal.SIGQUIT, down=5.0)
    began = time.monotonic()
    return float(at.until_started(at.add("proof.quick")).at - began)


def client_cut_off(at: Site) -> float:
    """From a statement that no packet comes back for to the error."""
    with Proxy(at.postgres.url) as proxy:
        conn = psycopg.connect(careful(at.postgres.through(proxy.port)), autocommit=True)
        proxy.black_hole()
        began = time.monotonic()
        try:
            conn.execute("SELECT 1")
        except psycopg.OperationalError:
            return time.monotonic() - began
        raise AssertionError("there was an answer out of a black hole")


def api_cut_off(at: Site) -> float:
    """From a request to its 503: the longest of many at once, on open connections and then without any."""
    log = at.folder / "api"
    with Proxy(at.postgres.url) as proxy, log.open("wb") as out:
        command = ["serve", "--dsn", at.postgres.through(proxy.port), "--port", "0", "--no-loops"]
        api = subprocess.Popen([sys.executable, "-m", "holdfast", *command], stdout=out, stderr=out)
        try:
            link = until(lambda: re.search(r"(http://\S+)/login\?code=\S+(?=')", log.read_text()), PATIENCE)
            with ask(link[0], timeout=PATIENCE) as answer:
                token = json.load(answer)["data"]["token"]
            jobs = Request(f"{link[1]}/api/jobs", headers={"Authorization": f"Bearer {token}"})
            ask(jobs, timeout=PATIENCE).close()
            proxy.black_hole()
            with ThreadPoolExecutor(12) as people:
                return max(max(people.map(_seconds_to_503, [jobs] * 12)) for _ in range(2))
        finally:
            proxy.heal()
            api.terminate()
            api.wait(PATIENCE)


def _seconds_to_503(request: Request) -> float:
    began = time.monotonic()
    try:
        ask(request, timeout=PATIENCE).close()
    except HTTPError as error:
        error.close()
        if error.code == 503 and error.headers["Retry-After"]:
            return time.monotonic() - began
    raise AssertionError("it did not say that its database is away")


ACCIDENTS = {
    "recovery_executor_s": executor_killed,
    "recovery_pod_s": pod_killed,
    "recovery_pod_disconnect_s": pod_killed_and_disconnected,
    "release_sigterm_s": told_to_stop,
    "recovery_database_s": database_restarted,
    "partition_error_s": client_cut_off,
    "partition_api_s": api_cut_off,
}


def measure(on_figure: Any = lambda name, seconds: None) -> dict[str, float | None]:
    """All of them, each on an empty database."""
    figures: dict[str, float | None] = {}
    with site() as at:
        for name, accident in ACCIDENTS.items():
            at.clear()
            seconds = accident(at)
            figures[name] = None if seconds is None else round(seconds, 2)
            on_figure(name, figures[name])
    return figures


def too_slow(figures: dict[str, float | None]) -> list[str]:
    """A sentence for each figure that misses its goal, or that could not be measured."""
    missed = []
    for name, seconds in figures.items():
        if seconds is None:
            missed.append(f"{name} could not be measured: a worker is one process here")
        elif seconds > GOALS[name]:
            missed.append(f"{name} is {seconds} s, and its goal {GOALS[name]} s")
    return missed


if __name__ == "__main__":
    found = measure(lambda name, seconds: print(f"{name}: {seconds}", flush=True))
    for sentence in too_slow(found):
        print(f"✗ {sentence}")
    sys.exit(1 if too_slow(found) else 0)
