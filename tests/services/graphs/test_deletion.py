"""Deletion: the graph server first, the row last, gone when the response arrives; and what a crash at each step leaves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

import programs
from factories import rows, value
from graph_factories import (
    get,
    new_instance,
    ready_snapshot,
    running_instance,
    status,
    tell,
    until_status,
    worker,
)
from holdfast.jobs.config import set_value
from holdfast.services.graphs import limits
from workers import until

Client = httpx2.AsyncClient
LIVE = "SELECT count(*) FROM holdfast.jobs WHERE state IN ('pending', 'blocked', 'running', 'submitted')"
UNCLEAN = "SELECT count(*) FROM holdfast.effects WHERE state IN ('planned', 'made', 'unwanted')"


async def nothing_is_left(conn: Any, runtime: Any, instance_id: int) -> bool:
    """No process, no folder, no row, no use of the snapshot, no job and no effect."""
    gone = await status(conn, instance_id) is None and await runtime.observe() == []
    return gone and not await value(conn, LIVE) and not await value(conn, UNCLEAN)


async def test_delete_answers_when_everything_is_gone(
    analyst: Client, conn: Any, database: str, runtime: Any, mapping_id: int
) -> None:
    """I-04: no row, no process, no folder when the response arrives; the row was the last of them; the snapshot is free."""
    instance_id = await running_instance(conn, database, mapping_id)
    snapshot_id = (await get(conn, instance_id)).snapshot_id
    remove, when_removed = runtime.remove, []

    async def noted(number: int, **how: Any) -> Any:
        is_gone = await remove(number, **how)
        when_removed.append((is_gone, await status(conn, number)))
        return is_gone

    runtime.remove = noted
    async with worker(database):
        gone = await analyst.delete(f"/api/instances/{instance_id}")
        at_once = (await status(conn, instance_id), await runtime.observe(), runtime.folders.instances())

    assert (gone.status_code, gone.content, at_once) == (204, b"", (None, [], []))
    assert when_removed[0] == (True, "stopping")
    assert await rows(conn, "SELECT * FROM holdfast.snapshot_uses") == []
    assert await value(conn, "SELECT last_used_at IS NOT NULL FROM holdfast.snapshots WHERE id = %s", snapshot_id)
    assert (await analyst.delete(f"/api/instances/{instance_id}")).status_code == 404
    audited = "SELECT object FROM holdfast.audit WHERE action = 'instances.change' AND outcome = 'done'"
    assert await rows(conn, audited) == [(f"instance/{instance_id}",)], "the instance, and not the job that deletes it"


async def test_a_deletion_that_takes_longer_answers_with_its_job(
    analyst: Client, conn: Any, database: str, here: Any, runtime: Any, mapping_id: int
) -> None:
    """Without a worker nothing removes it in time. The second request continues the same deletion."""
    instance_id = await running_instance(conn, database, mapping_id)
    here.longest_delete = timedelta(seconds=0.3)

    begun = await analyst.delete(f"/api/instances/{instance_id}")
    again = await analyst.delete(f"/api/instances/{instance_id}")

    assert (begun.status_code, begun.headers["Location"]) == (202, f"/api/jobs/{begun.json()['data']['job_id']}")
    assert again.json() == begun.json()
    assert (await analyst.get(f"/api/instances/{instance_id}")).json()["data"]["status"] == "stopping"
    async with worker(database):
        await until(lambda: nothing_is_left(conn, runtime, instance_id))


@pytest.mark.more
async def test_delete_in_any_state_leaves_nothing(
    analyst: Client, conn: Any, database: str, says: Path, runtime: Any, mapping_id: int
) -> None:
    """Also while its snapshot is exported, which is cancelled, and while it loads."""
    snapshot_id = await ready_snapshot(conn, mapping_id)
    waiting = await new_instance(conn, mapping_id=mapping_id)
    loading = await new_instance(conn, snapshot_id=snapshot_id)
    tell(says, loading, phase="loading")
    async with worker(database):

        async def loads() -> bool:
            return (await get(conn, loading)).address is not None

        await until(loads)
        exported = (await get(conn, waiting)).snapshot_id
        answers = [(await analyst.delete(f"/api/instances/{one}")).status_code for one in (waiting, loading)]

        assert answers == [204, 204]
        await until(lambda: nothing_is_left(conn, runtime, loading))
        assert await value(conn, "SELECT state FROM holdfast.snapshots WHERE id = %s", exported) == "cancelled"


async def test_a_snapshot_that_others_made_is_not_cancelled(
    conn: Any, analyst: Client, database: str, here: Any, mapping_id: int
) -> None:
    snapshot_id = await ready_snapshot(conn, mapping_id)
    instance_id = await new_instance(conn, snapshot_id=snapshot_id)
    async with worker(database):
        await analyst.delete(f"/api/instances/{instance_id}")

    assert await value(conn, "SELECT state FROM holdfast.snapshots WHERE id = %s", snapshot_id) == "ready"


@pytest.mark.more
async def test_bulk_deletion_needs_a_filter_a_dry_run_and_the_right_count(
    ops: Client, analyst: Client, conn: Any, database: str, runtime: Any, mapping_id: int
) -> None:
    """I-05: the same path for each instance."""
    await set_value(conn, limits.PER_OWNER, 20, by="test")
    snapshot_id = await ready_snapshot(conn, mapping_id)
    made = [await new_instance(conn, snapshot_id=snapshot_id, name=f"e2e {n}") for n in range(3)]
    kept = await new_instance(conn, snapshot_id=snapshot_id, name="kept")
    asked = {"filter": {"name_prefix": "e2e"}, "reason": "clean up"}

    dry = await ops.post("/api/instances/bulk-delete", json=asked)
    no_count = await ops.post("/api/instances/bulk-delete", json={**asked, "dry_run": False})
    wrong_count = await ops.post("/api/instances/bulk-delete", json={**asked, "dry_run": False, "expected_count": 2})
    no_filter = await ops.post("/api/instances/bulk-delete", json={**asked, "filter": {}})
    not_allowed = await analyst.post("/api/instances/bulk-delete", json=asked)

    assert (dry.status_code, dry.json()["data"]["matched"]) == (200, 3)
    assert [one.status_code for one in (no_count, wrong_count, no_filter, not_allowed)] == [422, 409, 422, 403]
    assert await value(conn, "SELECT count(*) FROM holdfast.graph_instances") == 4
    async with worker(database):
        done = await ops.post("/api/instances/bulk-delete", json={**asked, "dry_run": False, "expected_count": 3})
        assert (done.status_code, len(done.json()["data"]["jobs"])) == (202, 3)
        for instance_id in made:
            await until_status(conn, instance_id, None)
        await until_status(conn, kept, "running")
    assert [one.instance_id for one in await runtime.observe()] == [kept]


async def test_a_start_that_goes_on_while_it_is_deleted_cannot_bring_the_instance_back(
    conn: Any, database: str, says: Path, runtime: Any, here: Any, analyst: Client, mapping_id: int
) -> None:
    """The start job is inside `ensure` when the deletion begins. The removal waits for its lock, or the start is cancelled."""
    snapshot_id = await ready_snapshot(conn, mapping_id)
    inside, go = asyncio.Event(), asyncio.Event()
    ensure = runtime.ensure

    async def slow(spec: Any) -> Any:
        inside.set()
        await go.wait()
        return await ensure(spec)

    runtime.ensure = slow
    async with worker(database):
        instance_id = await new_instance(conn, snapshot_id=snapshot_id)
        await asyncio.wait_for(inside.wait(), 60)
        deleting = asyncio.create_task(analyst.delete(f"/api/instances/{instance_id}"))

        async def is_asked() -> bool:
            return await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE kind = 'graphs.remove'") == 1

        await until(is_asked)
        go.set()

        assert (await deleting).status_code == 204
        await until(lambda: nothing_is_left(conn, runtime, instance_id))


# ---------------------------------------------------------------------------------------------------------------------
# Crashes
# ---------------------------------------------------------------------------------------------------------------------

EVERYTHING = "HOLDFAST_TEST_EVERYTHING" in os.environ
POINTS = (
    "graphs.after_ensure",
    "graphs.after_remove",
    "graphs.before_ensure",
    "graphs.before_remove",
    "complete.in_tx_after_update",
    "complete.after_commit_before_ack",
    "publish.in_tx_after",
)
QUICK = {"HOLDFAST_POLL_SECONDS": "0.2", "HOLDFAST_BEAT_SECONDS": "1", "HOLDFAST_LOG_FORMAT": "json"}


@asynccontextmanager
async def process(database: str, log: Path, runtime: Any, says: Path, crash_at: str | None) -> AsyncIterator[programs.Started]:
    """`holdfast worker run` for graphs, in a process group of its own. Its graph servers outlive it."""
    environment = {
        **os.environ,
        **QUICK,
        "HOLDFAST_GRAPHS_DIR": str(runtime.folders.root),
        "HOLDFAST_EXPORT_DIRS": str(log.parent),
        "GRAPH_DOUBLE_SAYS": str(says),
        "PYTHONPATH": str(Path(__file__).parent),
    } | ({"HOLDFAST_CRASH_AT": crash_at} if crash_at else {})
    words = ["worker", "run", "--import", "double_runtime", "--dsn", database]
    with log.open("ab") as said:
        started = programs.start(*words, env=environment, folder=log.parent, out=said, err=said, session=True)
    try:
        yield started
    finally:
        started.kill_group()


@pytest.mark.more
@pytest.mark.processes
@pytest.mark.parametrize("point", POINTS if EVERYTHING else POINTS[:2])
async def test_a_worker_that_is_killed_anywhere_leaks_nothing(
    analyst: Client, conn: Any, database: str, runtime: Any, says: Path, tmp_path: Path, mapping_id: int, point: str
) -> None:
    """I-04, R-10: create, run and delete an instance while the worker gets SIGKILL here. In the end nothing is left."""
    log = tmp_path / "worker.log"
    snapshot_id = await ready_snapshot(conn, mapping_id)
    instance_id = await new_instance(conn, snapshot_id=snapshot_id)

    async def reaches(wanted: str) -> bool:
        return await status(conn, instance_id) == wanted

    async with process(database, log, runtime, says, point):
        await until(lambda: reaches("running"))
        assert [one.instance_id for one in await runtime.observe()] == [instance_id], log.read_text()[-3000:]
        await analyst.delete(f"/api/instances/{instance_id}")

        await until(lambda: nothing_is_left(conn, runtime, instance_id))
    assert '"executor_died"' in log.read_text(), "the point was never reached"
