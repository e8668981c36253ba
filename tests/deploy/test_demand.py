"""The demand that autoscalers read: nothing is left out for which a worker must be there, and nothing is counted twice."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from deploy_paths import documents
from factories import add, end, hold, lose, rows, silence, submit
from holdfast.jobs.views import figures

DEMAND = "SELECT coalesce(sum(value), 0)::int, coalesce(sum(backlog), 0)::int FROM holdfast.demand"
MAKE_DUE = "UPDATE holdfast.jobs SET run_after = clock_timestamp() - interval '1 s' WHERE run_after IS NOT NULL"


async def demand(conn: Any) -> Any:
    """`value` and `backlog`."""
    return (await rows(conn, DEMAND))[0]


async def test_a_job_is_demand_from_its_enqueue_to_its_end(conn: Any) -> None:
    """Y-06, E-03, E-52: pending, running, submitted and due, and left behind by a worker that is gone."""
    assert await demand(conn) == (0, 0)

    claim = await hold(conn)
    assert await demand(conn) == (1, 0), "it runs: value must not be 0, or its worker is stopped"
    await silence(conn, claim)
    assert await demand(conn) == (1, 1), "its worker is gone: another one must come"
    await lose(conn, claim)
    await conn.execute(MAKE_DUE)
    assert await demand(conn) == (1, 1), "due again"

    asked = await hold(conn)
    await submit(conn, asked, poll_after=timedelta(0))
    assert await demand(conn) == (2, 2), "an engine must be asked"
    await end(conn, await hold(conn, "other"))
    assert await demand(conn) == (2, 2), "what has ended is no demand"


async def test_what_no_worker_would_take_is_no_demand(conn: Any) -> None:
    """Y-06: only visible rows count: not those of a later time, and none of a paused kind."""
    await add(conn, run_after=timedelta(hours=1))
    await submit(conn, await hold(conn), poll_after=timedelta(hours=1))
    await add(conn, "paused")
    await add(conn, "paused", run_after=timedelta(seconds=0.001))
    await conn.execute(f"{MAKE_DUE} AND kind = 'paused'")
    assert await demand(conn) == (2, 2)

    await conn.execute("INSERT INTO holdfast.controls (kind, paused_at) VALUES ('paused', clock_timestamp())")

    assert await demand(conn) == (0, 0)


async def test_ten_thousand_jobs_of_one_kind_hide_no_other(conn: Any) -> None:
    await conn.execute("INSERT INTO holdfast.jobs (kind, queue) SELECT 'many', 'a' FROM generate_series(1, 10050)")
    await add(conn, "one", queue="b")

    found = await rows(conn, "SELECT queue, kind, waiting FROM holdfast.demand ORDER BY queue")

    assert found == [("a", "many", 10000), ("b", "one", 1)]


@pytest.mark.parametrize(
    ("kind", "waiting"), [("exports.*", 2), ("exports.run", 1), ("exports", 0), ("export_.run", 0), ("%", 0), ("*", 4)]
)
async def test_one_service_is_scaled_by_its_own_kinds(conn: Any, kind: str, waiting: int) -> None:
    for one in ("exports.run", "exports.export", "maintenance.run", "other"):
        await add(conn, one)

    assert (await figures.demand(conn, kind=kind)).waiting == waiting


@pytest.mark.more
def test_y_04_the_queries_of_the_triggers_run_as_the_autoscaler(as_roles: Any, fresh_database: str) -> None:
    """Y-05, Q-04: exactly as they are in the manifests, as a role that may read neither jobs nor tokens."""
    queries = [
        trigger["metadata"]["query"]
        for one in documents("overlays/production")
        if one["kind"] in ("ScaledObject", "ScaledJob")
        for trigger in one["spec"]["triggers"]
        if trigger["type"] == "postgresql"
    ]
    with psycopg.connect(fresh_database, autocommit=True) as conn:
        for kind in (
            "exports.export",
            "exports.run",
            "maintenance.run",
            "graphs.start",
            "graphs.remove",
            "ingestion.csv_ingest",
        ):
            conn.execute("INSERT INTO holdfast.jobs (kind) VALUES (%s)", (kind,))

    with psycopg.connect(as_roles["autoscaler"], autocommit=True) as keda:
        found = [keda.execute(query).fetchone() for query in queries]
        for forbidden in ("jobs", "tokens", "exports", "workers"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                keda.execute(f"SELECT count(*) FROM holdfast.{forbidden}".encode())

    assert sorted(found) == [(1,), (2,), (3,)]
