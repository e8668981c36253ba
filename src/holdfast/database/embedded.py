"""An embedded Postgres server, for one machine and for tests. Called by: apps/up.py, tests.

    with EmbeddedPostgres(Path(".holdfast"), port=54329) as server:
        migrate(server.url)

The first process that uses a data folder owns the server; later processes use it too and do not stop it. cluster.py describes
the folder, launch.py the start of a process.

Invariants:
- the owner holds the lock on `owner.lock`, and the operating system releases it when the owner dies;
- the server is ready if a connection with our password succeeds: a process id proves nothing;
- the server ends with its owner, also after `kill -9`, and is restarted if it dies before its owner;
- it listens on 127.0.0.1 only, and an acknowledged commit is on disk, unless `settings` says otherwise.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from pwd import struct_passwd
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from holdfast.database.binaries import ServerBinaries, find_binaries, reachable
from holdfast.database.cluster import GRACE, ROLE, Cluster
from holdfast.database.launch import server_account
from holdfast.errors import DatabaseProblem, DataFolderInUse, UsageError

log = logging.getLogger(__name__)

DATABASE = "holdfast"
HOST = "127.0.0.1"
DEFAULTS = {
    "listen_addresses": HOST,
    # Without "$user": the role has the same name as our schema, so the user's tables would be created there.
    "search_path": "public",
    "unix_socket_directories": "",  # a socket's path may have 107 characters, and a data folder's often has more
    "max_connections": "200",
    "shared_buffers": "256MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "cluster_name": "holdfast",
    # After a crash, Postgres syncs all files before it replays its log; one syncfs call for all of them is fast.
    **({"recovery_init_sync_method": "syncfs"} if sys.platform == "linux" else {}),
}
THROWAWAY = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}  # for disposable data
POLL_INTERVAL = 0.01  # seconds
LONG_START = 3.0  # seconds after which a start is explained
RECOVERY_PATIENCE = 600.0  # seconds; a long log has to be replayed after a crash


class EmbeddedPostgres:
    """One server in one data folder; a context manager. Not for use by several threads at once.

    `on_message` receives messages for display, some of them from the thread that supervises the server.
    """

    def __init__(
        self,
        data_root: Path,
        *,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        on_message: Callable[[str], None] = log.info,
        binaries: ServerBinaries | None = None,
        patience: timedelta = timedelta(seconds=60),
    ) -> None:
        self._cluster = Cluster(data_root.resolve(), _account())
        self._wanted_port = port
        self._settings = dict(settings or {})
        self._say = on_message
        self._binaries = binaries
        self._patience = patience.total_seconds()
        self._lock: OwnerLock | None = None
        self._supervisor: Supervisor | None = None
        self._trouble = "it has not answered yet"
        self.port = port

    @property
    def data_dir(self) -> Path:
        """The folder of the cluster."""
        return self._cluster.data

    @property
    def owner(self) -> bool:
        """Whether this process owns the server and stops it. False in a process that was forked from the owner."""
        return self._lock is not None and self._lock.is_ours

    @property
    def url(self) -> str:
        password = self._cluster.password()
        if password is None or not self.port:
            raise UsageError("the server has no address before it was started: call start() first")
        return f"postgresql://{ROLE}:{quote(password, safe='')}@{HOST}:{self.port}/{DATABASE}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Return when the server answers, whether this or another process owns it."""
        if self.owner:
            return
        self._cluster.root.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + self._patience
        # Another owner may be starting, stopping or dying: try to adopt and to own until one of them succeeds.
        while not self._own() and not self._adopt():
            if time.monotonic() > deadline:
                raise DataFolderInUse(
                    f"{OwnerLock.holder(self._cluster.root)} owns {self._cluster.root}, but its server cannot "
                    f"be reached: {self._trouble}. Stop that process, or set HOLDFAST_DATA_DIR to another folder."
                )
            time.sleep(POLL_INTERVAL)

    def stop(self) -> None:
        """Stop the server if this process owns it. No process of it is left when this returns."""
        if self.owner and self._lock is not None:
            atexit.unregister(self.stop)
            try:
                if self._supervisor is not None:
                    self._supervisor.end()
            finally:
                self._lock.release()
        self._lock = self._supervisor = None

    def answers(self) -> bool:
        """Whether a connection succeeds right now."""
        try:
            self._connect(DATABASE).close()
        except psycopg.OperationalError as error:
            self._trouble = str(error)
            return False
        return True

    def _adopt(self) -> bool:
        recorded = self._cluster.recorded()
        if recorded is None or self._cluster.password() is None:
            return False
        self.port = recorded.port
        return self.answers()

    def _own(self) -> bool:
        self._lock = OwnerLock.take(self._cluster.root)
        if self._lock is None:
            return False
        atexit.register(self.stop)  # so that the end of the program waits for the end of the server
        try:
            self._start_server()
        except BaseException:
            self.stop()
            raise
        return True

    def _start_server(self) -> None:
        binaries = self._binaries or find_binaries()
        self._cluster.refuse_other_major(binaries)
        binaries = reachable(binaries, self._cluster.account, self._say)
        self._cluster.create(binaries, durable=self._settings.get("fsync") != "off")
        self._cluster.end_leftovers(self._say)
        for port in self._ports():
            self.port = port
            if self._serve(binaries):
                return
        raise DatabaseProblem(f"all tried ports were taken; see {self._cluster.log}")

    def _ports(self) -> Iterator[int]:
        """Ports to try. There are several, because a free port may be taken before the server binds it."""
        if self._wanted_port and _is_free(self._wanted_port):
            yield self._wanted_port
        for _ in range(5):
            port = _any_free_port()
            if self._wanted_port:
                self._say(f"port {self._wanted_port} is taken; the database listens on {port}")
            yield port

    def _serve(self, binaries: ServerBinaries) -> bool:
        """Start the server on `self.port` and wait for it; False if the port was taken meanwhile."""
        self._cluster.write_settings({**DEFAULTS, **self._settings, "port": str(self.port)})
        already_said = self._cluster.begin_log()
        self._supervisor = Supervisor(self._cluster, binaries, self._say)
        self._supervisor.start()
        if self._becomes_ready(self._supervisor):
            return True
        self._supervisor.end()
        with contextlib.suppress(FileNotFoundError):
            words = self._cluster.log.read_bytes()[already_said:].decode(errors="replace").strip()
            if "could not create any TCP/IP sockets" in words:
                return False
            self._trouble = words[-2000:]
        raise DatabaseProblem(
            f"Postgres {self._supervisor.outcome} while starting in {self._cluster.data}. "
            f"The end of {self._cluster.log}:\n{self._trouble}"
        )

    def _becomes_ready(self, supervisor: Supervisor) -> bool:
        began, told = time.monotonic(), False
        while supervisor.is_alive() and time.monotonic() - began < RECOVERY_PATIENCE:
            recorded = self._cluster.recorded()
            if recorded is not None and recorded.ready and recorded.process == supervisor.process_id:
                try:
                    self._ensure_database()
                except psycopg.OperationalError as error:
                    if "authentication" in str(error):  # permanent: waiting does not help
                        message = f"the server refuses the password in {self._cluster.root}/password: {error}"
                        raise DatabaseProblem(message) from error
                else:
                    return supervisor.keep_up()
            if not told and time.monotonic() - began > LONG_START:
                told = True
                self._say("the database is still starting: after a crash it replays its log first")
            time.sleep(POLL_INTERVAL)
        return False

    def _ensure_database(self) -> None:
        with self._connect("postgres") as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))

    def _connect(self, database: str) -> psycopg.Connection:
        # SCRAM authenticates both sides, so another server on this port is detected.
        proof = {"require_auth": "scram-sha-256"} if psycopg.pq.version() >= 160000 else {}
        plain = {"sslmode": "disable", "gssencmode": "disable", "connect_timeout": "5"}
        return psycopg.connect(make_conninfo(self.url, dbname=database, **plain, **proof), autocommit=True)


class Supervisor(threading.Thread):
    """The thread that starts the server, waits for its end and restarts it.

    It is one thread for the whole time, because the operating system ends the server when the thread that started it ends. It
    also reaps the process, so that no zombie looks like a server.
    """

    def __init__(self, cluster: Cluster, binaries: ServerBinaries, say: Callable[[str], None]) -> None:
        super().__init__(name="holdfast-postgres", daemon=True)
        self._cluster, self._binaries, self._say = cluster, binaries, say
        self._turn = threading.Lock()
        self._stopping = threading.Event()
        self._keep_up = False
        self._process: subprocess.Popen[bytes] | None = None
        self.outcome = "did not get ready"

    @property
    def process_id(self) -> int | None:
        return self._process.pid if self._process else None

    def keep_up(self) -> bool:
        """Restart the server from now on if it ends. False if it has already ended."""
        self._keep_up = True
        return self.is_alive()

    def run(self) -> None:
        pause = 0.05
        while not self._stopping.is_set():
            began = time.monotonic()
            self.outcome = self._serve_once()
            if self._stopping.is_set() or not self._keep_up:
                return
            self._say(f"Postgres {self.outcome}; starting it again")
            pause = 0.1 if time.monotonic() - began > 60 else min(2 * pause, 5)
            self._stopping.wait(pause)

    def _serve_once(self) -> str:
        try:
            self._cluster.end_leftovers(self._say)
            with self._turn:
                if self._stopping.is_set():
                    return "was stopped"
                self._process = self._cluster.spawn(self._binaries)
        except (OSError, DatabaseProblem) as error:
            return f"could not be started ({error})"
        return f"ended with code {self._process.wait()}"

    def end(self) -> None:
        """Request a fast shutdown, and kill the server if it does not end in time."""
        with self._turn:  # from here on, the server is not restarted
            self._stopping.set()
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if self._process is not None:
                self._process.send_signal(number)
            self.join(GRACE)
            if not self.is_alive():
                break
        self._cluster.end_leftovers(self._say)


class OwnerLock:
    """The lock of the owner of a data folder. It is released when the process ends, for any reason."""

    _held: set[int] = set()  # noqa: RUF012 - one set for the process: it is emptied in a forked child

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._process = descriptor, os.getpid()
        self._held.add(descriptor)

    @classmethod
    def take(cls, root: Path) -> OwnerLock | None:
        """The lock, or None if another process has it."""
        try:
            descriptor = os.open(root / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except PermissionError as error:
            raise DataFolderInUse(f"{root} belongs to another user ({error}); set HOLDFAST_DATA_DIR") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        return cls(descriptor)

    @staticmethod
    def holder(root: Path) -> str:
        return f"process {(root / 'owner.lock').read_text() or '?'}"

    @property
    def is_ours(self) -> bool:
        return self._process == os.getpid()

    def release(self) -> None:
        self._held.discard(self._descriptor)
        os.close(self._descriptor)

    @classmethod
    def forget_all(cls) -> None:
        """For a forked child: close its copies of the lock, which would otherwise stay locked after the parent's end."""
        for descriptor in cls._held:
            os.close(descriptor)
        cls._held.clear()


os.register_at_fork(after_in_child=OwnerLock.forget_all)


def _account() -> struct_passwd | None:
    try:
        return server_account()
    except KeyError as error:
        raise DatabaseProblem(f"Postgres does not run as root, and there is no user to run it as: {error}") from error


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # SO_REUSEADDR as Postgres does: connections in TIME_WAIT do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _any_free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
