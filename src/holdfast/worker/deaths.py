"""Why a process died, in words that its jobs are given back with. The decision is pure; only the counter is read.

Called by: the keeper, when one of its executors is gone; and by processes that run handlers, to die in a way that can be told.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
LATELY = 10.0  # seconds that a process takes at most to die of it
KILLED_BY_A_SHELLS_WORD = 128 + signal.SIGKILL  # 137: how a shell, or a container's runtime, reports SIGKILL


@dataclass(frozen=True, slots=True)
class Death:
    """How a process ended: a word for machines, a sentence for people."""

    cause: str
    error: str


def run_or_die(work: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run` for a process that runs handlers. One that calls `sys.exit` in a task of its own ends the process where it
    stands, like any other death: tidied up, it would give its job back as if it had been told to end, again and again."""
    with asyncio.Runner() as runner:
        try:
            runner.run(work)
        except SystemExit as left:
            os._exit(left.code if isinstance(left.code, int) else 1)


def cause_of_death(returncode: int, *, oom_kills_rose: bool) -> Death:
    """What the status of a process that is gone means; negative is a signal, as `subprocess` has it.

    The kernel's out-of-memory killer sends SIGKILL like anybody else; the counter of the cgroup tells it apart.
    """
    if returncode == -signal.SIGKILL and oom_kills_rose:
        return Death("oom", "its process was killed because the memory ran out (SIGKILL by the kernel)")
    if returncode == KILLED_BY_A_SHELLS_WORD:
        return Death("oom", "its process ended with 137, as after the memory ran out")
    if returncode < 0:
        name = _name_of(-returncode)
        return Death(name, f"its process was killed by {name}")
    return Death(f"exit {returncode}", f"its process ended in the middle of it, with exit code {returncode}")


def restart_delay(short_lives: int) -> float:
    """How long to wait before the next executor, after so many in a row that did not live long: the first comes at once."""
    return 0.0 if short_lives <= 1 else min(0.1 * 2.0 ** min(short_lives - 1, 10), 10.0)


class OomCounter:
    """How often the kernel killed something in our cgroup for want of memory. Says nothing where there is no cgroup."""

    def __init__(self, own: Path = OWN_CGROUPS, root: Path = CGROUPS) -> None:
        self._file = _counter_file(own, root)
        self._seen = self._read()
        self._rose_at: float | None = None

    def look(self) -> None:
        """Note when it happened, so that a death long after is not put down to it. The kernel counts before it kills, and a
        process with much memory takes its time to go: a look may well come in between."""
        before, self._seen = self._seen, self._read()
        if self._seen > before:
            self._rose_at = time.monotonic()

    def rose(self) -> bool:
        """Whether it happened lately, and was not asked for since."""
        self.look()
        rose_at, self._rose_at = self._rose_at, None
        return rose_at is not None and time.monotonic() - rose_at < LATELY

    def _read(self) -> int:
        if self._file is None:
            return 0
        try:
            found = re.search(r"^oom_kill (\d+)$", self._file.read_text(), re.MULTILINE)
        except OSError:
            return 0
        return int(found[1]) if found else 0


def _counter_file(own: Path, root: Path) -> Path | None:
    """Version 2 has one hierarchy (`0::/path`), version 1 one for memory. In a container the path may be the host's, and
    the mount is of our own cgroup."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inner = path.lstrip("/")
        if "memory" in controllers.split(","):
            candidates = [root / "memory" / inner / "memory.oom_control", root / "memory" / "memory.oom_control"]
        elif controllers == "":
            candidates = [root / inner / "memory.events", root / "memory.events"]
        else:
            continue
        for candidate in candidates:
            if candidate.is_file():
                return candidate
    return None


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
