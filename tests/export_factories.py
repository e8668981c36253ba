"""Short words for the tests of exports: an engine on a DuckDB in memory, a mapping, and what is wrong with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import duckdb

from holdfast.services.exports.engines.opened import Engines
from holdfast.services.exports.engines.port import Column, Entry, Query, QueryRefused
from holdfast.services.exports.setup import Exports

TABLES = """
    CREATE TABLE customer AS SELECT i AS id, 'customer ' || i AS name, i % 7 AS age FROM range(1, 101) t(i);
    CREATE TABLE account AS SELECT 'a' || i AS number, (i * 1.5)::DECIMAL(12, 2) AS balance FROM range(1, 51) t(i);
    CREATE TABLE owns AS SELECT i AS customer_id, 'a' || (i % 50 + 1) AS account_number, DATE '2026-01-01' AS since
    FROM range(1, 101) t(i);
"""


class TablesEngine:
    """A real DuckDB with three tables, behind the port as far as mappings and the schema cache need it."""

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
    """What the API keeps open, with these engines."""
    return Exports(Engines({one.name: lambda one=one: one for one in engines}, need_role=frozenset(need_role)), **given)


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
