"""The schema cache: read in bulk, browsed and searched; what cannot be read is unknown and never empty."""

from __future__ import annotations

import hashlib
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from export_factories import TablesEngine, exports
from factories import value
from holdfast.api.auth import create_token
from holdfast.api.policy import Role
from holdfast.apps import api
from holdfast.engines.registry import Engines
from holdfast.schedule.context import Held, Pass
from holdfast.schedule.registry import Loop
from holdfast.services.exports import measures
from holdfast.services.exports.catalog import refresh
from holdfast.services.exports.catalog.refresh import RefreshFailed
from holdfast.services.exports.figures import ExportFigures
from holdfast.services.exports.loops import loops
from holdfast.services.exports.setup import exports_here
from holdfast.settings import settings
from loop_factories import LONG, nothing, taken

Client = httpx2.AsyncClient


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


def names(answer: httpx2.Response, field: str) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [one[field] for one in answer.json()["data"]]


async def test_catalogs_schemas_tables_and_columns_are_browsed_from_the_cache(
    viewer: Client, engine: Warehouse, ctx: Any, here: Any
) -> None:
    """C-01, C-02, C-07."""
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
    """C-02, C-03, E-27: a failing catalog keeps what was known of it, however long that lasts."""
    await refresh.refresh(ctx, here.engines)
    engine.database.execute("DROP TABLE owns")
    engine.broken.add("risk")
    await conn.execute("UPDATE holdfast.schema_cache SET refreshed_at = refreshed_at - interval '3 days'")
    await conn.execute("UPDATE holdfast.schema_refreshes SET refreshed_at = refreshed_at - interval '3 days'")

    result = await refresh.refresh(ctx, here.engines)

    assert (result.items, result.failed) == (1, 1)
    fresh = "SELECT DISTINCT catalog FROM holdfast.schema_cache WHERE refreshed_at > clock_timestamp() - interval '2 days'"
    assert await value(conn, fresh) == "sales"
    assert names(await viewer.get("/api/schema/catalogs/sales/schemas/main/tables"), "table") == ["account", "customer"]
    assert names(await viewer.get("/api/schema/catalogs/risk/schemas/main/tables"), "table") == ["account", "customer", "owns"]
    stats = {one["catalog"]: one for one in (await viewer.get("/api/schema/stats")).json()["data"]["catalogs"]}
    assert (stats["sales"]["is_stale"], stats["sales"]["error"]) == (False, None)
    assert (stats["risk"]["is_stale"], stats["risk"]["error"]) == (True, "catalog risk is not there")

    engine.broken.clear()
    await refresh.refresh(ctx, here.engines)
    assert names(await viewer.get("/api/schema/catalogs/risk/schemas/main/tables"), "table") == ["account", "customer"]


TOO_LONG = "".join(hashlib.sha256(f"{one}".encode()).hexdigest() for one in range(100))  # it cannot be compressed


@pytest.mark.parametrize(("table", "why"), [("a\0b", "NUL"), (TOO_LONG, "index row size")], ids=["nul", "long"])
async def test_a_catalog_that_the_database_refuses_does_not_keep_the_others(
    viewer: Client, engine: Warehouse, ctx: Any, here: Any, monkeypatch: pytest.MonkeyPatch, table: str, why: str
) -> None:
    """S-16: Postgres stores no NUL character, and no long key. It is counted like a catalog that cannot be read."""
    change(engine, monkeypatch, table=table)

    result = await refresh.refresh(ctx, here.engines)

    assert (result.items, result.failed) == (1, 1)
    assert names(await viewer.get("/api/schema/catalogs/risk/schemas/main/tables"), "table") == ["account", "customer", "owns"]
    stats = {one["catalog"]: one for one in (await viewer.get("/api/schema/stats")).json()["data"]["catalogs"]}
    assert why in stats["sales"]["error"]


async def test_a_catalog_whose_own_name_cannot_be_stored_does_not_keep_the_others(
    viewer: Client, engine: Warehouse, ctx: Any, here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(engine, monkeypatch, catalog="a\0b")

    result = await refresh.refresh(ctx, here.engines)

    assert (result.items, result.failed) == (1, 1)
    assert names(await viewer.get("/api/schema/catalogs/risk/schemas/main/tables"), "table") == ["account", "customer", "owns"]


def change(engine: Warehouse, monkeypatch: pytest.MonkeyPatch, **fields: str) -> None:
    """Let the engine return these fields for all entries of the first catalog."""
    read = engine.entries

    async def changed(catalogs: tuple[str, ...] | None = None) -> Any:
        async for entries in read(catalogs):
            yield [replace(one, **fields) if one.catalog == "sales" else one for one in entries]

    monkeypatch.setattr(engine, "entries", changed)


async def test_when_nothing_can_be_read_the_pass_fails_and_everything_stays(
    engine: Warehouse, ctx: Any, here: Any, conn: Any
) -> None:
    await refresh.refresh(ctx, here.engines)
    before = await value(conn, "SELECT count(*) FROM holdfast.schema_cache")
    engine.broken |= {"sales", "risk"}
    failures = measures.refreshes.labels("failed")._value.get()

    with pytest.raises(RefreshFailed, match="their cached entries were kept"):
        await refresh.refresh(ctx, here.engines)

    assert await value(conn, "SELECT count(*) FROM holdfast.schema_cache") == before
    assert measures.refreshes.labels("failed")._value.get() == failures + 1


async def test_a_catalog_that_is_gone_is_forgotten_when_its_time_is_over(
    engine: Warehouse, ctx: Any, here: Any, conn: Any
) -> None:
    """C-03: after 24 hours."""
    await refresh.refresh(ctx, here.engines)
    engine.catalogs = ("sales",)
    for hours, is_known in ((23, True), (2, False)):
        older = "UPDATE holdfast.schema_refreshes SET refreshed_at = refreshed_at - make_interval(hours => %s)"
        await conn.execute(older, [hours])

        await refresh.refresh(ctx, here.engines)

        assert await value(conn, "SELECT count(*) > 0 FROM holdfast.schema_cache WHERE catalog = 'risk'") is is_known


async def test_without_an_engine_it_is_skipped_and_says_why(ctx: Any, caplog: pytest.LogCaptureFixture) -> None:
    """C-05: a WARNING with the reason, and status=skipped."""
    skipped = measures.refreshes.labels("skipped")._value.get()

    result = await refresh.refresh(ctx, Engines({}))

    (record,) = [one for one in caplog.records if "schema_cache_refresh_skipped" in one.getMessage()]
    assert record.levelname == "WARNING"
    assert "reason='no engine is configured'" in record.getMessage()
    assert (result.skipped, result.fields["status"]) == (1, "skipped")
    assert measures.refreshes.labels("skipped")._value.get() == skipped + 1


@pytest.mark.more
async def test_the_entries_are_counted_from_the_database_by_every_process(
    app: Any, viewer: Client, conn: Any, ctx: Any, here: Any, engine: Warehouse
) -> None:
    """C-06, E-22: refreshes by status with their duration, entries by type, stale entries deleted. A restart loses no entry."""

    async def shown() -> dict[tuple[str, ...], float]:
        app.state.plane.gauges._read_at = None
        families = text_string_to_metric_families((await viewer.get("/metrics")).text)
        return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}

    before = await shown()
    await refresh.refresh(ctx, here.engines)
    engine.broken = {"sales", "risk"}
    with pytest.raises(RefreshFailed):
        await refresh.refresh(ctx, here.engines)
    engine.broken, engine.catalogs = set(), ("sales",)
    await conn.execute("UPDATE holdfast.schema_refreshes SET refreshed_at = refreshed_at - interval '25 hours'")
    await refresh.refresh(ctx, here.engines)

    after = await shown()
    entries = {key[1]: count for key, count in after.items() if key[0] == "schema_cache_entries_total"}
    assert entries == {"catalog": 1, "schema": 1, "table": 3, "column": 8}
    here.figures = ExportFigures()  # another process
    again = await shown()
    assert {key[1]: count for key, count in again.items() if key[0] == "schema_cache_entries_total"} == entries

    def grown(*key: str) -> float:
        return after[key] - before.get(key, 0)

    assert grown("schema_cache_refreshes_total", "success") == 2
    assert grown("schema_cache_refreshes_total", "failed") == 1
    assert grown("schema_cache_refresh_duration_seconds_count") == 3
    assert grown("schema_cache_stale_entries_deleted_total") == 13


async def test_the_cache_is_refreshed_at_the_start_whenever_something_is_missing(
    conn: Any, ctx: Any, engine: Warehouse, here: Any
) -> None:
    """E-20: the first refresh failed, an engine was set up later, or somebody emptied it; not only on a new database."""
    (loop,) = [one for one in loops(settings()) if one.name == refresh.NAME]
    assert loop.is_needed is not None
    here.share()
    engine.broken = {"sales", "risk"}
    with pytest.raises(RefreshFailed):
        await refresh.refresh(ctx, here.engines)
    assert await loop.is_needed(conn), "the first refresh failed"
    engine.broken = set()
    await refresh.refresh(ctx, here.engines)
    assert not await loop.is_needed(conn)

    exports(engine, Warehouse("trino")).share()
    assert await loop.is_needed(conn), "an engine was set up later"

    here.share()
    assert not await loop.is_needed(conn)
    await conn.execute("DELETE FROM holdfast.schema_cache")
    assert await loop.is_needed(conn), "it was emptied"


async def test_the_loop_uses_the_engines_of_the_api(
    database: str, conn: Any, engine: Warehouse, here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-04: `holdfast serve` opens one client for both, before its loops begin, and closes it after they have ended."""
    order: list[str] = []
    used: list[Any] = []

    @asynccontextmanager
    async def scheduler(url: str, given: Any) -> Any:
        used.append(exports_here())
        order.append("loops begin")
        yield
        order.append("loops have ended")

    async def closed() -> None:
        order.append("closed")

    async def served(self: Any) -> None:
        order.append("served")

    monkeypatch.setattr(here.engines, "close", closed)
    monkeypatch.setattr("holdfast.apps.api.catalog.resources", lambda given: {"exports": here})
    monkeypatch.setattr("holdfast.apps.api.scheduler_for", scheduler)
    monkeypatch.setattr("holdfast.apps.api.Server.serve", served)
    await create_token(conn, "ops", Role("ops"), by="test")

    await api._serve(database, settings(), "test", print, True)

    assert used == [here]
    assert order == ["loops begin", "served", "loops have ended", "closed"]


async def test_a_refresh_now_is_a_run_of_the_loop_and_for_operators(ops: Client, analyst: Client, ctx: Any) -> None:
    asked = await ops.post("/api/schema/admin/refresh", json={"reason": "a new table"})

    assert (asked.status_code, asked.json()["data"]["job_name"]) == (202, "schema_cache")
    assert (await ops.post("/api/schema/admin/refresh", json={"reason": "again"})).status_code == 429
    assert (await analyst.post("/api/schema/admin/refresh", json={"reason": "me"})).status_code == 403
