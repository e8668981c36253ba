"""The schema cache: read in bulk, browsed and searched; what cannot be read is unknown and never empty."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from export_factories import TablesEngine
from factories import value
from holdfast.schedule.context import Held, Pass
from holdfast.schedule.registry import Loop
from holdfast.services.exports import measures
from holdfast.services.exports.catalog import refresh
from holdfast.services.exports.catalog.refresh import RefreshFailed
from holdfast.services.exports.engines.opened import Engines
from loop_factories import LONG, nothing, taken

Client = httpx.AsyncClient


class Warehouse(TablesEngine):
    """Two catalogs, each with the same tables."""

    catalogs = ("sales", "risk")

    async def entries(self, catalogs: tuple[str, ...] | None = None) -> Any:
        async for entries in super().entries(catalogs or self.catalogs):
            yield entries


@pytest.fixture
def engine() -> Warehouse:
    return Warehouse()


@pytest.fixture
async def ctx(conn: Any, database: str, connect: Any) -> Any:
    term = await taken(conn, Loop(refresh.NAME, nothing, every=refresh.EVERY, first_run="at_once"))

    @asynccontextmanager
    async def borrow() -> Any:
        yield await connect()

    return Pass(term, Held(LONG), borrow, database)


def names(answer: httpx.Response, field: str) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [one[field] for one in answer.json()["data"]]


async def test_catalogs_schemas_tables_and_columns_are_browsed_from_the_cache(
    viewer: Client, engine: Warehouse, ctx: Any, here: Any
) -> None:
    """C-01, C-02, C-04, C-07."""
    await refresh.refresh(ctx, here.engines)
    await engine.close()  # nobody asks the engine from here on

    assert names(await viewer.get("/api/schema/catalogs"), "catalog") == ["risk", "sales"]
    assert names(await viewer.get("/api/schema/catalogs/sales/schemas"), "schema") == ["main"]
    assert names(await viewer.get("/api/schema/catalogs/SALES/schemas/main/tables"), "table") == ["account", "customer", "owns"]
    columns = (await viewer.get("/api/schema/catalogs/sales/schemas/main/tables/customer/columns")).json()["data"]
    assert [(one["column"], one["type"], one["position"]) for one in columns] == [
        ("id", "BIGINT", 1),
        ("name", "VARCHAR", 2),
        ("age", "BIGINT", 3),
    ]
    assert (await viewer.get("/api/schema/catalogs/nowhere/schemas")).status_code == 404


async def test_search_finds_every_table_and_column_that_begins_so_in_every_catalog(viewer: Client, ctx: Any, here: Any) -> None:
    """E-27: the same name in two catalogs is two tables."""
    await refresh.refresh(ctx, here.engines)

    found = (await viewer.get("/api/schema/search/tables", params={"q": "CUST"})).json()["data"]
    assert [(one["catalog"], one["table"]) for one in found] == [("risk", "customer"), ("sales", "customer")]
    found = (await viewer.get("/api/schema/search/columns", params={"q": "acc"})).json()["data"]
    assert {(one["table"], one["column"]) for one in found} == {("owns", "account_number")}
    assert (await viewer.get("/api/schema/search/tables", params={"q": "%"})).json()["data"] == []
    assert len((await viewer.get("/api/schema/search/columns", params={"q": "n", "limit": 1})).json()["data"]) == 1


async def test_only_a_refresh_that_went_well_takes_anything_away(
    viewer: Client, engine: Warehouse, ctx: Any, here: Any, conn: Any
) -> None:
    """C-03, E-27: a failing catalog keeps what was known of it, however long that lasts."""
    await refresh.refresh(ctx, here.engines)
    engine.database.execute("DROP TABLE owns")
    engine.broken.add("risk")
    await conn.execute("UPDATE holdfast.schema_cache SET refreshed_at = refreshed_at - interval '3 days'")
    await conn.execute("UPDATE holdfast.schema_refreshes SET refreshed_at = refreshed_at - interval '3 days'")

    result = await refresh.refresh(ctx, here.engines)

    assert (result.items, result.failed) == (1, 1)
    assert names(await viewer.get("/api/schema/catalogs/sales/schemas/main/tables"), "table") == ["account", "customer"]
    assert names(await viewer.get("/api/schema/catalogs/risk/schemas/main/tables"), "table") == ["account", "customer", "owns"]
    stats = {one["catalog"]: one for one in (await viewer.get("/api/schema/stats")).json()["data"]["catalogs"]}
    assert (stats["sales"]["is_stale"], stats["sales"]["error"]) == (False, None)
    assert (stats["risk"]["is_stale"], stats["risk"]["error"]) == (True, "catalog risk is not there")

    engine.broken.clear()
    await refresh.refresh(ctx, here.engines)
    assert names(await viewer.get("/api/schema/catalogs/risk/schemas/main/tables"), "table") == ["account", "customer"]


async def test_when_nothing_can_be_read_the_pass_fails_and_everything_stays(
    engine: Warehouse, ctx: Any, here: Any, conn: Any
) -> None:
    await refresh.refresh(ctx, here.engines)
    before = await value(conn, "SELECT count(*) FROM holdfast.schema_cache")
    engine.broken |= {"sales", "risk"}
    failures = measures.refreshes.labels("failed")._value.get()

    with pytest.raises(RefreshFailed, match="what was known of them stays"):
        await refresh.refresh(ctx, here.engines)

    assert await value(conn, "SELECT count(*) FROM holdfast.schema_cache") == before
    assert measures.refreshes.labels("failed")._value.get() == failures + 1


async def test_a_catalog_that_is_gone_is_forgotten_when_its_time_is_over(
    engine: Warehouse, ctx: Any, here: Any, conn: Any
) -> None:
    await refresh.refresh(ctx, here.engines)
    engine.catalogs = ("sales",)
    await refresh.refresh(ctx, here.engines)
    assert await value(conn, "SELECT count(*) FROM holdfast.schema_cache WHERE catalog = 'risk'") > 0

    await conn.execute("UPDATE holdfast.schema_refreshes SET refreshed_at = refreshed_at - interval '25 hours'")
    await refresh.refresh(ctx, here.engines)

    assert await value(conn, "SELECT count(*) FROM holdfast.schema_cache WHERE catalog = 'risk'") == 0


async def test_without_an_engine_it_is_skipped_and_says_why(ctx: Any) -> None:
    """C-05."""
    skipped = measures.refreshes.labels("skipped")._value.get()

    result = await refresh.refresh(ctx, Engines({}))

    assert (result.skipped, result.fields["status"]) == (1, "skipped")
    assert measures.refreshes.labels("skipped")._value.get() == skipped + 1


async def test_the_gauges_count_what_is_known(ctx: Any, here: Any) -> None:
    """C-06."""
    await refresh.refresh(ctx, here.engines)

    shown = {entity: measures.entries.labels(entity)._value.get() for entity in ("catalog", "schema", "table", "column")}
    assert shown == {"catalog": 2, "schema": 2, "table": 6, "column": 16}


async def test_a_refresh_now_is_a_run_of_the_loop_and_for_operators(ops: Client, analyst: Client, ctx: Any) -> None:
    asked = await ops.post("/api/schema/admin/refresh", json={"reason": "a new table"})

    assert (asked.status_code, asked.json()["data"]["job_name"]) == (202, "schema_cache")
    assert (await ops.post("/api/schema/admin/refresh", json={"reason": "again"})).status_code == 429
    assert (await analyst.post("/api/schema/admin/refresh", json={"reason": "me"})).status_code == 403
