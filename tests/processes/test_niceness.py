"""A kind can give the CPU to others: its process has a lower priority, and no other kind gets that process."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import isolated_kinds as kinds
import pytest

from holdfast import Worker, WorkerOptions
from holdfast import job as kind
from holdfast.errors import UsageError
from holdfast.jobs.enqueue import enqueue
from holdfast.worker.isolated import priority
from workers import beside, ended

pytestmark = pytest.mark.processes

ONE = WorkerOptions(concurrency=1, beat=timedelta(milliseconds=200), lease=timedelta(seconds=60), grace=timedelta(seconds=5))


@pytest.mark.more
async def test_a_nice_kind_has_a_process_of_low_priority_which_no_other_kind_gets(database: str, conn: Any) -> None:
    """The handler runs in a thread of its process: threads that start later have the same priority."""
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    nice = await enqueue(conn, kinds.niceness.new())

    async with beside(Worker(database, [kinds.niceness, kinds.usual_niceness], ONE)):
        first = await ended(conn, nice.id)
        usual = await enqueue(conn, kinds.usual_niceness.new())
        second = await ended(conn, usual.id)

    assert (first.result, second.result) == (min(ours + 3, 19), ours)


@pytest.mark.more
async def test_a_nice_kind_yields_to_processes_of_other_sessions(database: str, conn: Any) -> None:
    """Its process has a session of its own. Linux compares the niceness of sessions first, if it groups by them."""
    job = await enqueue(conn, kinds.group_niceness.new())

    async with beside(Worker(database, [kinds.group_niceness], ONE)):
        found = (await ended(conn, job.id)).result

    if not found:
        pytest.skip("no groups of processes by session")
    assert found.endswith(f" nice {min(os.getpriority(os.PRIO_PROCESS, 0) + 3, 19)}")


def test_the_priority_of_a_group_is_set_again_after_the_kernel_delayed_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    group = tmp_path / "autogroup"
    group.touch()
    written: list[bytes] = []

    def write(_: int, content: bytes) -> int:
        written.append(content)
        if len(written) == 1:
            raise BlockingIOError
        return len(content)

    monkeypatch.setattr(priority, "AUTOGROUP", str(group))
    monkeypatch.setattr(priority, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(os, "write", write)

    priority.set_group_priority(10)

    assert written == [b"10", b"10"]


def test_a_machine_without_groups_by_session_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(priority, "AUTOGROUP", str(tmp_path / "not there"))

    priority.set_group_priority(10)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"nice": 5}, "add run_in='process'"),
        ({"nice": 5, "run_in": "thread"}, "add run_in='process'"),
        ({"nice": 20, "run_in": "process"}, "between 0 and 19"),
        ({"nice": -1, "run_in": "process"}, "between 0 and 19"),
        ({"nice": "low", "run_in": "process"}, "between 0 and 19"),
    ],
)
def test_a_niceness_that_cannot_be_is_refused_where_the_kind_is_declared(policy: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        kind("isolated.refused", **policy)
