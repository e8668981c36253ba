"""The table cache: refreshed by its loop and on demand; and what the API shows of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import psycopg

from factories import rows, value
from holdfast.schedule.context import Pass
from holdfast.services.maintenance.engines.interface import TableRef
from holdfast.services.maintenance.setup import Maintenance
from holdfast.services.maintenance.tables import cache, refresh
from maintenance_factories import HEALTHY, INPUTS, ORDERS, PATH, know, make_table

Conn = psycopg.AsyncConnection[Any]
OTHER = TableRef("default", "sales", "other")
REWRITE = {"actions": ["rewrite_data_files"]}


async def test_table_that_the_cache_does_not_have_is_looked_up(ops: Any, conn: Conn, here: Maintenance, database: str):
    """T-01: a new table is found on demand; the loop need not have seen it."""
    await asyncio.to_thread(make_table, here, database, files=1)
    assert await cache.get(conn, ORDERS) is None

    answer = await ops.post(PATH, json=REWRITE)

    assert answer.status_code == 202
    assert await cache.get(conn, ORDERS) is not None


async def test_unknown_table_answers_404_after_the_catalog_was_asked(ops: Any, conn: Conn, here: Maintenance, database: str):
    """T-01: neither the cache nor the catalog has it, and nothing is written."""
    await asyncio.to_thread(make_table, here, database, files=1, table=OTHER)

    answer = await ops.post(PATH, json=REWRITE)

    assert (answer.status_code, answer.json()["code"]) == (404, "UNKNOWN_TABLE")
    assert answer.json()["table"] == str(ORDERS)
    assert await cache.get(conn, OTHER) is not None, "the catalog was listed"
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 0


async def test_catalog_is_not_asked_again_at_once_for_the_same_unknown_table(
    ops: Any, conn: Conn, here: Maintenance, database: str
):
    await ops.get("/api/tables/sales/orders")
    await asyncio.to_thread(make_table, here, database, files=1)

    again = await ops.get("/api/tables/sales/orders")
    here.forget_missing()
    later = await ops.get("/api/tables/sales/orders")

    assert (again.status_code, later.status_code) == (404, 200)


async def test_catalog_that_does_not_answer_is_no_unknown_table(ops: Any, conn: Conn, here: Maintenance):
    """A table is unknown only if its catalog says so."""
    here.settings = here.settings.model_copy(
        update={"iceberg_catalogs": {"default": {"type": "rest", "uri": "http://127.0.0.1:9/"}}}
    )

    answer = await ops.post(PATH, json=REWRITE)

    assert (answer.status_code, answer.json()["code"]) == (503, "CATALOG_UNAVAILABLE")
    assert int(answer.headers["retry-after"]) > 0


async def test_loop_measures_tables_and_forgets_those_that_are_gone(conn: Conn, here: Maintenance, database: str, pass_of: Any):
    await asyncio.to_thread(make_table, here, database, files=3)
    await know(conn, OTHER)

    result = await refresh.refresh(await pass_of(refresh.NAME))

    assert (result.items, result.failed) == (1, 0)
    assert result.fields == {"tables": 1, "gone": 1, "pruned_runs": 0}
    row = await cache.get(conn, ORDERS)
    assert row is not None
    assert row.inputs is not None
    assert row.inputs["stats"]["data_files"] == 3
    assert await cache.get(conn, OTHER) is None


async def test_empty_embedded_catalog_loads_no_engine(conn: Conn, here: Maintenance, pass_of: Any):
    result = await refresh.refresh(await pass_of(refresh.NAME))

    assert (result.items, result.fields["tables"]) == (0, 0)
    assert not here._engines


async def test_table_that_cannot_be_measured_keeps_its_figures(conn: Conn, here: Maintenance, database: str, pass_of: Any):
    """One table whose metadata is gone does not affect the others."""
    await asyncio.to_thread(make_table, here, database, files=1)
    await asyncio.to_thread(make_table, here, database, files=1, table=OTHER)
    await refresh.refresh(await pass_of(refresh.NAME))
    await conn.execute("UPDATE holdfast.maintenance_tables SET measured_at = measured_at - interval '1 day'")
    await conn.execute("UPDATE holdfast_iceberg.iceberg_tables SET metadata_location = '/nowhere' WHERE table_name = 'orders'")

    result = await refresh.refresh(await pass_of(refresh.NAME))

    assert (result.items, result.failed) == (1, 1)
    broken, other = await cache.get(conn, ORDERS), await cache.get(conn, OTHER)
    assert broken is not None
    assert other is not None
    assert (broken.error is None, broken.health is None, other.error) == (False, False, None)


async def test_list_has_health_reasons_and_the_last_maintenance(viewer: Any, conn: Conn):
    await know(conn)
    await know(conn, OTHER, HEALTHY)
    await know(conn, TableRef("default", "hr", "staff"), None)

    every = (await viewer.get("/tables")).json()["data"]
    poor = (await viewer.get("/api/tables?health_below=80")).json()["data"]
    page = (await viewer.get("/api/tables?limit=2")).json()
    rest = (await viewer.get(f"/api/tables?limit=2&cursor={page['page']['next_cursor']}")).json()["data"]

    assert [one["name"] for one in every] == ["staff", "orders", "other"]
    assert [one["label"] for one in every] == ["unknown", "fair", "good"]
    assert every[1]["reasons"] == ["small files"]
    assert [one["name"] for one in poor] == ["orders"]
    assert [one["name"] for one in (*page["data"], *rest)] == ["staff", "orders", "other"]


async def test_table_shows_the_parts_of_its_score_and_what_would_help(viewer: Any, conn: Conn):
    await know(conn, inputs=replace(INPUTS, snapshots_over_5_days=50))

    shown = (await viewer.get("/api/tables/sales/orders")).json()["data"]

    assert shown["table"]["health"] == 100 - sum(part["lost"] for part in shown["parts"])
    assert shown["would_help"] == [
        "rewrite_data_files: 1,000 data files → about 1",
        "expire_snapshots: removes 50 snapshots",
    ]


async def test_metrics_count_tables_by_health_and_open_runs(ops: Any, conn: Conn):
    await know(conn)
    await ops.post(PATH, json=REWRITE)

    text = (await ops.get("/metrics")).text

    assert 'maintenance_tables{health="fair"} 1.0' in text
    assert 'maintenance_runs_open{state="pending"} 1.0' in text


async def test_history_of_a_table_is_kept_for_so_many_days(ops: Any, conn: Conn, here: Maintenance, pass_of: Any):
    await know(conn)
    made = await ops.post(PATH, json=REWRITE)
    await ops.post(f"/api/jobs/{made.json()['data']['id']}/cancel", json={})
    await conn.execute("UPDATE holdfast.maintenance_runs SET finished_at = finished_at - interval '401 days'")

    ctx: Pass = await pass_of(refresh.NAME)
    result = await refresh.refresh(ctx)

    assert result.fields["pruned_runs"] == 1
    assert await rows(conn, "SELECT * FROM holdfast.maintenance_actions") == []
