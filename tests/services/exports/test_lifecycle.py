"""The loop lifecycle on real rows and real files: what expires, what is kept, and what a failure leaves."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from export_factories import mapping
from factories import end, rows, take, value
from holdfast.errors import IllegalMove, NotFound
from holdfast.jobs.outcome import Done, Fail
from holdfast.schedule.context import Held, Pass
from holdfast.schedule.registry import Loop
from holdfast.services.exports import measures
from holdfast.services.exports.lifecycle import decide, delete, loop, snapshots
from holdfast.services.exports.lifecycle.decide import ExpiryReason
from holdfast.services.exports.snapshots import change, uses
from holdfast.services.exports.snapshots.create import NewSnapshot, create
from holdfast.settings import settings
from holdfast.stores.port import StoreUnavailable
from loop_factories import LONG, taken, until

Client = httpx2.AsyncClient
WRITTEN = {"rows": 7, "bytes": 70, "files": [], "columns": [], "runtime": "direct"}


def counted(metric: Any) -> float:
    return float(metric._value.get())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HOLDFAST_EXPORT_DIRS", str(tmp_path))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


@pytest.fixture
def borrow(connect: Any) -> Any:
    @asynccontextmanager
    async def borrow() -> Any:
        yield await connect()

    return borrow


@pytest.fixture
async def ctx(conn: Any, database: str, borrow: Any) -> Any:
    """One pass of the loop, under a term of its own."""
    made = Loop(loop.NAME, loop.enforce, every=loop.EVERY, first_run="at_once")
    return Pass(await taken(conn, made), Held(LONG), borrow, database)


DONE = Done(WRITTEN)


async def make(ops: Client, conn: Any, *, ended: Any = DONE, **fields: Any) -> dict[str, Any]:
    """A snapshot that has ended so (None: that goes on), with a file at its place."""
    found = (await ops.get("/api/mappings")).json()["data"]
    owner = found[0] if found else (await ops.post("/api/mappings", json=mapping())).json()["data"]
    answer = await ops.post("/api/snapshots", json={"mapping_id": owner["id"], **fields})
    assert answer.status_code == 202, answer.text
    made = answer.json()["data"]
    for one in made["exports"] if ended else ():
        await end(conn, await take(conn, one["id"]), ended)
    file = Path(made["snapshot"]["location"]) / "nodes" / "Customer" / "attempt-1" / "part-0.parquet"
    file.parent.mkdir(parents=True)
    file.write_text("rows")
    snapshot: dict[str, Any] = made["snapshot"]
    return {**snapshot, "file": file}


async def age(conn: Any, table: str, by: str, column: str = "created_at") -> None:
    await conn.execute(f"UPDATE holdfast.{table} SET {column} = {column} - %s::interval", [by])


async def one_waits(conn: Any) -> None:
    """Come back when a connection of this database waits for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    await until(lambda: value(conn, waiting))


async def ids(conn: Any, table: str = "snapshots") -> list[int]:
    return [row[0] for row in await rows(conn, f"SELECT id FROM holdfast.{table} ORDER BY id")]


async def test_a_snapshot_is_deleted_with_its_files_when_its_ttl_is_over(ops: Client, conn: Any, ctx: Any) -> None:
    """L-03, L-07, L-10, E-15, E-16: one that has a longer one, and one that has none, stay."""
    gone = await make(ops, conn, ttl="PT1H")
    longer, forever = await make(ops, conn, ttl="P7D"), await make(ops, conn)
    await loop.enforce(ctx)
    assert len(await ids(conn)) == 3, "an hour has not passed"
    await age(conn, "snapshots", "1 hour")
    before = counted(measures.snapshots_deleted[ExpiryReason.TTL])
    lag_before = measures.enforcement_lag.labels("snapshot")._sum.get()

    result = await loop.enforce(ctx)

    assert await ids(conn) == [longer["id"], forever["id"]]
    assert (gone["file"].exists(), longer["file"].exists(), forever["file"].exists()) == (False, True, True)
    assert (result.items, result.fields["snapshots_deleted"], result.failed) == (1, 1, 0)
    assert counted(measures.snapshots_deleted[ExpiryReason.TTL]) == before + 1
    assert measures.enforcement_lag.labels("snapshot")._sum.get() > lag_before
    (audited,) = await rows(conn, "SELECT actor, reason, detail ->> 'ttl' FROM holdfast.audit WHERE actor LIKE 'loop:%'")
    assert audited == ("loop:lifecycle", "it has expired", "PT1H")


async def test_a_snapshot_that_nothing_uses_is_deleted_after_its_inactivity_timeout(
    ops: Client, viewer: Client, conn: Any, ctx: Any
) -> None:
    """E-15: to be made, and to have its files asked for, is use; to be in a list is not."""
    used, unused = [await make(ops, conn, inactivity_timeout="P3D") for _ in range(2)]
    for column in ("created_at", "finished_at"):
        await age(conn, "snapshots", "3 days", column)
    assert (await viewer.get(f"/api/snapshots/{used['id']}")).status_code == 200
    await viewer.get("/api/snapshots")
    await viewer.get(f"/api/snapshots/{unused['id']}/progress")
    before = counted(measures.snapshots_deleted[ExpiryReason.INACTIVITY])

    await loop.enforce(ctx)

    assert await ids(conn) == [used["id"]]
    assert counted(measures.snapshots_deleted[ExpiryReason.INACTIVITY]) == before + 1
    await age(conn, "snapshots", "3 days", "last_used_at")
    await loop.enforce(ctx)
    assert await ids(conn) == []


async def test_use_is_written_once_a_minute(ops: Client, conn: Any) -> None:
    made = await make(ops, conn)
    tags = [(await ops.get(f"/api/snapshots/{made['id']}")).headers["ETag"] for _ in range(2)]

    assert tags[0] == tags[1]
    assert await value(conn, "SELECT last_used_at IS NOT NULL FROM holdfast.snapshots")


async def test_what_is_being_made_or_used_is_not_deleted(ops: Client, conn: Any, ctx: Any) -> None:
    """L-03: not while its exports go on, and not while a graph instance uses it."""
    making, used = await make(ops, conn, ended=None, ttl="PT1H"), await make(ops, conn, ttl="PT1H")
    await age(conn, "snapshots", "2 hours")

    await uses.retain(conn, used["id"], "graphs/17")

    result = await loop.enforce(ctx)

    assert await ids(conn) == [making["id"], used["id"]]
    assert making["file"].exists()
    assert used["file"].exists()
    assert (result.items, result.skipped) == (0, 2)


async def test_a_snapshot_that_came_into_use_since_it_was_observed_is_kept(
    ops: Client, conn: Any, ctx: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-03, E-15: the decision is made once more with the row held."""
    made = await make(ops, conn, ttl="PT1H")
    await age(conn, "snapshots", "2 hours")
    count = snapshots.count

    async def used_meanwhile(conn: Any) -> int:
        await uses.retain(conn, made["id"], "graphs/17")
        return await count(conn)

    monkeypatch.setattr(loop, "PARTS", (replace(loop.PARTS[0], count=used_meanwhile), loop.PARTS[1]))

    result = await loop.enforce(ctx)

    assert (result.items, made["file"].exists()) == (0, True)
    assert await value(conn, "SELECT deleting_since FROM holdfast.snapshots") is None


async def test_a_ttl_that_was_extended_since_it_was_observed_counts(ops: Client, conn: Any, ctx: Any) -> None:
    made = await make(ops, conn, ttl="PT1H")
    await age(conn, "snapshots", "2 hours")
    longer = await ops.put(f"/api/snapshots/{made['id']}/lifecycle", json={"ttl": "P1D"})
    assert longer.status_code == 200, longer.text

    assert not await delete.delete_snapshot(ctx, made["id"])
    assert made["file"].exists()


async def test_only_its_owner_and_operators_say_how_long_a_snapshot_lives(ops: Client, as_role: Any, conn: Any) -> None:
    made = await make(ops, conn, ttl="PT1H")
    await conn.execute("UPDATE holdfast.snapshots SET owner = 'token:ada'")
    here = f"/api/snapshots/{made['id']}/lifecycle"
    ada, bob = await as_role("analyst", "ada"), await as_role("analyst", "bob")

    assert (await bob.put(here, json={"ttl": None})).status_code == 403
    assert await value(conn, "SELECT ttl FROM holdfast.snapshots") == "PT1H"
    assert [(await one.put(here, json={"ttl": "P1D"})).status_code for one in (ada, ops)] == [200, 200]


async def test_a_store_that_fails_keeps_the_row_and_the_others_are_deleted(
    ops: Client, conn: Any, ctx: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """L-04, L-09, E-15: the row is the only record of the files, so it stays until they are gone."""
    stuck, other = await make(ops, conn, ttl="PT1H"), await make(ops, conn, ttl="PT1H")
    await age(conn, "snapshots", "2 hours")
    really = delete.remove_place

    async def fail(to: str) -> int:
        if to == stuck["location"]:
            raise StoreUnavailable("no connection")
        return await really(to)

    monkeypatch.setattr(delete, "remove_place", fail)
    before = counted(measures.cleanup_failures), counted(measures.termination_failures.labels("snapshot"))

    result = await loop.enforce(ctx)

    assert (result.items, result.failed, await ids(conn)) == (1, 1, [stuck["id"]])
    assert counted(measures.cleanup_failures) == before[0] + 1
    assert counted(measures.termination_failures.labels("snapshot")) == before[1] + 1
    (logged,) = [one for one in caplog.records if "snapshot_cleanup_failed" in one.getMessage()]
    assert logged.levelname == "ERROR"
    assert f"event='snapshot_cleanup_failed' snapshot_id={stuck['id']}" in logged.getMessage()
    assert not other["file"].exists()

    monkeypatch.setattr(delete, "remove_place", really)
    assert (await loop.enforce(ctx)).items == 1
    assert (await ids(conn), stuck["file"].exists()) == ([], False)


async def test_a_snapshot_that_is_being_deleted_is_neither_retried_nor_extended(ops: Client, conn: Any) -> None:
    made = await make(ops, conn, ended=Fail("no such table"), ttl="PT1H")
    await age(conn, "snapshots", "2 hours")
    async with conn.transaction():
        assert await snapshots.mark(conn, made["id"]) == made["location"]

    retried = await ops.post(f"/api/snapshots/{made['id']}/retry", json={"reason": "test"})
    extended = await ops.put(f"/api/snapshots/{made['id']}/lifecycle", json={"ttl": None})

    assert [retried.status_code, extended.status_code] == [409, 409]
    assert "is being deleted" in retried.json()["detail"]
    assert (await ops.get(f"/api/snapshots/{made['id']}")).json()["data"]["snapshot"]["deleting_since"]


async def test_a_retry_that_holds_the_jobs_is_waited_for(ops: Client, conn: Any, connect: Any, ctx: Any) -> None:
    """E-15: of a retry and an expiry one is first, and the other sees it."""
    made = await make(ops, conn, ended=Fail("no such table"), ttl="PT1H")
    await age(conn, "snapshots", "2 hours")
    theirs = await connect()

    async with theirs.transaction():
        await change.retry(theirs, made["id"], actor="ada", reason="test")
        deleting = asyncio.create_task(delete.delete_snapshot(ctx, made["id"]))
        await one_waits(conn)
    assert await deleting is False

    assert (made["file"].exists(), await value(conn, "SELECT deleting_since FROM holdfast.snapshots")) == (True, None)


async def test_a_place_that_is_not_the_snapshots_own_folder_is_left_alone(
    ops: Client, conn: Any, ctx: Any, folder: Path
) -> None:
    made = await make(ops, conn, ttl="PT1H")
    await conn.execute("UPDATE holdfast.snapshots SET location = %s", [str(folder)])
    await age(conn, "snapshots", "2 hours")

    result = await loop.enforce(ctx)

    assert (result.failed, made["file"].exists(), await ids(conn)) == (1, True, [made["id"]])


async def test_a_mapping_is_deleted_when_its_ttl_is_over_and_it_has_no_snapshots(ops: Client, conn: Any, ctx: Any) -> None:
    """L-05, L-07"""
    with_snapshot = await make(ops, conn)
    without = (await ops.post("/api/mappings", json=mapping(name="other", ttl="P1D"))).json()["data"]
    await ops.put(f"/api/mappings/{with_snapshot['mapping_id']}/lifecycle", json={"ttl": "P1D"})
    await age(conn, "mappings", "1 day")
    before = counted(measures.mappings_deleted[ExpiryReason.TTL])

    result = await loop.enforce(ctx)

    assert await ids(conn, "mappings") == [with_snapshot["mapping_id"]]
    assert (await ops.get(f"/api/mappings/{without['id']}")).status_code == 404
    assert (result.fields["mappings_deleted"], result.fields["mappings_blocked"]) == (1, 1)
    assert counted(measures.mappings_deleted[ExpiryReason.TTL]) == before + 1


async def test_a_mapping_goes_in_the_pass_that_deletes_its_last_snapshot(ops: Client, conn: Any, ctx: Any) -> None:
    """L-05"""
    made = await make(ops, conn, ttl="P1D")
    await ops.put(f"/api/mappings/{made['mapping_id']}/lifecycle", json={"ttl": "P1D"})
    for table in ("mappings", "snapshots"):
        await age(conn, table, "1 day")

    await loop.enforce(ctx)

    assert (await ids(conn), await ids(conn, "mappings")) == ([], [])


async def test_a_mapping_is_used_by_a_change_and_by_its_snapshots(ops: Client, conn: Any, ctx: Any) -> None:
    made = await make(ops, conn)
    await ops.put(f"/api/mappings/{made['mapping_id']}/lifecycle", json={"inactivity_timeout": "P1D"})
    for column in ("created_at", "updated_at", "last_used_at"):
        await age(conn, "mappings", "2 days", column)
    assert (await ops.delete(f"/api/snapshots/{made['id']}")).status_code == 200
    await loop.enforce(ctx)
    assert await ids(conn, "mappings") == [made["mapping_id"]], "it was in use until its snapshot was deleted"
    await age(conn, "mappings", "2 days", "last_used_at")
    before = counted(measures.mappings_deleted[ExpiryReason.INACTIVITY])

    await loop.enforce(ctx)

    assert await ids(conn, "mappings") == []
    assert counted(measures.mappings_deleted[ExpiryReason.INACTIVITY]) == before + 1


async def test_a_snapshot_that_is_made_while_its_mapping_expires_is_first_or_refused(
    ops: Client, conn: Any, connect: Any, ctx: Any, folder: Path
) -> None:
    """L-05, E-15: no check and then a delete."""
    made = (await ops.post("/api/mappings", json=mapping(ttl="P1D"))).json()["data"]
    await age(conn, "mappings", "1 day")
    new = NewSnapshot(made["id"], str(folder), 60.0)
    theirs = await connect()

    async with theirs.transaction():
        await create(theirs, new, owner="ada")
        deleting = asyncio.create_task(loop.enforce(ctx))
        await one_waits(conn)
    assert (await deleting).items == 0
    assert await ids(conn, "mappings") == [made["id"]]

    await conn.execute("DELETE FROM holdfast.snapshots")
    assert (await loop.enforce(ctx)).items == 1
    with pytest.raises(NotFound):
        await create(theirs, new, owner="ada")


async def test_an_invalid_duration_is_logged_and_expires_nothing(
    ops: Client, conn: Any, ctx: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """L-06"""
    await make(ops, conn)
    await conn.execute("UPDATE holdfast.snapshots SET ttl = 'P0D', inactivity_timeout = %s", ["P" + "9" * 20 + "W"])
    await age(conn, "snapshots", "100 years")

    result = await loop.enforce(ctx)

    assert (result.items, result.failed, len(await ids(conn))) == (0, 0, 1)
    assert caplog.text.count("event='lifecycle_invalid_duration'") == 2


async def test_items_that_cannot_be_deleted_do_not_keep_later_pages_from_their_end(
    ops: Client, conn: Any, ctx: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-15: pages go over all, and not over the first hundred again and again."""
    monkeypatch.setattr(loop, "PAGE", 2)
    kept = [await make(ops, conn, ended=None, ttl="PT1H") for _ in range(3)]
    await make(ops, conn, ttl="PT1H")
    await age(conn, "snapshots", "2 hours")

    result = await loop.enforce(ctx)

    assert (result.items, result.skipped) == (1, 3)
    assert await ids(conn) == [one["id"] for one in kept]


async def test_a_pass_that_would_delete_most_snapshots_deletes_none_until_an_operator_asks(
    ops: Client, conn: Any, ctx: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-15: a clock that jumps is no reason to delete everything."""
    monkeypatch.setattr(decide, "BREAKER_LEAST", 2)
    for _ in range(2):
        await make(ops, conn, ttl="PT1H")
    await make(ops, conn)
    await age(conn, "snapshots", "2 hours")

    with pytest.raises(decide.TooManyExpired, match="2 of 3 snapshots have expired"):
        await loop.enforce(ctx)
    assert len(await ids(conn)) == 3

    monkeypatch.setattr(Pass, "is_manual", True)
    assert (await loop.enforce(ctx)).items == 2


async def test_users_see_when_a_thing_expires(ops: Client, conn: Any) -> None:
    """E-16: by its TTL, and by its inactivity timeout if nothing uses it."""
    made = await make(ops, conn, ttl="P7D", inactivity_timeout="P3D")
    await ops.put(f"/api/mappings/{made['mapping_id']}/lifecycle", json={"ttl": "P30D", "inactivity_timeout": "P9D"})

    (listed,) = (await ops.get("/api/snapshots")).json()["data"]
    shown = (await ops.get(f"/api/mappings/{made['mapping_id']}")).json()["data"]

    created, finished, updated = await value(
        conn, "SELECT ARRAY[s.created_at, s.finished_at, m.updated_at] FROM holdfast.snapshots s, holdfast.mappings m"
    )
    assert listed["expires_at"] == _json(created + timedelta(days=7))
    assert listed["inactive_at"] == _json(finished + timedelta(days=3))
    assert shown["inactive_at"] == _json(updated + timedelta(days=9))
    assert shown["expires_at"] is not None
    assert (await ops.get("/api/mappings")).json()["data"][0]["expires_at"] == shown["expires_at"]


def _json(moment: Any) -> str:
    return str(moment.isoformat()).replace("+00:00", "Z")


async def test_a_duration_of_zero_is_refused(ops: Client) -> None:
    """L-06: most who write 0 mean no limit, and would lose everything."""
    answer = await ops.post("/api/mappings", json=mapping(ttl="P0D"))

    assert answer.status_code == 422
    assert "must be positive" in answer.text


async def test_an_export_of_a_snapshot_that_is_being_deleted_is_not_run_again(ops: Client, conn: Any) -> None:
    """The pass has marked the snapshot and its files go: the job stays as it is, and the answer says what to do."""
    made = await make(ops, conn, ended=Fail("no such table"), ttl="PT1H")
    await age(conn, "snapshots", "1 hour")
    assert await snapshots.mark(conn, made["id"])
    (job_id, *_) = [row[0] for row in await rows(conn, "SELECT job_id FROM holdfast.exports ORDER BY job_id")]

    answer = await ops.post(f"/api/jobs/{job_id}/retry", json={"reason": "once more"})

    assert answer.status_code == 409, answer.text
    assert "its snapshot has expired and is being deleted; make a new snapshot" in answer.json()["detail"]
    assert await value(conn, "SELECT state FROM holdfast.jobs WHERE id = %s", job_id) == "failed"
    assert await value(conn, "SELECT count(*) FROM holdfast.history WHERE move = 'rerun'") == 0


async def test_deletion_waits_for_the_end_of_a_snapshot_in_the_database_too(ops: Client, conn: Any) -> None:
    made = await make(ops, conn, ended=None)

    with pytest.raises(Exception, match="deleted_only_after_its_end"):
        await conn.execute("UPDATE holdfast.snapshots SET deleting_since = clock_timestamp() WHERE id = %s", [made["id"]])
    with pytest.raises(IllegalMove):
        await change.delete(conn, made["id"])
