"""No process, thread or server outlives its test. A plugin that `conftest.py` loads.

What a fixture of a wider scope starts may stay until that fixture ends; everything else must be gone when its test is torn
down. A test that leaves something behind fails, and says what.

A fixture whose process tests may restart says which process is its own at any time:

    with replaceable(lambda: stage.postgres.pid):
        yield stage
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import programs

PATIENCE = 20.0  # for something that has been told to end
_lasting: set[Any] = set()
_replaceable: list[Callable[[], int | None]] = []


class Child:
    """A process that this one is the parent of."""

    def __init__(self, pid: int, command: str) -> None:
        self.pid, self.command = pid, command

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Child) and other.pid == self.pid

    def __hash__(self) -> int:
        return hash(self.pid)

    def __repr__(self) -> str:
        return f"process {self.pid}: {self.command[:200]}"


def _children() -> Iterator[Child]:
    """Linux lists the children of each thread; without that list every process is asked for its parent."""
    threads = Path("/proc/self/task")
    if (threads / str(os.getpid()) / "children").exists():
        found = {int(pid) for thread in threads.iterdir() for pid in _read(thread / "children").split()}
    else:
        found = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()}
    for pid in found:
        fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
        if fields and fields[0] not in "ZX" and int(fields[1]) == os.getpid():
            yield Child(pid, _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " "))


def _read(file: Path) -> str:
    """The text of a file in /proc; empty if its process or thread has ended."""
    try:
        return file.read_text()
    except OSError:
        return ""


def _alive() -> set[Any]:
    """The threads and child processes of this process."""
    return {*threading.enumerate(), *_children()}


@contextmanager
def replaceable(current: Callable[[], int | None]) -> Iterator[None]:
    """For the length of the block, the process with the id that `current` returns may stay; not those that it has replaced."""
    _replaceable.append(current)
    try:
        yield
    finally:
        _replaceable.remove(current)


def _left() -> set[Any]:
    """What no fixture of a wider scope has started."""
    theirs = {Child(pid, "") for current in (*_replaceable, programs.shared_pid) if (pid := current()) is not None}
    return _alive() - _lasting - theirs


def pytest_sessionstart() -> None:
    _lasting.update(_alive())


def pytest_sessionfinish() -> None:
    programs.close_shared()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    """What a fixture of a wider scope than a test starts may stay."""
    before = _alive() if fixturedef.scope != "function" else set()
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            _lasting.update(_alive() - before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """After the fixtures of a test are torn down."""
    answer = yield
    deadline = time.monotonic() + PATIENCE
    while left := _left():
        if time.monotonic() > deadline:
            _lasting.update(left)  # blame this test alone
            pytest.fail(f"left behind: {', '.join(map(repr, left))}", pytrace=False)
        time.sleep(0.01)
    return answer
