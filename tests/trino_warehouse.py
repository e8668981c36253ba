"""A warehouse behind the Trino of the tests: DuckDB, with Starburst's `unload` and CREATE TABLE AS in a place."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import duckdb

from trino_server import Backend, Refuse, Result, over_duckdb, sig

UNLOAD = re.compile(r"system\.unload\(\s*input => TABLE\(\n(.*)\n\),\s*location => '(.*)',", re.S)
CTAS = re.compile(r"CREATE TABLE (\S+)\nWITH \(format = 'PARQUET', location = '(.*)'\) AS\n(.*)", re.S)


def warehouse(connection: duckdb.DuckDBPyConnection, *, unloads: bool = True) -> Backend:
    """The backend of a `TrinoServer`."""
    answer = over_duckdb(connection)

    def write(sql: str, place: str) -> Result:
        folder = Path(unquote(place.removeprefix("file://")))
        folder.mkdir(parents=True, exist_ok=True)
        connection.cursor().execute(f"COPY ({sql}) TO '{folder}/part-0.parquet' (FORMAT parquet)")
        return Result([("rows", sig("bigint"))], [[1]], update_count=1)

    def run(sql: str) -> Result:
        if found := UNLOAD.search(sql):
            if not unloads:
                raise Refuse("FUNCTION_NOT_FOUND", message="Table function 'system.unload' not registered")
            return write(found[1], found[2])
        if found := CTAS.search(sql):
            return write(found[3], found[2])
        if "unregister_table" in sql:
            return Result([("result", sig("boolean"))], [[True]])
        return answer(sql)

    return run
