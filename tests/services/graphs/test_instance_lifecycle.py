"""The loop instance_lifecycle: what expires is deleted by the path of every deletion; what is used or extended stays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from factories import rows, value
from graph_factories import (
    a_pass,
    get,
    many_running,
    new_instance,
    ready_snapshot,
    running_instance,
    status,
    until_status,
    worker,
)
from holdfast.jobs.config import set_value
from holdfast.services.graphs import limits
from holdfast.services.graphs.instances import change, delete, favorites
from holdfast.services.graphs.instances.rows import Instance
from holdfast.services.graphs.loops import pages
from holdfast.services.graphs.loops.lifecycle import TooManyExpired, decide
from holdfast.telemetry.metrics import REGISTRY

MADE = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(hours=24)


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.fixture
def run(conn: Any, database: str, here: Any) -> Any:
    return partial(a_pass, conn, database, "instance_lifecycle")


async def age(conn: Any, instance_id: int, by: str, *columns: str) -> None:
    changes = ", ".join(f"{column} = {column} - %(by)s::interval" for column in columns or ("created_at",))
    await conn.execute(f"UPDATE holdfast.graph_instances SET {changes} WHERE id = %(id)s", {"by": by, "id": instance_id})


@pytest.mark.more
async def test_an_instance_is_deleted_with_its_process_when_its_ttl_is_over(
    conn: Any, database: str, runtime: Any, run: Any, mapping_id: int
) -> None:
    """L-01, L-07, L-10, Z-02: audited as an act of the loop; one that lives longer stays."""
    gone = await running_instance(conn, database, mapping_id, ttl="PT1H")
    kept = await new_instance(conn, snapshot_id=(await get(conn, gone)).snapshot_id, ttl="PT2H")
    await run()
    assert await status(conn, gone) == "running", "an hour has not passed"
    await age(conn, gone, "90 minutes")
    lags = [metric(f"instance_enforcement_lag_seconds_{part}") for part in ("count", "sum")]

    result = await run()

    assert (result.items, result.fields["ttl_terminated"]) == (1, 1)
    assert metric("instance_enforcement_lag_seconds_count") == lags[0] + 1
    assert metric("instance_enforcement_lag_seconds_sum") >= lags[1] + 30 * 60
    async with worker(database):
        await until_status(conn, gone, None)
        await until_status(conn, kept, "running")
    assert [one.instance_id for one in await runtime.observe()] == [kept]
    audited = await rows(conn, "SELECT actor, object, reason FROM holdfast.audit WHERE actor LIKE 'loop:%%'")
    assert audited == [("loop:instance_lifecycle", f"instance/{gone}", "it has expired")]
    assert await value(conn, "SELECT sum(count) FROM holdfast.tallies WHERE name = 'ttl_instances_terminated'") == 1


async def test_an_instance_that_nobody_queries_is_deleted(conn: Any, database: str, run: Any, mapping_id: int) -> None:
    """L-02, E-15: a query counts; without any query its creation does."""
    idle, used = [await running_instance(conn, database, mapping_id, inactivity_timeout="PT1H") for _ in range(2)]
    for instance_id in (idle, used):
        await age(conn, instance_id, "2 hours", "last_activity_at")
    await change.note_activity(conn, used)

    result = await run()

    assert result.fields["inactive_terminated"] == 1
    assert [await status(conn, one) for one in (idle, used)] == ["stopping", "running"]


async def test_what_is_extended_while_the_pass_decides_stays(
    conn: Any, database: str, run: Any, mapping_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-09: the decision is repeated with the row locked."""
    instance_id = await running_instance(conn, database, mapping_id, ttl="PT1H")
    await age(conn, instance_id, "1 hour")
    begin = delete.begin_if

    async def extended_first(tx: Any, number: int, *args: Any, **how: Any) -> Any:
        await change.extend(conn, number, "PT1H")
        return await begin(tx, number, *args, **how)

    monkeypatch.setattr(delete, "begin_if", extended_first)

    result = await run()

    assert (result.items, await status(conn, instance_id)) == (0, "running")


async def test_a_hundred_that_stay_do_not_hide_the_ones_behind(
    conn: Any, here: Any, run: Any, mapping_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-01, L-02, E-15: pages of a hundred by id, and not the first hundred candidates."""
    read, lengths = pages.read_page, []

    async def noted(*given: Any, **how: Any) -> Any:
        page = await read(*given, **how)
        lengths.append(len(page))
        return page

    monkeypatch.setattr(pages, "read_page", noted)
    snapshot_id = await ready_snapshot(conn, mapping_id)
    await many_running(conn, snapshot_id, 230)
    last = await value(conn, "SELECT max(id) FROM holdfast.graph_instances")
    await age(conn, last, "25 hours")

    result = await run()

    assert (result.items, await status(conn, last)) == (1, "stopping")
    assert lengths == [100, 100, 30]


async def test_an_error_with_one_does_not_stop_the_others(
    conn: Any, here: Any, run: Any, mapping_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-09, S-16, E-23: one transaction per instance."""
    snapshot_id = await ready_snapshot(conn, mapping_id)
    made = [await new_instance(conn, snapshot_id=snapshot_id) for _ in range(3)]
    for instance_id in made:
        await age(conn, instance_id, "25 hours")
    begin = delete.begin_if

    async def second_fails(tx: Any, number: int, *args: Any, **how: Any) -> Any:
        if number == made[1]:
            await tx.execute("SELECT 1 / 0")
        return await begin(tx, number, *args, **how)

    monkeypatch.setattr(delete, "begin_if", second_fails)

    before = metric("lifecycle_termination_failures_total", resource_type="instance")

    result = await run()

    assert (result.items, result.failed) == (2, 1)
    assert [await status(conn, one) for one in made] == ["stopping", "starting", "stopping"]
    assert metric("lifecycle_termination_failures_total", resource_type="instance") == before + 1


async def test_most_instances_expired_at_once_stops_the_pass_unless_an_operator_runs_it(
    conn: Any, here: Any, run: Any, mapping_id: int
) -> None:
    await set_value(conn, limits.PER_OWNER, 100, by="test")
    await many_running(conn, await ready_snapshot(conn, mapping_id), 30)
    await conn.execute("UPDATE holdfast.graph_instances SET created_at = created_at - interval '2 days' WHERE id % 4 > 0")

    with pytest.raises(TooManyExpired):
        await run()
    assert await value(conn, "SELECT count(*) FROM holdfast.graph_instances WHERE state = 'stopping'") == 0

    assert (await run(manual=True)).items >= 20


def one(**fields: Any) -> Instance:
    given = {"ttl": None, "inactivity_timeout": None, "created_at": MADE, "last_activity_at": None, "status": "running"}
    base: dict[str, Any] = dict.fromkeys(Instance.__dataclass_fields__)
    return Instance(**(base | given | fields))


@pytest.mark.parametrize(
    ("instance", "at", "because"),
    [
        (one(ttl="PT24H"), MADE + DAY, "ttl"),  # exactly then
        (one(ttl="PT24H"), MADE + DAY - timedelta(microseconds=1), None),
        (one(ttl="P1DT12H"), MADE + 1.5 * DAY, "ttl"),
        (one(ttl=None), MADE + 999 * DAY, None),
        (one(ttl="P1Y"), MADE + 999 * DAY, None),
        (one(ttl="PT24H", status="failed"), MADE + DAY, "ttl"),  # E-15: failed ones do not live for ever
        (one(ttl="PT24H", status="suspended"), MADE + DAY, "ttl"),
        (one(inactivity_timeout="PT1H"), MADE + timedelta(hours=1), "inactivity"),  # never used counts from its creation
        (one(inactivity_timeout="PT1H", last_activity_at=MADE + DAY), MADE + DAY, None),
        (one(inactivity_timeout="PT1H", status="suspended"), MADE + DAY, None),
        (one(inactivity_timeout="PT1H", status="starting"), MADE + DAY, None),
        (one(ttl="PT3H", inactivity_timeout="PT1H"), MADE + DAY, "inactivity"),  # which came first
    ],
)
def test_when_an_instance_has_expired(instance: Instance, at: datetime, because: str | None) -> None:
    """L-06, L-07, Z-01."""
    found = decide(instance, at)

    assert (found.because if found else None) == because


# ---------------------------------------------------------------------------------------------------------------------
# Favourites of what is gone
# ---------------------------------------------------------------------------------------------------------------------

REFUSE_902 = """
    CREATE FUNCTION holdfast.refuse_902() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN IF OLD.resource_id = 902 THEN RAISE EXCEPTION 'favourite 902 is broken'; END IF; RETURN OLD; END $$;
    CREATE TRIGGER refuse_902 BEFORE DELETE ON holdfast.favorites FOR EACH ROW EXECUTE FUNCTION holdfast.refuse_902()
"""


async def expired_with_favorites(conn: Any, mapping_id: int) -> None:
    """An instance that has expired, and favourites of three snapshots that do not exist."""
    await age(conn, await new_instance(conn, snapshot_id=await ready_snapshot(conn, mapping_id)), "25 hours")
    await conn.execute(
        """INSERT INTO holdfast.favorites (username, resource_type, resource_id)
           SELECT 'u', 'snapshot', generate_series(901, 903)"""
    )


async def test_a_favourite_that_cannot_be_removed_does_not_keep_the_others(
    conn: Any, here: Any, run: Any, mapping_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """S-16: one transaction per resource. The instance that the pass has deleted is counted."""
    await expired_with_favorites(conn, mapping_id)
    await conn.execute(REFUSE_902)

    result = await run()

    assert (result.items, result.failed, result.fields["ttl_terminated"]) == (1, 1, 1)
    assert await rows(conn, "SELECT resource_id FROM holdfast.favorites") == [(902,)]
    assert "favourite 902 is broken" in caplog.text


async def test_favourites_that_cannot_be_read_do_not_fail_a_pass_that_has_deleted_instances(
    conn: Any, here: Any, run: Any, mapping_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await expired_with_favorites(conn, mapping_id)

    async def fails(tx: Any, *args: Any) -> Any:
        await tx.execute("SELECT 1 / 0")

    monkeypatch.setattr(favorites, "resources_of_exports", fails)

    result = await run()

    assert (result.items, result.failed, result.fields["ttl_terminated"]) == (1, 1, 1)
