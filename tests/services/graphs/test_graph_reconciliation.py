"""The loop reconciliation with real processes: orphans, missing servers, drift, outages; and its decisions as tables."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from factories import rows, value
from graph_factories import a_pass, a_tick, get, many_running, ready_snapshot, running_instance, tell
from holdfast.schedule.tick import Place
from holdfast.services.graphs.figures import read as read_metrics
from holdfast.services.graphs.instances.moving import Moved
from holdfast.services.graphs.instances.rows import Instance
from holdfast.services.graphs.loops import drift
from holdfast.services.graphs.loops.drift import TooManyFindings, is_orphan, judge
from holdfast.services.graphs.runtimes.interface import Observed, Unknown
from services.graphs.test_local_runtime import spec
from workers import until

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD, YOUNG = NOW - timedelta(hours=1), NOW - timedelta(seconds=5)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def run(conn: Any, database: str, here: Any) -> Any:
    return partial(a_pass, conn, database, "reconciliation")


async def metrics(conn: Any) -> dict[str, float]:
    return {one.name: one.samples[0].value for one in await read_metrics(conn) if len(one.samples) == 1}


async def test_an_orphan_is_removed_by_the_second_pass_that_sees_it(
    conn: Any, runtime: Any, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """R-02, R-06, R-09, E-09, E-10, Z-01, Z-02: planted, detected at ERROR as a bug indicator, and gone with all its parts."""
    await runtime.ensure(spec(4711))

    first = await run()
    assert len(await runtime.observe()) == 1
    assert (await metrics(conn))["orphaned_pods_detected_current"] == 0, "once is no proof"
    with caplog.at_level(logging.INFO):
        second = await run()

    assert (first.fields["orphaned_pods_cleaned"], second.fields["orphaned_pods_cleaned"]) == (0, 1)
    assert (await runtime.observe(), runtime.folders.instances()) == ([], [])
    detected = next(one for one in caplog.records if "orphaned_pod_detected" in one.getMessage())
    assert detected.levelno == logging.ERROR
    assert "BUG_INDICATOR" in detected.getMessage()
    assert any("orphaned_pod_deleted" in one.getMessage() for one in caplog.records)
    found = await metrics(conn)
    assert (found["orphaned_pods_detected"], found["orphaned_pods_cleaned"], found["orphaned_pods_detected_current"]) == (
        1,
        1,
        0,
    )


async def test_an_orphan_that_is_seen_once_and_gone_is_forgotten(conn: Any, runtime: Any, run: Any) -> None:
    """Two passes in a row, not two passes ever."""
    await runtime.ensure(spec(4711, "00000000-0000-0000-0000-000000000001"))
    await run()
    await runtime.remove(4711)
    await run()
    await runtime.ensure(spec(4711, "00000000-0000-0000-0000-000000000001"))

    await run()

    assert len(await runtime.observe()) == 1
    assert await value(conn, "SELECT passes FROM holdfast.graph_suspects") == 1


async def test_of_ten_orphans_eight_are_removed_and_two_fail(
    conn: Any, runtime: Any, run: Any, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R-06, R-10, R-15, S-16: counters 10, 8 and 2, and the pass is a success; each failure is logged at ERROR."""
    planted = [spec(5000 + number) for number in range(10)]
    for one in planted:
        await runtime.ensure(one)
    remove = runtime.remove

    async def two_fail(instance_id: int, **how: Any) -> bool:
        if instance_id in (5003, 5007):
            raise RuntimeError("the process does not end")
        return bool(await remove(instance_id, **how))

    monkeypatch.setattr(runtime, "remove", two_fail)
    await a_tick(conn, place, "reconciliation")

    await a_tick(conn, place, "reconciliation")
    monkeypatch.undo()

    ended = await rows(conn, "SELECT outcome, items, failed_items FROM holdfast.loop_runs ORDER BY id")
    assert ended == [("success", 0, 0), ("success", 8, 2)]
    failures = [one for one in caplog.records if "orphaned_pod_deletion_failed" in one.getMessage()]
    assert [one.levelname for one in failures] == ["ERROR", "ERROR"]
    for instance_id in (5003, 5007):
        assert [f"instance_id={instance_id} " in one.getMessage() for one in failures].count(True) == 1
    found = await metrics(conn)
    assert found["orphaned_pods_detected"] == 10
    assert (found["orphaned_pods_cleaned"], found["orphaned_pods_cleanup_failures"]) == (8, 2)
    assert found["orphaned_pods_detected_current"] == 2
    assert (await run()).fields["orphaned_pods_cleaned"] == 2, "the next pass tries again"
    assert (await metrics(conn))["orphaned_pods_detected"] == 10


async def test_an_instance_whose_process_is_gone_fails(
    conn: Any, database: str, runtime: Any, run: Any, mapping_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """I-07, R-03, R-07, R-10: somebody removed it by hand. UNEXPECTED_TERMINATION, and the message names the process."""
    instance_id = await running_instance(conn, database, mapping_id)
    name = (await get(conn, instance_id)).runtime_name
    await runtime.remove(instance_id)

    result = await run()

    found = await get(conn, instance_id)
    assert (found.status, found.error_code) == ("failed", "UNEXPECTED_TERMINATION")
    assert str(name) in str(found.error)
    assert result.fields["missing_pods_handled"] == 1
    (warned,) = [one for one in caplog.records if "missing_pod_detected" in one.getMessage()]
    assert warned.levelname == "WARNING"
    assert f"instance_id={instance_id} name='{name}'" in warned.getMessage()
    counted = await metrics(conn)
    assert (counted["missing_pods_detected"], counted["missing_pods_handled"]) == (1, 1)


@pytest.mark.parametrize(("says_so", "code"), [({"exit": 3}, "UNEXPECTED_TERMINATION"), ({"allocate_mb": 300}, "OOM_KILLED")])
async def test_an_instance_whose_process_has_ended_fails_and_keeps_its_log(
    conn: Any,
    database: str,
    runtime: Any,
    says: Any,
    run: Any,
    mapping_id: int,
    caplog: pytest.LogCaptureFixture,
    says_so: Any,
    code: str,
) -> None:
    """R-04, R-08: status drift, with the code that the runtime knows."""
    instance_id = await running_instance(conn, database, mapping_id, memory_mb=256)
    name = (await get(conn, instance_id)).runtime_name
    tell(says, instance_id, **says_so)

    async def has_ended() -> bool:
        return (await runtime.look(instance_id)).phase == "failed"

    await until(has_ended)
    result = await run()

    found = await get(conn, instance_id)
    assert (found.status, found.error_code, result.fields["status_drift_fixed"]) == ("failed", code, 1)
    assert "phase Failed" in str(found.error)
    (warned,) = [one for one in caplog.records if "status_drift_detected" in one.getMessage()]
    assert warned.levelname == "WARNING"
    assert f"instance_id={instance_id} name='{name}'" in warned.getMessage()
    assert "the double listens" in await value(conn, "SELECT log_tail FROM holdfast.graph_instances")


async def test_an_outage_of_the_runtime_changes_nothing(
    conn: Any,
    database: str,
    runtime: Any,
    run: Any,
    mapping_id: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """E-08, S-15: unknown is not empty. The pass is skipped, counted and logged."""
    instance_id = await running_instance(conn, database, mapping_id)

    async def unknown() -> Any:
        raise Unknown("the API server does not answer")

    monkeypatch.setattr(runtime, "observe", unknown)

    for _ in range(3):
        result = await run()
        assert (result.items, result.failed, result.skipped) == (0, 0, 1)

    assert (await get(conn, instance_id)).status == "running"
    logged = [one for one in caplog.records if "reconciliation_skipped" in one.getMessage()]
    assert [one.levelname for one in logged] == ["WARNING"] * 3
    assert all("the API server does not answer" in one.getMessage() for one in logged)


async def test_a_list_that_lacks_an_instance_is_checked_by_a_second_look(
    conn: Any, database: str, runtime: Any, run: Any, mapping_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-09: an object that was created after the list was taken is there."""
    instance_id = await running_instance(conn, database, mapping_id)

    async def empty() -> list[Observed]:
        return []

    monkeypatch.setattr(runtime, "observe", empty)
    result = await run()

    assert (result.items, (await get(conn, instance_id)).status) == (0, "running")


async def test_most_instances_missing_at_once_stops_the_pass_unless_an_operator_runs_it(
    conn: Any, here: Any, run: Any, mapping_id: int
) -> None:
    """The circuit breaker: a wrong runtime is more likely than so many losses."""
    await many_running(conn, await ready_snapshot(conn, mapping_id), 30)

    with pytest.raises(TooManyFindings, match="30 of 30"):
        await run()
    assert await value(conn, "SELECT count(*) FROM holdfast.graph_instances WHERE state = 'running'") == 30

    result = await run(manual=True)
    assert result.fields["missing_pods_handled"] == 30


async def test_what_runs_for_a_suspended_instance_is_an_orphan(
    conn: Any, database: str, runtime: Any, run: Any, mapping_id: int
) -> None:
    """R-01, I-08: the database is right."""
    instance_id = await running_instance(conn, database, mapping_id)
    await conn.execute("UPDATE holdfast.graph_instances SET state = 'suspended', suspended_at = now()")

    await run()
    result = await run()

    assert (result.fields["orphaned_pods_cleaned"], await runtime.look(instance_id)) == (1, None)


# ---------------------------------------------------------------------------------------------------------------------
# Decisions
# ---------------------------------------------------------------------------------------------------------------------


def moved(status: str, *, job: str | None = "completed", since: datetime = OLD, token: str = "t") -> Moved:
    fields: dict[str, Any] = dict.fromkeys(Instance.__dataclass_fields__)
    fields |= {
        "id": 1,
        "status": status,
        "start_token": token,
        "state_since": since,
        "runtime_name": "pid 1",
        "snapshot_id": 1,
        "created_at": OLD,
    }
    return Moved(Instance(**fields), job, NOW)


def observed(phase: str = "running", *, token: str = "t", created: datetime = OLD, **more: Any) -> Observed:
    given = {"instance_id": 1, "start_token": token, "fence_token": 1, "phase": phase, "created_at": created}
    return Observed(**given, **more)


@pytest.mark.parametrize(
    ("row", "seen", "kind"),
    [
        (moved("running"), observed(), None),
        (moved("running"), None, "missing"),
        (moved("running", since=YOUNG), None, None),  # a newborn may be younger than the list
        (moved("running"), observed("failed"), "drift"),
        (moved("running"), observed("failed", oom=True), "drift"),
        (moved("starting", job="submitted"), observed("failed"), None),  # its job sees it
        (moved("starting"), observed("failed"), "drift"),  # E-12 b
        (moved("starting"), None, None),  # the loop instance_orchestration starts it again
        (moved("resuming"), observed("failed"), "drift"),
        (moved("suspended"), None, None),
        (moved("failed"), None, None),
        (moved("stopping"), None, None),
        (moved("waiting_for_snapshot"), None, None),
    ],
)
def test_which_instances_are_missing_or_drift(row: Moved, seen: Observed | None, kind: str | None) -> None:
    """R-03, R-04, Z-01."""
    found = judge(row, seen, listed_at=NOW, min_age=MINUTE)

    assert (found.kind if found else None) == kind
    if found is not None:
        assert found.code == ("OOM_KILLED" if seen is not None and seen.oom else "UNEXPECTED_TERMINATION")


@pytest.mark.parametrize(
    ("seen", "row", "orphan"),
    [
        (observed(), None, True),
        (observed(created=YOUNG), None, False),  # E-09: a newborn survives
        (observed("stopping"), None, False),
        (observed(), moved("running"), False),
        (observed(token="old"), moved("running"), True),
        (observed(token="old"), moved("starting", job="running"), False),  # its job replaces it
        (observed(), moved("suspended"), True),
        (observed(), moved("suspended", job="running"), False),  # its job removes it
        (observed(), moved("failed"), True),
        (observed("failed"), moved("failed"), False),  # its log may still be read
        (observed(), moved("stopping"), False),
        (observed("failed"), None, True),
    ],
)
def test_which_objects_are_orphans(seen: Observed, row: Moved | None, orphan: bool) -> None:
    """R-02, Z-01."""
    assert is_orphan(seen, row, listed_at=NOW, min_age=MINUTE) is orphan


@pytest.mark.parametrize(("found", "total", "stops"), [(19, 19, False), (20, 40, False), (21, 40, True), (20, 20, True)])
def test_when_the_circuit_breaker_stops_a_pass(found: int, total: int, stops: bool) -> None:
    def check(*, is_manual: bool) -> bool:
        try:
            drift.refuse_too_many("x", found, total, is_manual=is_manual)
        except TooManyFindings:
            return True
        return False

    assert (check(is_manual=False), check(is_manual=True)) == (stops, False)
