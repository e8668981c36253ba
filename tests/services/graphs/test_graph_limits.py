"""Limits on instances are exact under concurrency: count and memory, per owner and in all."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import psycopg_pool
import pytest

from factories import value
from graph_factories import get, new_instance, ready_snapshot
from holdfast.jobs.config import set_value
from holdfast.services.graphs import limits
from holdfast.services.graphs.instances import delete, move
from holdfast.services.graphs.instances.admission import LimitExceeded

Client = httpx2.AsyncClient
COUNT = "SELECT count(*) FROM holdfast.graph_instances"


COPY_SNAPSHOT = """
    INSERT INTO holdfast.snapshots (id, mapping_id, mapping_version, owner, name, state, engine, location, pipeline_id,
        node_counts, edge_counts, size_bytes, finished_at)
    SELECT 1000 + n, mapping_id, mapping_version, owner, name, state, engine, location, gen_random_uuid(), node_counts,
        edge_counts, size_bytes, finished_at
    FROM holdfast.snapshots, generate_series(0, %(count)s - 1) n WHERE id = %(first)s
"""


async def in_parallel(database: str, count: int, create: Any) -> list[Any]:
    """Call `create(conn, number)` so often, through twenty connections."""
    async with psycopg_pool.AsyncConnectionPool(database, min_size=20, max_size=20, kwargs={"autocommit": True}) as pool:

        async def one(number: int) -> Any:
            async with pool.connection(timeout=120) as conn:
                try:
                    return await create(conn, number)
                except LimitExceeded as error:
                    return error

        return await asyncio.gather(*map(one, range(count)))


@pytest.mark.more
async def test_of_200_parallel_creates_against_a_limit_of_5_exactly_5_are_made(
    conn: Any, database: str, here: Any, mapping_id: int
) -> None:
    """E-17: two creates never both see the last free place. A refusal leaves nothing: no job, no use of the snapshot."""
    first = await ready_snapshot(conn, mapping_id)
    await conn.execute(COPY_SNAPSHOT, {"first": first, "count": 200})  # creates of one snapshot wait for its row

    made = await in_parallel(database, 200, lambda conn, number: new_instance(conn, snapshot_id=1000 + number))

    refused = [one for one in made if isinstance(one, LimitExceeded)]
    assert (len(refused), await value(conn, COUNT)) == (195, 5)
    assert {one.members()["limit_type"] for one in refused} == {"concurrency.per_analyst"}
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE kind = 'graphs.start'") == 5
    assert await value(conn, "SELECT count(*) FROM holdfast.snapshot_uses") == 5


async def test_creates_from_mappings_are_counted_too_and_a_refused_one_leaves_no_snapshot(
    analyst: Client, conn: Any, mapping_id: int
) -> None:
    asked = {"name": "g", "mapping_id": mapping_id}

    answers = await asyncio.gather(*(analyst.post("/api/instances", json=asked) for _ in range(12)))

    assert sorted(one.status_code for one in answers) == [202] * 5 + [409] * 7
    assert await value(conn, "SELECT count(*) FROM holdfast.snapshots") == 5
    problem = next(one.json() for one in answers if one.status_code == 409)
    assert problem["type"] == "/problems/limit-exceeded"
    assert (problem["limit_type"], problem["current_count"], problem["max_allowed"]) == ("concurrency.per_analyst", 5, 5)
    assert "the limit concurrency.per_analyst is 5, 5 are in use" in problem["detail"]


@pytest.mark.more
@pytest.mark.parametrize(
    ("key", "allowed", "most"), [(limits.TOTAL, 7, 7), (limits.OWNER_MEMORY, 3, 3), (limits.TOTAL_MEMORY, 4, 4)]
)
async def test_every_limit_holds_under_concurrency(
    conn: Any, database: str, here: Any, mapping_id: int, key: str, allowed: int, most: int
) -> None:
    """Owners count separately for their own limits, and together for those of the cluster. Each instance has 1 GiB."""
    await set_value(conn, limits.PER_OWNER, 100, by="test")
    await set_value(conn, key, allowed, by="test")
    first = await ready_snapshot(conn, mapping_id)
    await conn.execute(COPY_SNAPSHOT, {"first": first, "count": 40})
    owners = 1 if key == limits.OWNER_MEMORY else 4

    made = await in_parallel(
        database, 40, lambda conn, number: new_instance(conn, snapshot_id=1000 + number, owner=f"owner {number % owners}")
    )

    refused = [one for one in made if isinstance(one, LimitExceeded)]
    assert (await value(conn, COUNT), {one.limit_type for one in refused}) == (most, {key})


async def test_suspended_and_failed_instances_are_free_and_a_resume_needs_a_place(
    conn: Any, here: Any, mapping_id: int
) -> None:
    """E-17: resuming counts as well."""
    await set_value(conn, limits.PER_OWNER, 1, by="test")
    snapshot_id = await ready_snapshot(conn, mapping_id)
    first = await new_instance(conn, snapshot_id=snapshot_id)
    assert await move.fail(conn, await get(conn, first), "DATABASE_ERROR", "broken")
    second = await new_instance(conn, snapshot_id=snapshot_id)

    with pytest.raises(LimitExceeded):
        await move.resume(conn, first, longest=here.longest_start)

    assert (await get(conn, first)).status == "failed", "a refusal changes nothing"
    await delete.begin(conn, second, actor="test")
    with pytest.raises(LimitExceeded):
        await move.resume(conn, first, longest=here.longest_start)  # its memory is in use until it is gone
    await delete.remove_row(conn, second)
    await move.resume(conn, first, longest=here.longest_start)
    assert (await get(conn, first)).status == "starting"


async def test_the_limits_are_shown_with_what_is_in_use(analyst: Client, ops: Client, mapping_id: int) -> None:
    """M-02: 64 GiB for one user and 256 GiB for all, unless the configuration says something else."""
    await analyst.post("/api/instances", json={"name": "g", "mapping_id": mapping_id, "memory_gb": 4})

    shown = (await analyst.get("/api/instances/limits")).json()["data"]

    assert (shown["active"], shown["limit"], shown["free"]) == (1, 5, 4)
    assert (shown["memory_gb"], shown["memory_limit_gb"], shown["cluster_limit"]) == (4, 64, 50)
    assert (await analyst.get("/api/instances/user/status")).json()["data"] == shown
    assert (await ops.get(f"/api/config/{limits.TOTAL_MEMORY}")).json()["data"]["value"] == 256


async def test_more_memory_than_one_instance_may_have_is_refused(analyst: Client, conn: Any, mapping_id: int) -> None:
    answer = await analyst.post("/api/instances", json={"name": "g", "mapping_id": mapping_id, "memory_gb": 33})

    assert answer.status_code == 422
    assert "at most 32 GiB" in answer.json()["detail"]
    assert await value(conn, COUNT) == 0
