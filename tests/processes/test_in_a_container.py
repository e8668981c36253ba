"""What only a container shows: the kernel's out-of-memory killer, and a keeper that is process 1.

Both are made from what every Linux has and root may use: a memory cgroup, and a pid namespace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from keepers import KILL, TERM, Kept, Start, is_alive, moves, row, state, until
from proof.processes.fork_server import children, descendants

from holdfast.jobs.enqueue import enqueue_sync
from holdfast.jobs.model import NewJob

pytestmark = pytest.mark.processes
Conn = psycopg.Connection[Any]
LIMIT = 400 << 20  # bytes: a keeper, an executor and a child of it have room, and no hoard
ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
AS_PROCESS_1 = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


# ---------------------------------------------------------------------------------------------------------------------
# The memory runs out
# ---------------------------------------------------------------------------------------------------------------------


def a_place_for_cgroups() -> tuple[Path, str]:
    """Where a memory cgroup can be made below our own, and the name of the file with its limit."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/"), "memory.limit_in_bytes"
    return Path("/sys/fs/cgroup"), "memory.max"


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """A cgroup in which the kernel kills when there is no more."""
    parent, limit = a_place_for_cgroups()
    made = parent / f"holdfast-test-{uuid4().hex[:8]}"
    try:
        made.mkdir()
        (made / limit).write_text(str(LIMIT))
    except OSError as error:
        with suppress(OSError):
            made.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield made
    until(lambda: not (made / "cgroup.procs").read_text(), "somebody stayed in the cgroup")
    made.rmdir()


def keeper_with_little_memory(start: Start, cgroup: Path) -> Kept:
    return start("--concurrency", "2", inside=("sh", "-c", ENTER, str(cgroup)))


def killed_for_want_of_memory(cgroup: Path) -> int:
    """How often the kernel says that it did it."""
    file = next(cgroup / name for name in ("memory.oom_control", "memory.events") if (cgroup / name).exists())
    return int(dict(line.split() for line in file.read_text().splitlines())["oom_kill"])


@pytest.mark.more
def test_f_17_oom_killed_executor_releases_its_job_with_that_cause(little_memory: Path, start: Start, db: Conn):
    job = enqueue_sync(db, NewJob("eats_memory_once")).id
    keeper = keeper_with_little_memory(start, little_memory)

    until(lambda: state(db, job) == "completed")

    assert row(db, job) == ("completed", 2, 0, 1)
    assert moves(db, job)[0] == ("rescue", "its process was killed because the memory ran out (SIGKILL by the kernel)")
    assert keeper.hears("executor_died")[0]["cause"] == "oom"
    assert killed_for_want_of_memory(little_memory) == 1
    keeper.signal(TERM)
    assert keeper.wait() == 0


@pytest.mark.more
def test_f_17_isolated_job_runs_out_of_memory_alone(little_memory: Path, start: Start, db: Conn):
    beside = enqueue_sync(db, NewJob("endless")).id
    keeper = keeper_with_little_memory(start, little_memory)
    until(lambda: state(db, beside) == "running")
    job = enqueue_sync(db, NewJob("eats_memory_alone")).id

    until(lambda: state(db, job) == "completed")

    assert moves(db, job)[0] == ("rescue", "its process was killed because the memory ran out (SIGKILL by the kernel)")
    assert keeper.hears("job_process_died")[0]["cause"] == "oom"
    assert keeper.events("executor_died") == []
    assert row(db, beside)[:2] == ("running", 1)
    keeper.process.kill()
    keeper.wait()


# ---------------------------------------------------------------------------------------------------------------------
# Process 1
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def first(start: Start) -> Iterator[Kept]:
    """A keeper that is process 1 of its namespace, as in a container.

    Its end is waited for: the kernel kills it some time after `unshare`, and it would run jobs of the next test."""
    if shutil.which("unshare") is None or subprocess.run([*AS_PROCESS_1, "true"], check=False).returncode:
        pytest.skip("no pid namespace can be made here")
    kept = start("--concurrency", "1", inside=AS_PROCESS_1)
    yield kept
    inside = descendants(kept.pid)
    kept.process.kill()
    kept.wait()
    until(lambda: not any(is_alive(pid) for pid in inside), "the kernel left a process of the namespace")


def keeper_of(first: Kept) -> int:
    """Its pid as we see it."""
    until(lambda: children(first.pid), "it did not start")
    (pid,) = children(first.pid)
    return pid


@pytest.mark.more
def test_keeper_as_pid_1_handles_sigterm_and_exits_with_0(first: Kept, db: Conn):
    """The kernel delivers to process 1 only what it has a handler for."""
    job = enqueue_sync(db, NewJob("until_told")).id
    first.has_begun()

    os.kill(keeper_of(first), TERM)

    assert first.wait() == 0
    assert state(db, job) == "completed"


def test_keeper_as_pid_1_reaps_orphans(first: Kept, db: Conn):
    job = enqueue_sync(db, NewJob("leaves_an_orphan")).id
    until(lambda: state(db, job) == "completed")
    keeper = keeper_of(first)

    until(lambda: len(children(keeper)) == 1, "an orphan that has ended is still there")  # its executor
    (executor,) = children(keeper)
    assert is_alive(executor)


@pytest.mark.more
def test_all_processes_end_with_a_keeper_as_pid_1(first: Kept, db: Conn):
    job = enqueue_sync(db, NewJob("endless")).id
    until(lambda: state(db, job) == "running")
    keeper = keeper_of(first)
    others = descendants(keeper)

    os.kill(keeper, KILL)

    first.wait()
    until(lambda: not any(is_alive(pid) for pid in others), "somebody outlived process 1")
    assert others
