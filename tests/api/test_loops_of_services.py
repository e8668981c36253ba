"""The six loops of the platform: each is registered and may be triggered, and their intervals are settings."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx2
import pytest

from factories import rows, value
from holdfast import catalog
from holdfast.apps.scheduler import with_intervals
from holdfast.schedule.scheduler import Scheduler, SchedulerOptions
from holdfast.schedule.term import ensure
from holdfast.settings import settings
from loop_factories import loop, make_due, until

SIX = ("reconciliation", "lifecycle", "export_reconciliation", "schema_cache", "instance_orchestration", "resource_monitor")


async def test_each_service_loop_can_be_triggered_and_no_other_name(ops: httpx2.AsyncClient, conn: Any) -> None:
    """P-05"""
    await ensure(conn, catalog.loops(settings()))

    for name in SIX:
        answer = await ops.post("/api/ops/jobs/trigger", json={"job_name": name, "reason": "after a deploy"})
        assert (answer.status_code, answer.json()["data"]["job_name"]) == (200, name)
    refused = await ops.post("/api/ops/jobs/trigger", json={"job_name": "nothing", "reason": "after a deploy"})

    assert refused.status_code == 404
    assert "nothing" in refused.json()["detail"]
    queued = await rows(conn, "SELECT name FROM holdfast.loops WHERE triggered_at IS NOT NULL")
    assert {name for (name,) in queued} == set(SIX)


async def test_requests_are_answered_while_the_scheduler_beside_them_fails(
    viewer: httpx2.AsyncClient, conn: Any, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """S-18: its failure is logged as critical, and its loops go on when the cause is gone."""
    options = SchedulerOptions(look=timedelta(milliseconds=20), connections=2)

    def is_reported() -> bool:
        return any(one.levelname == "CRITICAL" and "scheduler_failed" in one.getMessage() for one in caplog.records)

    async def passes() -> int:
        return int(await value(conn, "SELECT count(*) FROM holdfast.loop_runs WHERE outcome = 'success'"))

    async with Scheduler(database, [loop()], options):
        await until(passes)
        await conn.execute("ALTER TABLE holdfast.loops RENAME TO gone")
        try:
            await until(is_reported)
            assert [(await viewer.get(path)).status_code for path in ("/api/jobs", "/health")] == [200, 200]
        finally:
            await conn.execute("ALTER TABLE holdfast.gone RENAME TO loops")
        before = await passes()
        await make_due(conn)

        async def goes_on() -> bool:
            return await passes() > before

        await until(goes_on)


def test_the_interval_of_instance_orchestration_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """G-02"""
    assert interval_of("instance_orchestration") == timedelta(seconds=30)

    monkeypatch.setenv("HOLDFAST_INSTANCE_ORCHESTRATION_JOB_INTERVAL_SECONDS", "45")
    settings.cache_clear()

    assert interval_of("instance_orchestration") == timedelta(seconds=45)


def interval_of(name: str) -> timedelta:
    """As the scheduler of this process would run it."""
    (loop,) = [loop for loop in with_intervals(catalog.loops(settings()), settings().intervals) if loop.name == name]
    assert loop.every is not None
    return loop.every
