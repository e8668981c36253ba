"""The loop resource_monitor: sustained use, cooldown, steps, caps, and a restart with more memory after OOM_KILLED."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from factories import rows, value
from graph_factories import (
    a_pass,
    get,
    many_running,
    ready_snapshot,
    running_instance,
    status,
    tell,
    until_status,
    worker,
)
from holdfast.jobs.config import set_value
from holdfast.services.graphs import limits
from holdfast.services.graphs.instances import report, resize
from holdfast.services.graphs.instances.report import Report
from holdfast.services.graphs.instances.sizing import memory_for
from holdfast.services.graphs.instances.usage import History, Sample
from holdfast.services.graphs.loops.growth import Growth, decide, level_of
from holdfast.services.graphs.runtimes.interface import Observed, Unknown
from workers import until

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MB = 1024 * 1024


@pytest.fixture
def run(conn: Any, database: str, here: Any) -> Any:
    return partial(a_pass, conn, database, "resource_monitor")


async def sample(conn: Any, instance_id: int, *shares: tuple[int, float]) -> None:
    """Samples so many seconds ago, at this share of the limit."""
    for ago, share in shares:
        await conn.execute(
            """INSERT INTO holdfast.graph_samples SELECT id, start_token, clock_timestamp() - make_interval(secs => %(ago)s),
               (memory_mb::bigint * 1048576 * %(share)s)::bigint, memory_mb FROM holdfast.graph_instances WHERE id = %(id)s""",
            {"ago": ago, "share": share, "id": instance_id},
        )


def observe_much(runtime: Any, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """The runtime says that every graph server uses this share of its limit."""
    observe = runtime.observe

    async def much() -> Any:
        return [replace(one, memory_bytes=int(share * (one.memory_limit_mb or 0) * MB)) for one in await observe()]

    monkeypatch.setattr(runtime, "observe", much)


async def no_live_jobs(conn: Any) -> bool:
    return not await value(
        conn, "SELECT count(*) FROM holdfast.jobs WHERE state IN ('pending','blocked','running','submitted')"
    )


async def test_sustained_use_grows_an_instance_in_place_once_per_cooldown(
    conn: Any, database: str, runtime: Any, says: Any, run: Any, mapping_id: int
) -> None:
    """M-01, M-02, S-14, E-14: measured on the process, decided from stored samples, recorded as event, not repeated soon."""
    instance_id = await running_instance(conn, database, mapping_id, memory_mb=256)
    tell(says, instance_id, allocate_mb=200)

    async def uses_much() -> bool:
        seen = await runtime.look(instance_id)
        return (seen.memory_bytes or 0) > 0.8 * 256 * MB

    await until(uses_much)
    assert (await run()).items == 0, "one sample is not sustained"
    assert (await get(conn, instance_id)).memory_bytes > 200 * MB
    await sample(conn, instance_id, (125, 0.85), (60, 0.85))

    assert (await run()).items == 1
    async with worker(database):
        await until(lambda: no_live_jobs(conn))

    found = await get(conn, instance_id)
    assert (found.memory_mb, found.status) == (512, "running")
    assert (await runtime.look(instance_id)).memory_limit_mb == 512
    (event,) = await rows(conn, "SELECT details FROM holdfast.graph_events WHERE event_type = 'memory_upgraded'")
    assert (event[0]["old_mb"], event[0]["new_mb"], event[0]["because"]) == (256, 512, "automatic: proactive")
    await sample(conn, instance_id, (125, 0.95), (60, 0.95), (1, 0.95))
    assert (await run()).items == 0, "within the cooldown"
    assert await value(conn, "SELECT sum(count) FROM holdfast.tallies WHERE name = 'resource_monitor_proactive_resizes'") == 1


async def test_without_metrics_of_the_runtime_a_recent_report_of_the_graph_server_counts(
    conn: Any, database: str, runtime: Any, run: Any, mapping_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster without a metrics server: the graph server itself says what it uses. An old report is no sample."""
    instance_id = await running_instance(conn, database, mapping_id, memory_mb=256)
    token, observe = (await get(conn, instance_id)).start_token, runtime.observe

    async def without_memory() -> Any:
        return [replace(one, memory_bytes=None) for one in await observe()]

    monkeypatch.setattr(runtime, "observe", without_memory)
    await report.store(conn, instance_id, Report(start_token=token, memory_bytes=220 * MB))
    await conn.execute("UPDATE holdfast.graph_instances SET reported_at = now() - interval '2 minutes'")
    await run()
    old = await value(conn, "SELECT count(*) FROM holdfast.graph_samples")
    await report.store(conn, instance_id, Report(start_token=token, memory_bytes=220 * MB))

    await run()

    assert old == 0
    assert await rows(conn, "SELECT memory_bytes, limit_mb FROM holdfast.graph_samples") == [(220 * MB, 256)]
    await sample(conn, instance_id, (125, 0.85), (60, 0.85))
    assert (await run()).items == 1, "its memory grows as with a metrics server"


async def test_an_instance_that_ran_out_of_memory_starts_again_with_twice_as_much(
    conn: Any, database: str, runtime: Any, says: Any, run: Any, mapping_id: int
) -> None:
    """M-02: OOM recovery of a running one, seen by the monitor itself."""
    instance_id = await running_instance(conn, database, mapping_id, memory_mb=256)
    tell(says, instance_id, allocate_mb=300)

    async def has_ended() -> bool:
        return bool((await runtime.look(instance_id)).oom)

    await until(has_ended)
    tell(says, instance_id)

    assert (await run()).items == 1

    assert await status(conn, instance_id) == "starting"
    async with worker(database):
        await until_status(conn, instance_id, "running")
    found = await get(conn, instance_id)
    assert (found.memory_mb, found.starts) == (512, 2)
    kinds = [row[0] for row in await rows(conn, "SELECT event_type FROM holdfast.graph_events ORDER BY id")]
    assert kinds == ["created", "started", "failed", "oom_recovered", "started"]
    assert len(await runtime.observe()) == 1


async def test_growth_stays_within_the_limits_of_the_owner(
    conn: Any, database: str, runtime: Any, run: Any, mapping_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-14, E-17: automatic growth is admitted like any other; a refusal changes nothing."""
    instance_id = await running_instance(conn, database, mapping_id, memory_mb=2048)
    await set_value(conn, limits.OWNER_MEMORY, 3, by="test")
    observe_much(runtime, monkeypatch, 0.95)
    await sample(conn, instance_id, (70, 0.95))

    refused = await run()

    assert (refused.items, refused.failed) == (0, 0)
    assert (await get(conn, instance_id)).wanted_memory_mb is None
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE kind = 'graphs.resize'") == 0
    await set_value(conn, limits.OWNER_MEMORY, 4, by="test")
    assert (await run()).items == 1
    assert (await get(conn, instance_id)).wanted_memory_mb == 4096
    assert await value(conn, "SELECT sum(count) FROM holdfast.tallies WHERE name = 'resource_monitor_urgent_resizes'") == 1


async def test_reports_and_requests_of_users_do_not_touch_the_cooldown(
    conn: Any, database: str, runtime: Any, run: Any, mapping_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-14: the cooldown counts the monitor's own events only."""
    instance_id = await running_instance(conn, database, mapping_id, memory_mb=256)
    await resize.request(conn, instance_id, memory_mb=512)
    async with worker(database):
        await until(lambda: no_live_jobs(conn))
    await conn.execute("UPDATE holdfast.graph_instances SET updated_at = clock_timestamp()")
    observe_much(runtime, monkeypatch, 0.95)
    await sample(conn, instance_id, (65, 0.95))

    assert (await run()).items == 1


async def test_an_outage_of_the_runtime_takes_no_samples(
    conn: Any, database: str, runtime: Any, run: Any, mapping_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running_instance(conn, database, mapping_id)

    async def unknown() -> Any:
        raise Unknown("no answer")

    monkeypatch.setattr(runtime, "observe", unknown)

    assert (await run()).skipped == 1
    assert await value(conn, "SELECT count(*) FROM holdfast.graph_samples") == 0


async def test_a_sample_that_cannot_be_stored_does_not_keep_the_others(
    conn: Any, runtime: Any, run: Any, mapping_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-16: a runtime that reports more bytes than the column holds."""
    await many_running(conn, await ready_snapshot(conn, mapping_id), 3)
    made = await rows(conn, "SELECT id, start_token::text FROM holdfast.graph_instances ORDER BY id")

    async def observe() -> list[Observed]:
        return [
            Observed(
                instance_id=instance_id,
                start_token=token,
                fence_token=1,
                phase="running",
                created_at=NOW,
                memory_bytes=2**63 if instance_id == made[1][0] else MB,
            )
            for instance_id, token in made
        ]

    monkeypatch.setattr(runtime, "observe", observe)

    result = await run()

    assert (result.items, result.failed) == (0, 1)
    assert await rows(conn, "SELECT instance_id FROM holdfast.graph_samples ORDER BY 1") == [(made[0][0],), (made[2][0],)]


async def test_sizing_can_be_switched_off(conn: Any, here: Any, run: Any, mapping_id: int) -> None:
    here.sizing = False

    assert (await run()).fields == {"skipped_because": "HOLDFAST_GRAPH_SIZING is false"}


def samples(*given: tuple[int, float]) -> list[Sample]:
    return [Sample(NOW - timedelta(seconds=ago), int(share * 1000 * MB), 1000) for ago, share in given]


@pytest.mark.parametrize(
    ("given", "level"),
    [
        (samples(), None),
        (samples((0, 0.99)), None),
        (samples((0, 0.95), (60, 0.95)), "urgent"),
        (samples((0, 0.95), (59, 0.95)), None),
        (samples((0, 0.85), (60, 0.85), (120, 0.85)), "proactive"),
        (samples((0, 0.85), (60, 0.85)), None),
        (samples((0, 0.85), (60, 0.79), (120, 0.85)), None),  # not sustained
        (samples((0, 0.85), (120, 0.85), (300, 0.85)), "proactive"),
        (samples((0, 0.85), (200, 0.85)), None),  # a gap says nothing
        (samples((0, 0.5), (60, 0.95), (120, 0.95)), None),  # it is over
        (samples((0, 0.81), (60, 0.81), (120, 0.81)), "proactive"),
        (samples((0, 0.8), (60, 0.8), (120, 0.8)), None),  # exactly 80 % is not above it
        (samples((0, 0.91), (60, 0.91)), "urgent"),
        (samples((0, 0.9), (60, 0.9)), None),
    ],
)
def test_how_urgently_memory_is_needed(given: list[Sample], level: str | None) -> None:
    """M-02: above 80 % for 2 minutes, above 90 % for 1 minute."""
    assert level_of(given) == level


@pytest.mark.parametrize(
    ("memory", "history", "outcome"),
    [
        (2048, History(0, None), Growth("urgent", 4096)),
        (20_000, History(0, None), Growth("urgent", 32_768)),
        (32_768, History(0, None), "instance_memory"),
        (2048, History(3, NOW - timedelta(days=1)), "steps"),
        (2048, History(2, NOW - timedelta(seconds=299)), "cooldown"),
        (2048, History(2, NOW - timedelta(seconds=300)), Growth("urgent", 4096)),
    ],
)
def test_how_much_memory_an_instance_gets(memory: int, history: History, outcome: Any) -> None:
    """M-02: twice as much, at most 32 GiB, at most three steps, 300 s apart."""
    assert decide("urgent", memory, history, now=NOW, most_mb=32_768) == outcome


@pytest.mark.parametrize(("size_gb", "memory_gb"), [(0, 2), (0.5, 2), (1, 3), (4, 8), (16, 30), (100, 32)])
def test_memory_by_the_size_of_a_snapshot(size_gb: float, memory_gb: int) -> None:
    """A.6: 1.2 times the size and 0.5 GiB, half as much again, at least 2 and at most 32 GiB."""
    assert memory_for(int(size_gb * 1024**3), least_mb=2048, most_mb=32_768) == memory_gb * 1024
