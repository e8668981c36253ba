"""Change instances over HTTP: suspend, resume, resize, lifetime, names; requests that are passed on; reports of servers."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from factories import rows, value
from graph_factories import (
    a_pass,
    get,
    new_instance,
    new_mapping,
    ready_snapshot,
    running_instance,
    tell,
    until_status,
    worker,
)
from holdfast.jobs.config import set_value
from holdfast.services.graphs import limits
from workers import until

Client = httpx2.AsyncClient
OWNER = "token:analyst"


@pytest.fixture
async def running(conn: Any, database: str, here: Any, mapping_id: int) -> int:
    return await running_instance(conn, database, mapping_id, owner=OWNER)


@pytest.mark.more
async def test_a_suspended_instance_has_no_process_and_resumes_with_a_new_token_and_secret(
    analyst: Client, conn: Any, database: str, runtime: Any, running: int
) -> None:
    before = await get(conn, running)
    async with worker(database):
        suspended = await analyst.post(f"/api/instances/{running}/suspend")
        assert (suspended.status_code, suspended.json()["data"]["status"]) == (202, "suspended")
        await until(lambda: _is_empty(runtime))
        again = await analyst.post(f"/api/instances/{running}/suspend")
        assert (again.status_code, again.json()["type"]) == (409, "/problems/wrong-state")

        resumed = await analyst.post(f"/api/instances/{running}/resume")
        assert (resumed.status_code, resumed.json()["data"]["status"]) == (202, "resuming")
        await until_status(conn, running, "running")

    after = await get(conn, running)
    assert (after.resume_count, after.starts) == (1, 2)
    assert after.start_token != before.start_token
    assert after.secret != before.secret
    assert [one.start_token for one in await runtime.observe()] == [after.start_token]
    told = (await analyst.get(f"/api/instances/{running}/events")).json()["data"]
    assert [one["event_type"] for one in told] == ["started", "resumed", "suspended", "started", "created"]


async def _is_empty(runtime: Any) -> bool:
    return await runtime.observe() == []


@pytest.mark.more
async def test_a_resume_at_once_waits_for_the_removal_and_leaves_one_process(
    analyst: Client, conn: Any, database: str, runtime: Any, running: int
) -> None:
    """The jobs of an instance run one after the other, by its lock."""
    await analyst.post(f"/api/instances/{running}/suspend")
    await analyst.post(f"/api/instances/{running}/resume")

    async with worker(database):
        await until_status(conn, running, "running")
        await until(lambda: _no_work(conn))

    assert [one.start_token for one in await runtime.observe()] == [(await get(conn, running)).start_token]


async def _no_work(conn: Any) -> bool:
    jobs = await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE state IN ('pending', 'blocked', 'running', 'submitted')")
    unwanted = await value(conn, "SELECT count(*) FROM holdfast.effects WHERE state IN ('planned', 'unwanted')")
    return not jobs and not unwanted


async def test_memory_and_cpu_change_in_place_and_are_written_when_they_are_there(
    analyst: Client, conn: Any, database: str, runtime: Any, running: int
) -> None:
    """E-14, M-02: the row has the new memory only when the runtime has it; until then it is reserved."""
    asked = await analyst.put(f"/api/instances/{running}/memory", json={"memory_gb": 3})
    assert (asked.status_code, asked.json()["data"]["memory_gb"]) == (202, 1), asked.text
    limits_now = (await analyst.get("/api/instances/limits")).json()["data"]
    assert limits_now["memory_gb"] == 3
    twice = await analyst.put(f"/api/instances/{running}/cpu", json={"cpu_cores": 2})
    assert twice.status_code == 409, "one resize at a time"

    async with worker(database):
        await until(lambda: _no_work(conn))
        await analyst.put(f"/api/instances/{running}/cpu", json={"cpu_cores": 2})
        await until(lambda: _no_work(conn))

    (seen,) = await runtime.observe()
    found = await get(conn, running)
    assert (found.memory_mb, found.cpu, found.wanted_memory_mb, seen.memory_limit_mb) == (3072, 2, None, 3072)
    told = (await analyst.get(f"/api/instances/{running}/events")).json()["data"]
    assert [(one["event_type"], one["details"].get("new_mb") or one["details"].get("new")) for one in told[:2]] == [
        ("cpu_updated", 2),
        ("memory_upgraded", 3072),
    ]


async def test_a_resize_that_fails_is_taken_back_and_recorded(
    analyst: Client, conn: Any, database: str, says: Any, runtime: Any, running: int
) -> None:
    """M-02: as an event."""
    tell(says, running, exit=1)
    await until(lambda: _has_failed(runtime, running))
    await analyst.put(f"/api/instances/{running}/memory", json={"memory_gb": 3})

    async with worker(database):
        await until(lambda: _no_work(conn))

    found = await get(conn, running)
    assert (found.memory_mb, found.wanted_memory_mb) == (1024, None)
    told = (await analyst.get(f"/api/instances/{running}/events")).json()["data"]
    assert (told[0]["event_type"], told[0]["details"]["wanted_memory_mb"]) == ("resize_failed", 3072)


async def _has_failed(runtime: Any, instance_id: int) -> bool:
    seen = await runtime.look(instance_id)
    return seen is not None and seen.phase == "failed"


@pytest.mark.parametrize(("asked", "status"), [(0.5, 409), (33, 422), (9, 409)])
async def test_memory_never_shrinks_and_stays_within_the_limits(
    analyst: Client, conn: Any, running: int, asked: float, status: int
) -> None:
    await set_value(conn, limits.OWNER_MEMORY, 8, by="test")

    answer = await analyst.put(f"/api/instances/{running}/memory", json={"memory_gb": asked})

    assert answer.status_code == status
    assert (await get(conn, running)).wanted_memory_mb is None


async def test_names_lifetimes_and_extensions(analyst: Client, conn: Any, running: int) -> None:
    """E-16: the maximum TTL is enforced, also for an extension."""
    path = f"/api/instances/{running}"
    renamed = (await analyst.put(path, json={"name": "b2", "description": "second"})).json()["data"]
    assert (renamed["name"], renamed["description"], renamed["ttl"]) == ("b2", "second", "PT24H")
    await analyst.put(f"{path}/lifecycle", json={"ttl": "PT2H", "inactivity_timeout": "PT30M"})

    extended = (await analyst.post(f"{path}/extend", json={"by": "PT4H"})).json()["data"]

    assert (extended["ttl"], extended["inactivity_timeout"]) == ("PT6H", "PT30M")
    for answer in (
        await analyst.put(f"{path}/lifecycle", json={"ttl": "P8D"}),
        await analyst.post(f"{path}/extend", json={"by": "P7D"}),
    ):
        assert answer.status_code == 422
        assert "longer than the maximum of PT168H" in answer.json()["detail"]
    wrong = await analyst.put(f"{path}/lifecycle", json={"ttl": "P1M"})
    assert (wrong.status_code, "is not a duration" in wrong.text) == (422, True)


async def test_lists_are_filtered_searched_and_paged(ops: Client, conn: Any, here: Any, mapping_id: int) -> None:
    await set_value(conn, limits.PER_OWNER, 20, by="test")
    snapshot_id = await ready_snapshot(conn, mapping_id)
    made = [await new_instance(conn, snapshot_id=snapshot_id, name=f"fraud {n}", owner=f"o{n % 2}") for n in range(5)]
    other = await new_instance(conn, mapping_id=await new_mapping(ops, name="second"), name="Shipping")

    async def ids(**query: Any) -> list[int]:
        return [one["id"] for one in (await ops.get("/api/instances", params=query)).json()["data"]]

    assert await ids() == [other, *reversed(made)]
    assert await ids(search="FRAUD 3") == [made[3]]
    assert await ids(owner="o1") == [made[3], made[1]]
    assert await ids(status="waiting_for_snapshot") == [other]
    assert await ids(snapshot_id=snapshot_id, limit=2) == [made[4], made[3]]
    first = (await ops.get("/api/instances", params={"limit": 4})).json()
    second = (await ops.get("/api/instances", params={"limit": 4, "cursor": first["page"]["next_cursor"]})).json()
    assert [one["id"] for one in second["data"]] == [made[1], made[0]]
    of_mapping = (await ops.get(f"/api/mappings/{mapping_id}/instances")).json()["data"]
    assert len(of_mapping) == 5
    tree = (await ops.get(f"/api/mappings/{mapping_id}/instances/tree")).json()["data"]
    assert (tree["snapshots"], tree["instances"], len(tree["versions"][0]["snapshots"][0]["instances"])) == (1, 5, 5)


async def test_another_tenant_can_see_but_neither_change_nor_query_nor_read_the_log(
    as_role: Any, ops: Client, conn: Any, running: int
) -> None:
    """E-25: tokens of one tenant cannot reach the instance of another."""
    other = await as_role("analyst", "eve")
    path = f"/api/instances/{running}"

    refused = [
        await other.post(f"{path}/graph/query", json={"query": "RETURN 1"}),
        await other.get(f"{path}/graph/schema"),
        await other.get(f"{path}/logs"),
        await other.post(f"{path}/suspend"),
        await other.put(path, json={"name": "mine"}),
        await other.delete(path),
    ]

    assert [one.status_code for one in refused] == [403] * 6
    assert (await other.get(path)).status_code == 200
    assert (await get(conn, running)).status == "running"
    assert (await ops.post(f"{path}/graph/query", json={"query": "RETURN 1"})).status_code == 200


async def test_requests_are_passed_on_with_the_secret_of_the_server_and_count_as_activity(
    analyst: Client, conn: Any, running: int
) -> None:
    await conn.execute("UPDATE holdfast.graph_instances SET last_activity_at = now() - interval '1 hour'")
    asked = {"query": "MATCH (n) RETURN n"}

    answer = await analyst.post(f"/api/instances/{running}/graph/query?explain=1", json=asked)

    assert (answer.status_code, answer.json()["path"]) == (200, "/query?explain=1")
    assert answer.json()["body"].replace(" ", "") == '{"query":"MATCH(n)RETURNn"}'
    assert await value(conn, "SELECT last_activity_at > now() - interval '1 minute' FROM holdfast.graph_instances")
    shown = (await analyst.get(f"/api/instances/{running}")).text
    assert (await get(conn, running)).secret not in shown
    for wrong in ("..%2Fhealth", "a//b", "a%20b"):
        assert (await analyst.get(f"/api/instances/{running}/graph/{wrong}")).status_code in (404, 422)


async def test_a_graph_that_does_not_run_or_respond_is_a_problem_and_no_crash(
    analyst: Client, conn: Any, runtime: Any, running: int
) -> None:
    await runtime.remove(running)
    unreachable = await analyst.post(f"/api/instances/{running}/graph/query", json={"query": "RETURN 1"})
    assert (unreachable.status_code, unreachable.json()["type"]) == (503, "/problems/graph-unreachable")
    health = (await analyst.get(f"/api/instances/{running}/health")).json()["data"]
    assert (health["runtime"], health["server"], health["healthy"]) == (None, None, False)
    await analyst.post(f"/api/instances/{running}/suspend")

    refused = await analyst.post(f"/api/instances/{running}/graph/query", json={"query": "RETURN 1"})

    assert (refused.status_code, refused.json()["current_state"]) == (409, "suspended")


async def test_reports_need_the_secret_of_that_instance_and_start(
    app: Any, conn: Any, database: str, running: int, mapping_id: int
) -> None:
    """E-25, I-06: a graph server can touch its own instance and nothing else. Its name is known from its creation; a report
    adds it where it is not, and never replaces it."""
    found = await get(conn, running)
    assert found.runtime_name is not None, "from its creation"
    assert found.runtime_name.startswith("pid ")
    await conn.execute("UPDATE holdfast.graph_instances SET runtime_name = NULL WHERE id = %s", [running])
    other = await new_instance(conn, snapshot_id=found.snapshot_id)
    transport = httpx2.ASGITransport(app, raise_app_exceptions=True)
    headers = {"Authorization": f"Bearer {found.secret}"}
    body = {
        "start_token": found.start_token,
        "queries": 5,
        "memory_bytes": 7_000_000,
        "disk_bytes": 3,
        "unknown": 1,
        "pod_name": "graph-7",
    }
    async with Client(transport=transport, base_url="http://plane") as server:
        taken = await server.post(f"/api/instances/{running}/report", json=body, headers=headers)
        named = (await get(conn, running)).runtime_name
        again = await server.post(
            f"/api/instances/{running}/report", json={**body, "queries": 0, "pod_name": "another"}, headers=headers
        )
        plan = await server.get(f"/api/instances/{running}/plan", headers=headers)
        elsewhere = await server.post(f"/api/instances/{other}/report", json=body, headers=headers)
        without = await server.post(f"/api/instances/{running}/report", json=body)
        of_earlier_start = {**body, "start_token": "00000000-0000-0000-0000-000000000000"}
        old = await server.post(f"/api/instances/{running}/report", json=of_earlier_start, headers=headers)
        private = await server.get("/api/instances", headers=headers)

    assert (taken.status_code, taken.json()["data"]) == (200, {"wanted": True})
    assert plan.json()["instance_id"] == running
    assert (named, again.status_code, (await get(conn, running)).runtime_name) == ("graph-7", 200, "graph-7")
    assert [elsewhere.status_code, without.status_code, private.status_code] == [404, 404, 401]
    assert old.json()["data"] == {"wanted": False}
    after = await get(conn, running)
    assert (after.query_count, after.memory_bytes, after.disk_bytes) == (5, 7_000_000, 3)
    assert (await get(conn, other)).query_count == 0


async def test_favourites_have_names_and_are_removed_with_their_resource(
    analyst: Client, ops: Client, conn: Any, database: str, running: int, mapping_id: int
) -> None:
    for kind, number in (("instance", running), ("mapping", mapping_id)):
        asked = {"resource_type": kind, "resource_id": number}
        assert (await analyst.post("/api/favorites", json=asked)).status_code == 201
    again = await analyst.post("/api/favorites", json={"resource_type": "instance", "resource_id": running})
    missing = await analyst.post("/api/favorites", json={"resource_type": "snapshot", "resource_id": 999})
    assert (again.status_code, missing.status_code) == (409, 404)

    listed = (await analyst.get("/api/favorites")).json()["data"]
    assert [(one["resource_type"], one["name"], one["exists"]) for one in listed] == [
        ("instance", "bank", True),
        ("mapping", "bank", True),
    ]
    assert (await ops.get("/api/favorites")).json()["data"] == []
    async with worker(database):
        assert (await analyst.delete(f"/api/instances/{running}")).status_code == 204
    left = (await analyst.get("/api/favorites")).json()["data"]
    assert [one["resource_type"] for one in left] == ["mapping"]
    removed = [(await analyst.delete(f"/api/favorites/mapping/{mapping_id}")).json()["data"]["removed"] for _ in range(2)]
    assert removed == [True, False]
    assert await rows(conn, "SELECT * FROM holdfast.favorites") == []


async def test_a_favourite_of_a_deleted_snapshot_or_mapping_is_not_listed_and_the_loop_removes_it(
    analyst: Client, conn: Any, database: str, here: Any, mapping_id: int
) -> None:
    """Graphs have no trigger on the tables of exports."""
    kept, deleted = [await ready_snapshot(conn, mapping_id) for _ in range(2)]
    for kind, number in (("mapping", mapping_id), ("snapshot", kept), ("snapshot", deleted)):
        asked = {"resource_type": kind, "resource_id": number}
        assert (await analyst.post("/api/favorites", json=asked)).status_code == 201
    await conn.execute("DELETE FROM holdfast.exports WHERE snapshot_id = %s", [deleted])
    await conn.execute("DELETE FROM holdfast.snapshots WHERE id = %s", [deleted])

    first = (await analyst.get("/api/favorites", params={"limit": 2})).json()
    second = (await analyst.get("/api/favorites", params={"limit": 2, "cursor": first["page"]["next_cursor"]})).json()
    await a_pass(conn, database, "instance_lifecycle")

    assert [one["resource_id"] for one in [*first["data"], *second["data"]]] == [mapping_id, kept]
    left = await rows(conn, "SELECT resource_type, resource_id FROM holdfast.favorites ORDER BY 1, 2")
    assert left == [("mapping", mapping_id), ("snapshot", kept)]
