"""Run one graph server, watch its memory, and record how it ended. A program: `python supervisor.py FOLDER`.

It is started in a session of its own, so it outlives the API, the worker and the scheduler. It imports only the standard
library: it starts in milliseconds and needs little memory. While it lives, it holds an exclusive lock on FOLDER/lock; the
operating system releases the lock when it dies, however it dies. So whoever wants to know whether a start lives tries the lock.

FOLDER/order.json says what to run. FOLDER/limit_mb may change while it runs. FOLDER/alive.json and FOLDER/ended.json are
written here. SIGTERM ends the graph server: first with SIGTERM, after the grace period with SIGKILL.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

PROC = Path("/proc/self/stat").exists()  # Linux
PR_SET_PDEATHSIG = 1
LOOK_SECONDS = 0.1
OOM, TERMINATED = "OOM_KILLED", "UNEXPECTED_TERMINATION"


def main(folder: Path) -> int:
    """Hold the lock, run the graph server, write how it ended."""
    if not hold(folder / "lock") or (folder / "ended.json").exists():
        return 0  # another supervisor runs this start, or it has run: one start runs once
    stop = Stop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop.ask)
    order = json.loads((folder / "order.json").read_text())
    with (folder / "server.log").open("ab", buffering=0) as log:
        child = start(order["command"], order["environment"], log)
        ours = {"pid": os.getpid(), "started": birth(os.getpid())}
        write(folder / "alive.json", {**ours, "child": child.pid, "child_started": birth(child.pid)})
        reason = watch(folder, child, stop, grace=float(order["grace_seconds"]))
        code = child.wait()
        write(folder / "ended.json", {"code": code, "reason": reason, "asked": stop.asked})
        log.write(f"holdfast: the graph server ended with code {code}{f' ({reason})' if reason else ''}\n".encode())
    return 0


def hold(path: Path) -> bool:
    """Hold the lock until this process ends. Others probe it for an instant, so it is tried for a second."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(50):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOOK_SECONDS / 5)
        else:
            return True
    return False


class Stop:
    """Whether this program was asked to stop."""

    asked = False

    def ask(self, *_: object) -> None:
        self.asked = True


def start(command: list[str], environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """The graph server, which dies with this program."""
    ours = os.getpid()

    def die_with_us() -> None:
        if PROC:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != ours:
            os._exit(1)

    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        preexec_fn=die_with_us,  # noqa: PLW1509 - this program has one thread
    )  # fmt: skip


def watch(folder: Path, child: subprocess.Popen[bytes], stop: Stop, *, grace: float) -> str | None:
    """Wait for the end of the graph server; why it ended, if it was not asked to."""
    deadline: float | None = None
    while child.poll() is None:
        if memory_of(child.pid) > limit_mb(folder) * 1024 * 1024:
            child.kill()
            return OOM
        if stop.asked and deadline is None:
            child.terminate()
            deadline = time.monotonic() + grace
        if deadline is not None and time.monotonic() >= deadline:
            child.kill()
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(LOOK_SECONDS)
    return None if stop.asked else TERMINATED


def limit_mb(folder: Path) -> float:
    """The memory limit as it is now."""
    try:
        return float((folder / "limit_mb").read_text())
    except (OSError, ValueError):
        return float("inf")  # the folder is being removed


def memory_of(pid: int) -> int:
    """The resident memory of a process in bytes; 0 if it cannot be read."""
    try:
        if PROC:
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return int(_ps("rss=", pid) or 0) * 1024
    except (OSError, ValueError, IndexError):
        return 0


def birth(pid: int) -> str | None:
    """When a process was started, in a form that no later process with this id has; None if there is no such process."""
    try:
        if PROC:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return None if fields[0] in "ZX" else f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {fields[19]}"
        return _ps("lstart=", pid) or None
    except (OSError, IndexError):
        return None


def _ps(field: str, pid: int) -> str:
    return subprocess.run(["ps", "-o", field, "-p", str(pid)], capture_output=True, text=True, check=False).stdout.strip()


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a file as a whole: a reader sees the old one or the new one."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(content))
    new.replace(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
