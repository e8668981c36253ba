"""A server that may be broken, a proxy, and worker processes in milliseconds: one stage for all tests of a process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from proof.processes.checks import Account, Acknowledged, Line, check, read_account, read_witness, whole_lines
from proof.processes.fork_server import HANDLERS, Forked, until
from proof.processes.play import CLEAR, LEFT, Stage

from holdfast.jobs.enqueue import enqueue_sync
from holdfast.jobs.model import NewJob
from leaks import replaceable

LONG_LEASE = 60.0  # never over by itself, however busy the machine is; a test ends it with `expire`
EXPIRE = "UPDATE holdfast.workers SET lease_until = clock_timestamp() WHERE pid = ANY (%s) AND lease_until > clock_timestamp()"
OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'"
PATIENCE = 120.0
MODULES = (HANDLERS, "tests.faults.fault_jobs")
BUDGET = {"max_crashes": 50, "max_attempts": 20}  # as the kinds of the handlers have it


class Scene:
    """One test's view of the stage."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.postgres, self.proxy, self._forks = stage.postgres, stage.proxy, stage.forks
        self.folder = folder
        self.conn = psycopg.connect(self.postgres.url, autocommit=True)
        self.acknowledged: list[Acknowledged] = []
        self._silent: list[int] = []  # process ids of workers whose lease is over

    # ------------------------------------------------------------------------------------------------- acting

    def add(self, kind: str, **arguments: Any) -> int:
        """Enqueue a job; its id. Options of the job start with an underscore."""
        options = {name[1:]: arguments.pop(name) for name in list(arguments) if name.startswith("_")}
        new = NewJob(kind, {"n": len(self.acknowledged), **arguments}, **{**BUDGET, **options})
        made = enqueue_sync(self.conn, new).id
        self.acknowledged.append(Acknowledged(made, new))
        return made

    def worker(self, crash_at: str | None = None, *, by_proxy: bool = False, **options: Any) -> Forked:
        """A worker process; with a crash point, a doomed one."""
        url = self.postgres.through(self.proxy.port) if by_proxy else self.postgres.url
        url = options.pop("url", url)
        return self._forks.start(url, self.folder, **{"crash_at": crash_at, "lease": LONG_LEASE, "modules": MODULES, **options})

    def doomed(self, point: str, **options: Any) -> Forked:
        """A worker that has died at this point, and whose lease is over."""
        worker = self.worker(point, **options)
        self.until(lambda: not worker.is_alive, what=f"a process that dies at {point}")
        assert worker.wait() == -9
        self.expire(worker)
        return worker

    def expire(self, worker: Forked) -> None:
        """End the lease of a worker that is dead or stays stopped: time is moved by moving rows."""
        self._silent.append(worker.pid)
        self._expire_silent()

    def _expire_silent(self) -> None:
        if self._silent:
            self.conn.execute(EXPIRE, [self._silent])

    def touch(self, name: str) -> None:
        """Let the handlers go on that wait for a file of this name (`fault_jobs.wait_for`)."""
        (self.folder / name).touch()

    # ------------------------------------------------------------------------------------------------- looking

    def value(self, statement: str, *parameters: Any) -> Any:
        row = self.conn.execute(statement, parameters or None).fetchone()
        assert row is not None
        return row[0]

    def job(self, job_id: int, columns: str = "state, attempt_no, errors, crashes") -> Any:
        return self.conn.execute(f"SELECT {columns} FROM holdfast.jobs WHERE id = %s", [job_id]).fetchone()

    def moves(self, job_id: int) -> list[str]:
        rows = self.conn.execute("SELECT move FROM holdfast.history WHERE job_id = %s ORDER BY id", [job_id])
        return [row[0] for row in rows.fetchall()]

    def lines(self, what: str | None = None, job: int | None = None) -> list[Line]:
        """What the witness has heard."""
        return [line for line in read_witness(self.folder) if what in (None, line.what) and job in (None, line.job)]

    def said(self, event: str) -> list[dict[str, Any]]:
        """What the workers logged."""
        lines = [json.loads(line) for line in whole_lines(self.folder / "log") if line.startswith("{")]
        return [line for line in lines if line.get("event") == event]

    def until(self, reached: Callable[[], Any], seconds: float = PATIENCE, what: str = "it") -> Any:
        """Wait for a condition. The server may execute the last heartbeat of a process after its death, which makes its lease
        long again; so leases that `expire` has ended are ended again before each look."""

        def look() -> Any:
            self._expire_silent()
            return reached()

        try:
            return until(look, seconds, every=0.01)
        except TimeoutError:
            log = (self.folder / "log").read_text()[-3000:] if (self.folder / "log").exists() else ""
            raise AssertionError(f"{what} never happened; the workers said last:\n{log}") from None

    def reconnect(self) -> None:
        """After the server has thrown everybody out."""
        self.conn.close()
        self.postgres.wait_until_it_answers()
        self.conn = psycopg.connect(self.postgres.url, autocommit=True)

    # ------------------------------------------------------------------------------------------------- the verdict

    def everything_ends(self, **options: Any) -> Account:
        """An honest worker sees everything through; nothing is wrong with what both logs say."""
        self.worker(name="honest", **options)
        return self.all_is_well()

    def all_is_well(self) -> Account:
        """Everything has ended, or does so now; nothing is wrong with what both logs say."""
        self.until(lambda: self.value(LEFT) == 0)
        self._forks.bury_all()
        account = asyncio.run(read_account(self.postgres.url, self.folder, self.acknowledged, []))
        assert [str(violation) for violation in check(account)] == []
        return account

    def close(self) -> None:
        self._forks.bury_all()
        self.proxy.cut_all()  # a client that died in a black hole closed nothing: its session would stay
        self.proxy.heal()
        self.conn.close()


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A server, a proxy and a fork server, for all tests of this process."""
    with Stage.open(tmp_path_factory.mktemp("stage")) as stage, replaceable(lambda: stage.postgres.pid):
        yield stage


@pytest.fixture
def scene(stage: Stage, tmp_path: Path) -> Iterator[Scene]:
    """An empty database, and what a test needs to trouble it."""
    stage.postgres.wait_until_it_answers()
    with psycopg.connect(stage.postgres.url, autocommit=True) as conn:
        until(lambda: conn.execute(OTHERS).fetchone() == (0,), PATIENCE)  # the server may execute what a dead worker has sent
        conn.execute(CLEAR)
    scene = Scene(stage, tmp_path)
    yield scene
    scene.close()
