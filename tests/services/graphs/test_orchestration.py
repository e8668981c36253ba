"""The loop instance_orchestration: instances that no job moves are moved on; and its decisions as a table."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from factories import value
from graph_factories import (
    a_pass,
    fail_exports,
    finish_exports,
    get,
    new_instance,
    ready_snapshot,
    running_instance,
    status,
    until_status,
    worker,
)
from holdfast.services.exports.offers import SnapshotHead, SnapshotState
from holdfast.services.graphs.instances import delete
from holdfast.services.graphs.loops.orchestration import Step, decide
from holdfast.services.graphs.runtimes.interface import Unknown
from services.graphs.test_graph_reconciliation import moved

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def run(conn: Any, database: str, here: Any) -> Any:
    return partial(a_pass, conn, database, "instance_orchestration")


async def lose_job(conn: Any, instance_id: int) -> None:
    """The job that moves the instance is gone, as if an operator had removed it."""
    await conn.execute("UPDATE holdfast.graph_instances SET job_id = 999999 WHERE id = %s", [instance_id])


async def test_a_waiting_instance_without_a_job_gets_one_that_waits_for_the_exports(
    conn: Any, database: str, run: Any, mapping_id: int
) -> None:
    """O-01, O-04, O-07, E-12 e: nothing waits for a human."""
    instance_id = await new_instance(conn, mapping_id=mapping_id)
    snapshot_id = (await get(conn, instance_id)).snapshot_id
    assert (await run()).items == 0, "its job is alive"
    await lose_job(conn, instance_id)

    assert (await run()).fields["started"] == 1

    assert (await get(conn, instance_id)).status == "waiting_for_snapshot"
    async with worker(database):
        await finish_exports(conn, snapshot_id)
        await until_status(conn, instance_id, "running")
    assert await value(conn, "SELECT sum(count) FROM holdfast.tallies WHERE name = 'instances_transitioned_to_starting'") == 1


async def test_a_start_without_a_job_is_started_again_under_a_new_token(
    conn: Any, database: str, run: Any, runtime: Any, mapping_id: int
) -> None:
    """E-12 a, g: the status was changed and the action never came."""
    instance_id = await new_instance(conn, snapshot_id=await ready_snapshot(conn, mapping_id))
    before = await get(conn, instance_id)
    await lose_job(conn, instance_id)
    await conn.execute("UPDATE holdfast.jobs SET state = 'cancelled', finished_at = now() WHERE id = %s", [before.job_id])

    await run()

    async with worker(database):
        await until_status(conn, instance_id, "running")
    assert (await get(conn, instance_id)).start_token != before.start_token
    assert len(await runtime.observe()) == 1


async def test_a_deletion_without_a_job_is_continued(conn: Any, database: str, run: Any, runtime: Any, mapping_id: int) -> None:
    instance_id = await running_instance(conn, database, mapping_id)
    job_id = await delete.begin(conn, instance_id, actor="test")
    await conn.execute(
        "UPDATE holdfast.jobs SET state = 'cancelled', finished_at = now(), cause = 'cancelled' WHERE id = %s", [job_id]
    )

    assert (await run()).fields["removed"] == 1

    async with worker(database):
        await until_status(conn, instance_id, None)
    assert await runtime.observe() == []


async def test_an_instance_whose_snapshot_failed_while_its_job_was_lost_fails(
    conn: Any, run: Any, mapping_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """O-05, O-10: and an error with one does not stop the others. The log has no secret, whatever Postgres says."""
    broken, fine = [await new_instance(conn, mapping_id=mapping_id) for _ in range(2)]
    for instance_id in (broken, fine):
        await fail_exports(conn, (await get(conn, instance_id)).snapshot_id)
        await lose_job(conn, instance_id)
    hostile = f"ADD CONSTRAINT hostile CHECK (id <> {broken} OR state <> 'failed')"
    await conn.execute(f"ALTER TABLE holdfast.graph_instances {hostile}")
    try:
        result = await run()
    finally:
        await conn.execute("ALTER TABLE holdfast.graph_instances DROP CONSTRAINT hostile")

    assert (result.failed, result.fields["failed_instances"]) == (1, 1)
    assert "Failing row contains" in caplog.text
    assert (await get(conn, broken)).secret not in caplog.text
    assert [await status(conn, one) for one in (broken, fine)] == ["waiting_for_snapshot", "failed"]
    assert (await get(conn, fine)).error == "Snapshot failed: node Customer: no such table"
    await run()
    assert await status(conn, broken) == "failed"


def head(state: SnapshotState, *, deleting: bool = False) -> SnapshotHead:
    return SnapshotHead(1, "s", "o", 1, 1, state, "no such table", 1, deleting, NOW)


R = SnapshotState


@pytest.mark.parametrize(
    ("row", "snapshot", "step", "why"),
    [
        (moved("waiting_for_snapshot", job="blocked"), head(R.CREATING), Step.WAIT, None),
        (moved("waiting_for_snapshot", job="pending"), head(R.FAILED), Step.WAIT, None),  # its job sees it
        (moved("waiting_for_snapshot"), head(R.READY), Step.START, None),
        (moved("waiting_for_snapshot", job=None), head(R.PENDING), Step.START, None),
        (moved("waiting_for_snapshot"), head(R.FAILED), Step.FAIL, "Snapshot failed: no such table"),
        (moved("waiting_for_snapshot"), head(R.CANCELLED), Step.FAIL, "Snapshot creation was cancelled"),
        (moved("waiting_for_snapshot"), None, Step.FAIL, "Pending snapshot was deleted before it could complete"),
        (moved("starting"), head(R.READY, deleting=True), Step.FAIL, "Pending snapshot was deleted before it could complete"),
        (moved("starting", job="submitted"), head(R.READY), Step.WAIT, None),
        (moved("resuming", job=None), head(R.READY), Step.START, None),
        (moved("stopping", job="running"), head(R.READY), Step.WAIT, None),
        (moved("stopping", job="failed"), None, Step.REMOVE, None),
    ],
)
def test_what_is_done_with_an_instance(row: Any, snapshot: SnapshotHead | None, step: Step, why: str | None) -> None:
    """O-03 to O-07."""
    assert decide(row, snapshot) == (step, why)


async def test_a_pod_that_could_not_be_created_is_logged_and_created_later(
    conn: Any, database: str, runtime: Any, mapping_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """O-09: the failure of one creation does not fail the instance."""
    instance_id = await new_instance(conn, snapshot_id=await ready_snapshot(conn, mapping_id))
    ensure = runtime.ensure
    failures = iter([Unknown("the API server does not answer", retry_after=0.05)])

    async def fails_once(given: Any) -> Any:
        for failure in failures:
            raise failure
        return await ensure(given)

    runtime.ensure = fails_once
    with caplog.at_level(logging.WARNING):
        async with worker(database):
            await until_status(conn, instance_id, "running")

    assert [one.levelname for one in caplog.records if "wrapper_pod_creation_failed" in one.getMessage()] == ["WARNING"]
    assert len(await runtime.observe()) == 1
