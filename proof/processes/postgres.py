"""A Postgres server that can be crashed, restarted, or lose a backend. Called by: process schedules, tests, benchmarks.

Not `EmbeddedPostgres`, which restarts a crashed server by itself and backs off when that happens often. Here the caller
decides when the server stops and starts. fsync is on, so acknowledged commits are on disk.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from holdfast.database import migrate
from holdfast.database.binaries import ServerBinaries, find_binaries, reachable
from holdfast.database.cluster import ROLE, Cluster
from holdfast.database.embedded import DEFAULTS
from holdfast.database.launch import server_account

SMALL = {"shared_buffers": "32MB", "max_connections": "100", "deadlock_timeout": "50ms", "wal_level": "replica"}
PROOF_TABLES = """
    CREATE SCHEMA IF NOT EXISTS proof;
    CREATE TABLE IF NOT EXISTS proof.published (job_id bigint NOT NULL, attempt_id uuid NOT NULL);
"""
# A schedule connects forty times, and the default makes every time cost both sides 5 ms of hashing. (Postgres 16 and newer.)
CHEAP_PASSWORD = """
    SELECT set_config('scram_iterations', '1', false) WHERE current_setting('server_version_num')::int >= 160000;
    ALTER ROLE {} PASSWORD '{}'
"""
TERMINATE = """
    SELECT count(pg_terminate_backend(pid)) FROM (
        SELECT pid FROM pg_stat_activity
        WHERE application_name = 'holdfast' AND datname = current_database() ORDER BY hashint4(pid + %s) LIMIT %s
    ) AS a_few
"""
BACKENDS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'holdfast' ORDER BY pid"


class OwnPostgres:
    """A server in a folder, for the length of a block. From one thread: it ends with the thread that started it."""

    def __init__(
        self, folder: Path, *, settings: Mapping[str, str] | None = None, binaries: ServerBinaries | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.cluster = Cluster(folder.resolve(), server_account())
        self.binaries = reachable(binaries or find_binaries(), self.cluster.account, lambda _: None)
        self._settings = {**DEFAULTS, **SMALL, **(settings or {})}
        self._reserved = _reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.cluster.create(self.binaries, durable=False)
        self.start()
        with psycopg.connect(self.admin_url, autocommit=True) as conn:
            conn.execute("CREATE DATABASE holdfast")
            conn.execute(CHEAP_PASSWORD.format(ROLE, self.cluster.password()))
        migrate.migrate(self.url)
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute(PROOF_TABLES)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End it for good, and give up its port."""
        self.end(signal.SIGQUIT)
        self._reserved.close()

    @property
    def pid(self) -> int | None:
        """Of the server that runs now, if one does."""
        return None if self._process is None else self._process.pid

    @property
    def url(self) -> str:
        return f"postgresql://{ROLE}:{self.cluster.password()}@127.0.0.1:{self.port}/holdfast"

    @property
    def admin_url(self) -> str:
        return f"postgresql://{ROLE}:{self.cluster.password()}@127.0.0.1:{self.port}/postgres"

    def through(self, port: int) -> str:
        """The address by way of a proxy."""
        return f"postgresql://{ROLE}:{self.cluster.password()}@127.0.0.1:{port}/holdfast?sslmode=disable"

    def start(self) -> None:
        """Returns when it answers."""
        self.cluster.write_settings({**self._settings, "port": str(self.port)})
        self.cluster.end_leftovers(lambda _: None)
        self._process = self.cluster.spawn(self.binaries)
        self.wait_until_it_answers()

    def wait_until_it_answers(self, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                psycopg.connect(self.admin_url, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def end(self, number: signal.Signals) -> None:
        """SIGQUIT: at once, as in a crash. SIGINT: tidily, and now."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None

    def restart(self, number: signal.Signals = signal.SIGQUIT, down: float = 0.0) -> None:
        """Crash it, or stop it tidily, and bring it back."""
        self.end(number)
        time.sleep(down)
        self.start()

    def terminate_backends(self, rng: random.Random, most: int) -> int:
        """`pg_terminate_backend` on some of the connections of workers; how many."""
        self.wait_until_it_answers()  # it may still recover from the fault before
        with psycopg.connect(self.url, autocommit=True) as conn:
            row = conn.execute(TERMINATE, [rng.randint(0, 1000), most]).fetchone()
        return int(row[0]) if row else 0

    def kill_backend(self, rng: random.Random) -> bool:
        """kill -9 of one backend: the postmaster throws out everybody and recovers. False if there was none.

        Returns when the postmaster has noticed: from then on it accepts nobody until it has recovered."""
        self.wait_until_it_answers()
        with psycopg.connect(self.url, autocommit=True) as conn:
            pids: list[Any] = conn.execute(BACKENDS).fetchall()
            return bool(pids) and any(self._dies_with(pid, conn) for (pid,) in (rng.choice(pids), *pids))

    def _dies_with(self, pid: int, conn: psycopg.Connection[Any]) -> bool:
        """Kill this backend, and see whether everybody was thrown out: not if it was just ending by itself."""
        try:
            os.kill(pid, signal.SIGKILL)
            while True:  # until the postmaster has reaped it
                os.kill(pid, 0)
                time.sleep(0.001)
        except ProcessLookupError:
            pass
        try:
            psycopg.connect(self.admin_url, connect_timeout=5).close()
            conn.execute("SELECT 1")  # the server may have recovered already, but not with this connection
        except psycopg.OperationalError:
            return True
        return False


def _reserve_port() -> socket.socket:
    """A socket that keeps a port for a server, also while that is down. It never listens, and like the server it has
    SO_REUSEADDR, so the server can listen beside it; a client or a server that takes any free port does not get this one."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved
