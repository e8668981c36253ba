"""Work in a remote engine: recorded before it starts, stopped before a rerun, and stopped after a cancel.

The remote engine of these tests is a real process per action, which outlives the attempt that started it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from factories import rows, state_of, take
from holdfast.jobs.effects import Effect, clean, confirm, plan
from holdfast.jobs.model import AttemptId, JobId
from holdfast.services.maintenance.engines.actions import RewriteDataFiles
from holdfast.services.maintenance.engines.interface import Action, ActionResult, Fence, TableRef, TableStats
from holdfast.services.maintenance.kinds import KINDS
from holdfast.services.maintenance.run import remote as remote_work
from holdfast.services.maintenance.run.remote import EFFECT
from holdfast.services.maintenance.setup import Maintenance
from holdfast.testing import crash_at, harness
from holdfast.worker.kinds import cleaners
from maintenance_factories import ORDERS, PATH, STATS, actions_of, know, make_table

Conn = psycopg.AsyncConnection[Any]
FOREVER = [sys.executable, "-c", "import sys; sys.stdin.read()"]


class ProcessEngine:
    """An engine whose work is a process that goes on when its caller has died."""

    name = "trino"

    def __init__(self) -> None:
        self.work: dict[str, subprocess.Popen[bytes]] = {}
        self.stopped: list[str] = []
        self.ended: list[str] = []
        self.during: Callable[[], None] = lambda: None  # called in the middle of each action
        self.seen_at_start: list[list[str]] = []

    def supports(self, action: str) -> bool:
        return True

    def stats(self, table: TableRef) -> TableStats:
        return STATS

    def run(self, table: TableRef, action: Action, fence: Fence, **_: Any) -> ActionResult:
        self.seen_at_start.append([tag for tag, process in self.work.items() if process.poll() is None])
        self.work[fence.tag] = subprocess.Popen(FOREVER, stdin=subprocess.PIPE)
        self.during()
        return ActionResult(action.name, STATS, STATS, 1.0)

    def begin(self, tag: str) -> str:
        return f"reference-of-{tag}"

    def end(self, tag: str) -> None:
        self.ended.append(tag)

    def find(self, reference: str) -> str | None:
        tag = reference.removeprefix("reference-of-")
        process = self.work.get(tag)
        return tag if tag != reference and process is not None and process.poll() is None else None

    def stop(self, handle: str) -> None:
        self.work[handle].kill()
        self.work[handle].wait()
        self.stopped.append(handle)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def remote(here: Maintenance) -> Iterator[ProcessEngine]:
    engine = ProcessEngine()
    here._engines["trino"] = engine  # type: ignore[assignment]
    here.engine_names = ("pyiceberg", "trino")
    yield engine
    for process in engine.work.values():
        process.kill()
        process.wait()
        process.stdin.close()  # type: ignore[union-attr]


class SessionEngine:
    """An engine whose handles have a secret after the dot, as those of Thrift sessions."""

    name = "spark"

    def find(self, reference: str) -> str | None:
        return reference

    def stop(self, handle: str) -> None:
        assert handle == "a1.5ec4e7"


def test_secret_of_a_handle_is_not_logged(monkeypatch: pytest.MonkeyPatch):
    effect = Effect(1, JobId(7), AttemptId("a"), 3, EFFECT, "tag", {"engine": "spark"}, {"work": "a1.5ec4e7"}, "made")
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(remote_work.log, "warning", lambda event, **fields: lines.append({"event": event, **fields}))

    remote_work._stop(SessionEngine(), effect, 7)  # type: ignore[arg-type]

    assert [line["handle"] for line in lines] == ["a1", "a1"]
    assert "5ec4e7" not in str(lines)


async def test_work_of_a_dead_attempt_is_stopped_before_the_next_begins(
    ops: Any, conn: Conn, database: str, remote: ProcessEngine
):
    """E-50: two attempts never rewrite the same table at the same time."""
    await know(conn)
    await ops.post(PATH, json={"actions": ["rewrite_data_files"], "engine": "trino"})

    async with harness(database, KINDS) as runner:
        with crash_at("maintenance.action.done"):
            await runner.drain()

    first, second = remote.work
    assert remote.stopped[0] == first
    assert remote.seen_at_start == [[], []], "nothing ran when the second attempt began"
    assert first != second


async def test_attempt_records_where_its_work_is_before_it_starts_and_says_when_it_is_over(
    ops: Any, conn: Conn, database: str, remote: ProcessEngine
):
    """Another process finds the work by the recorded reference: an engine may choose its own names."""
    await know(conn)
    await ops.post(PATH, json={"actions": ["rewrite_data_files"], "engine": "trino"})
    seen: list[Any] = []

    def look() -> None:
        with psycopg.connect(database, autocommit=True) as own:
            seen.extend(own.execute("SELECT tag, handle ->> 'work' FROM holdfast.effects").fetchall())

    remote.during = look
    async with harness(database, KINDS) as runner:
        await runner.drain()

    (tag,) = remote.work
    assert seen == [(tag, f"reference-of-{tag}")]
    assert remote.ended == [tag]


async def test_cancel_between_two_actions_keeps_the_second_from_running(
    ops: Any, conn: Conn, database: str, remote: ProcessEngine
):
    """T-06, K-62, Z-08: the first action has ended when the cancel is seen; it stays completed."""
    await know(conn)
    made = await ops.post(PATH, json={"actions": ["rewrite_data_files", "rewrite_manifests"], "engine": "trino"})
    job_id = made.json()["data"]["id"]

    def cancel_it() -> None:
        with psycopg.connect(database, autocommit=True) as own:
            own.execute("UPDATE holdfast.jobs SET cancel_requested_at = clock_timestamp() WHERE id = %s", [job_id])

    remote.during = cancel_it
    async with harness(database, KINDS) as runner:
        await runner.drain()

    assert await state_of(conn, job_id) == "cancelled"
    assert await actions_of(conn, job_id) == {"rewrite_data_files": "completed", "rewrite_manifests": "cancelled"}
    assert len(remote.seen_at_start) == 1


async def test_work_is_stopped_after_the_end_of_its_job(ops: Any, conn: Conn, database: str, remote: ProcessEngine):
    """The effects ledger has the tag before the work begins, so nothing is left running."""
    await know(conn)
    made = await ops.post(PATH, json={"actions": ["rewrite_data_files"], "engine": "trino"})

    async with harness(database, KINDS) as runner:
        await runner.drain()
    running = [process.poll() for process in remote.work.values()]
    await clean(conn, cleaners())

    assert await state_of(conn, made.json()["data"]["id"]) == "completed"
    assert running == [None]
    assert await rows(conn, "SELECT kind, state FROM holdfast.effects") == [(EFFECT, "gone")]
    assert [process.poll() is None for process in remote.work.values()] == [False]


async def test_dry_run_of_orphan_removal_with_trino_has_the_numbers_of_the_embedded_engine(
    ops: Any, here: Maintenance, database: str, remote: ProcessEngine
):
    """Trino cannot list orphan files without deleting them."""
    await asyncio.to_thread(make_table, here, database, files=1)
    made = await ops.post(PATH, json={"actions": ["remove_orphan_files"], "engine": "trino", "dry_run": True})

    async with harness(database, KINDS) as runner:
        await runner.drain()

    (action,) = (await ops.get(made.headers["location"])).json()["data"]["actions"]
    assert (action["status"], action["details"]["orphan_files"], action["details"]["young_files"] > 0) == ("completed", 0, True)
    assert remote.work == {}


async def test_job_that_is_cancelled_leaves_no_work_running(ops: Any, conn: Conn, remote: ProcessEngine):
    """E-50, E-53: the work of an attempt whose job was cancelled by force is stopped by the ledger."""
    await know(conn)
    made = await ops.post(PATH, json={"actions": ["rewrite_data_files"], "engine": "trino"})
    claim = await take(conn, made.json()["data"]["id"])
    fence = Fence(claim.id, claim.attempt_id, claim.fence_token, check=lambda: None)
    planned = await plan(conn, claim, EFFECT, tag=fence.tag, detail={"engine": "trino"}, temporary=True, adoptable=True)
    await confirm(conn, claim, planned, {"work": remote.begin(fence.tag)})
    remote.run(ORDERS, RewriteDataFiles(), fence)

    await ops.post(f"/api/jobs/{claim.id}/cancel", json={"force": True})
    await clean(conn, cleaners())

    assert remote.stopped == [fence.tag]
