"""The six loops of the platform: each is registered and may be triggered, and their intervals are settings."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx2
import pytest

from factories import rows
from holdfast import catalog
from holdfast.apps.scheduler import with_intervals
from holdfast.schedule.term import ensure
from holdfast.settings import settings

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
