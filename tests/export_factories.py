"""Short words for the tests of exports: an engine on a DuckDB in memory, a mapping, and what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb

from holdfast.engines import duckdb as duckdb_engine
from holdfast.engines.port import (
    Capabilities,
    Column,
    EngineError,
    Entry,
    FunctionMissing,
    Phase,
    Progress,
    Query,
    QueryRefused,
    QueryStatus,
    SubmitUnknown,
)
from holdfast.engines.registry import Configured, Engines
from holdfast.services.exports.setup import Exports, exports_from
from holdfast.settings import settings

TABLES = """
    CREATE TABLE customer AS SELECT i AS id, 'customer ' || i AS name, i % 7 AS age FROM range(1, 101) t(i);
    CREATE TABLE account AS SELECT 'a' || i AS number, (i * 1.5)::DECIMAL(12, 2) AS balance FROM range(1, 51) t(i);
    CREATE TABLE owns AS SELECT i AS customer_id, 'a' || (i % 50 + 1) AS account_number, DATE '2026-01-01' AS since
    FROM range(1, 101) t(i);
"""


class TablesEngine:
    """A real DuckDB with three tables, behind the port as far as mappings and the schema cache need it."""

    capabilities: Capabilities = duckdb_engine.CAPABILITIES

    def __init__(self, name: str = "duckdb", tables: str = TABLES) -> None:
        self.name = name
        self.database = duckdb.connect(":memory:")
        self.database.execute(tables)
        self.asked: list[Query] = []
        self.broken: set[str] = set()  # catalogs that cannot be read

    async def describe(self, query: Query) -> tuple[Column, ...]:
        self.asked.append(query)
        try:
            relation = self.database.sql(query.sql)
            schema = relation.limit(0).to_arrow_table().schema
        except duckdb.Error as error:
            raise QueryRefused(str(error).splitlines()[0]) from None
        return tuple(
            Column(name, str(kind), field.type)
            for name, kind, field in zip(relation.columns, relation.types, schema, strict=True)
        )

    def stream(self, query: Query) -> Any:
        raise NotImplementedError

    async def entries(self, catalogs: tuple[str, ...] | None = None) -> AsyncIterator[list[Entry]]:
        rows = self.database.execute(
            "SELECT table_name, column_name, data_type, ordinal_position FROM information_schema.columns ORDER BY 1, 4"
        ).fetchall()
        for catalog in catalogs or ("memory",):
            if catalog in self.broken:
                raise QueryRefused(f"catalog {catalog} is not there")
            yield [Entry(catalog, "main", table, column, kind, place) for table, column, kind, place in rows]

    async def close(self) -> None:
        self.database.close()


def exports(*engines: Any, need_role: Sequence[str] = (), **given: Any) -> Exports:
    """What the API keeps open, as the settings describe it, with these engines."""
    can = {one.name: replace(one.capabilities, needs_role=one.name in need_role) for one in engines}
    configured = {one.name: Configured(can[one.name], lambda one=one: one) for one in engines}
    return replace(exports_from(settings()), engines=Engines(configured), **given)


CUSTOMER = {
    "label": "Customer",
    "sql": "SELECT id, name, age FROM customer",
    "primary_key": {"name": "id", "type": "INT64"},
    "properties": [{"name": "name", "type": "STRING"}, {"name": "age", "type": "INT64"}],
}
ACCOUNT = {
    "label": "Account",
    "sql": "SELECT number, CAST(balance AS DOUBLE) AS balance FROM account",
    "primary_key": {"name": "number", "type": "STRING"},
    "properties": [{"name": "balance", "type": "DOUBLE"}],
}
OWNS = {
    "type": "OWNS",
    "from_node": "Customer",
    "to_node": "Account",
    "sql": "SELECT customer_id, account_number, since FROM owns",
    "from_key": "customer_id",
    "to_key": "account_number",
    "properties": [{"name": "since", "type": "DATE"}],
}


def mapping(**changes: Any) -> dict[str, Any]:
    """A good mapping, but for these changes."""
    return {"name": "bank", "nodes": [CUSTOMER, ACCOUNT], "edges": [OWNS], **changes}


def wrong(answer: Any) -> dict[str, str]:
    """What a 422 points at."""
    assert answer.status_code == 422, answer.text
    return {one["pointer"]: one["message"] for one in answer.json()["errors"]}


class UnloadingEngine(TablesEngine):
    """An engine that runs submitted queries: it writes their files when the test says so."""

    capabilities = replace(duckdb_engine.CAPABILITIES, submits=True)

    def __init__(self, name: str = "duckdb", tables: str = TABLES) -> None:
        super().__init__(name, tables)
        self.queries: dict[str, dict[str, Any]] = {}  # by tag: sql, place, phase
        self.can_unload = True
        self.dies_after_submit = False
        self.cancelled: list[str] = []

    async def submit(self, query: Query) -> Any:
        assert query.tag not in self.queries, "submitted twice under one tag"
        phase = Phase.RUNNING if self.can_unload else Phase.FAILED
        self.queries[query.tag] = {"sql": query.sql, "phase": phase, "role": query.role}
        if self.dies_after_submit:
            raise SubmitUnknown("no answer came")
        return {"query_id": query.tag, "next_uri": f"http://engine/{query.tag}/1"}

    async def poll(self, handle: Any, query: Query) -> QueryStatus:
        found = self.queries.get(handle["query_id"])
        if found is None:
            return QueryStatus(Phase.GONE, handle, Progress("GONE"))
        error = FunctionMissing("function system.unload is not registered") if not self.can_unload else found.get("error")
        return QueryStatus(found["phase"], handle, Progress(found["phase"].name, rows=42), error)

    async def cancel(self, handle: Any, query: Query) -> None:
        self.cancelled.append(handle["query_id"])
        self.queries[handle["query_id"]]["phase"] = Phase.FAILED

    async def find(self, tag: str, query: Query) -> Any:
        return {"query_id": tag, "next_uri": None} if tag in self.queries else None

    def unload_sql(self, query: Query, location: str) -> str:
        return f"COPY ({query.sql}) TO '{unquote(location.removeprefix('file://'))}/part-0.parquet' (FORMAT parquet)"

    def finish(self) -> None:
        """Everything that runs comes to its end, and its files are there."""
        for found in self.queries.values():
            if found["phase"] is Phase.RUNNING:
                place = re.search(r"TO '(.*)/part-0", found["sql"])
                assert place is not None
                Path(place[1]).mkdir(parents=True, exist_ok=True)
                self.database.execute(found["sql"])
                found["phase"] = Phase.FINISHED

    def end(self, phase: Phase, error: EngineError | None = None) -> None:
        """Everything that runs ends so."""
        for found in self.queries.values():
            found["phase"], found["error"] = phase, error


async def refuse(conn: Any, table: str, *ids: int, key: str = "id") -> None:
    """A trigger raises for the rows of these ids, whatever is written to them."""
    await conn.execute(
        f"CREATE FUNCTION holdfast.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.{key} IN"
        f" ({', '.join(map(str, ids))}) THEN RAISE EXCEPTION 'row % is broken', NEW.{key}; END IF; RETURN NEW; END $$;"
        f" CREATE TRIGGER refuse BEFORE UPDATE ON holdfast.{table} FOR EACH ROW EXECUTE FUNCTION holdfast.refuse()"
    )
