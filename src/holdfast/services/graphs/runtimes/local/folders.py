"""The folder of one start: FOLDER/<instance id>/<start token>. What is in it, and whether its supervisor runs. Blocking: called
in threads.

order.json   what to run, with the secret (mode 0600); withdrawn.json after its removal has begun
lock         held by the supervisor while it lives         alive.json  its process, and the graph server's
ended.json   how the graph server ended                    port        where it listens, written by it
ready        it has loaded once                            limit_mb    the memory limit, which may change
server.log   its output                                    data/       its database
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.services.graphs.runtimes.local import supervisor


@dataclass(frozen=True, slots=True)
class StartFolder:
    """The folder of one start of one instance."""

    path: Path

    @property
    def instance_id(self) -> int:
        return int(self.path.parent.name)

    @property
    def start_token(self) -> str:
        return self.path.name

    def order(self) -> dict[str, Any] | None:
        """What was ordered; None: the start died before it had written that."""
        return self._json("order.json") or self._json("withdrawn.json")

    @property
    def is_withdrawn(self) -> bool:
        """Whether its removal has begun."""
        return (self.path / "withdrawn.json").exists()

    def withdraw(self) -> None:
        """Begin the removal: a supervisor that has not read its order finds none and ends; one that has holds the lock."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / "order.json").replace(self.path / "withdrawn.json")

    def ended(self) -> dict[str, Any] | None:
        """How the graph server ended, if its supervisor saw it."""
        return self._json("ended.json")

    def port(self) -> int | None:
        """Where the graph server listens, as soon as it does."""
        try:
            return int((self.path / "port").read_text())
        except (OSError, ValueError):
            return None

    def limit_mb(self) -> int | None:
        try:
            return int(float((self.path / "limit_mb").read_text()))
        except (OSError, ValueError):
            return None

    def set_limit(self, memory_mb: int) -> None:
        """Change the memory limit. The supervisor reads it several times a second."""
        replace_text(self.path / "limit_mb", str(memory_mb))

    def is_alive(self) -> bool:
        """Whether its supervisor lives, by its lock: a process id alone proves nothing."""
        try:
            file = os.open(self.path / "lock", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def has_begun(self) -> bool:
        """Whether its supervisor has started the graph server and written its process id."""
        return self.child() is not None  # the file may be that of a supervisor that died

    def child(self) -> int | None:
        """The process id of the graph server, if that process is still the one that was started."""
        return self._process("child", "child_started")

    def memory_bytes(self) -> int | None:
        pid = self.child()
        return None if pid is None else supervisor.memory_of(pid) or None

    def stop(self) -> None:
        """Ask the supervisor to end the graph server."""
        pid = self._process("pid", "started")
        if pid is not None and self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def kill_child_if_alone(self) -> bool:
        """End a graph server whose supervisor died without ending it (only where the kernel does not). True: there is none."""
        pid = self.child()
        if pid is None:
            return True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return self.child() is None

    def created_at(self) -> datetime:
        """When it was ordered. The plan is written once, just before the order."""
        return datetime.fromtimestamp((self.path / "plan.json").stat().st_mtime, UTC)

    def log_tail(self, lines: int) -> str:
        """The last lines of the log; at most 256 KiB are read."""
        try:
            with (self.path / "server.log").open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 256 * 1024))
                return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""

    def _process(self, pid: str, started: str) -> int | None:
        alive = self._json("alive.json")
        if alive is None or alive[started] is None or supervisor.birth(alive[pid]) != alive[started]:
            return None
        return int(alive[pid])

    def _json(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.path / name).read_text())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        return found


class Folders:
    """The folder with all instances of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()

    def instances(self) -> list[int]:
        """The instances that have a folder. Raises `OSError` if the root cannot be read."""
        if not self.root.exists():
            return []
        return sorted(int(one.name) for one in self.root.iterdir() if one.name.isdigit() and one.is_dir())

    def starts(self, instance_id: int) -> list[StartFolder]:
        """The starts of an instance that have a folder."""
        try:
            found = [one for one in (self.root / str(instance_id)).iterdir() if one.is_dir()]
        except FileNotFoundError:
            return []
        return [StartFolder(one) for one in sorted(found)]

    def start(self, instance_id: int, start_token: str) -> StartFolder:
        return StartFolder(self.root / str(instance_id) / start_token)

    @contextmanager
    def turn(self, instance_id: int) -> Iterator[bool]:
        """Only one process at a time starts or removes an instance; False: another one does so now."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.root / f"{instance_id}.turn"
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield _locked(file, path)
        finally:
            os.close(file)

    def forget(self, instance_id: int) -> None:
        """Remove what is left of an instance without starts. Called while its turn is held."""
        with contextlib.suppress(OSError):
            (self.root / str(instance_id)).rmdir()
        if not (self.root / str(instance_id)).exists():
            (self.root / f"{instance_id}.turn").unlink(missing_ok=True)


def _locked(file: int, path: Path) -> bool:
    """Lock this file, unless another process has it or has just removed it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def replace_text(path: Path, text: str) -> None:
    """Write a file that only this user may read, as a whole."""
    new = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    new.replace(path)
