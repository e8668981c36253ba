"""What the port promises, kept by the Trino engine against a server that speaks the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import duckdb
import pytest

from holdfast.engines.port import (
    EngineUnavailable,
    FunctionMissing,
    MissingRole,
    Phase,
    QueryRefused,
    RanTooLong,
)
from holdfast.engines.trino.engine import TrinoEngine
from trino_queries import asking
from trino_server import Refuse, Result, TrinoServer, over_duckdb, sig

PEOPLE = Result([("id", sig("bigint")), ("name", sig("varchar", 50))], [[n, f"name {n}"] for n in range(2500)])


async def all_rows(engine: TrinoEngine, **more: Any) -> list[tuple[Any, ...]]:
    async with engine.stream(asking(**more)) as rows:
        batches = [batch async for batch in rows.batches()]
    return [row for batch in batches for row in zip(*(one.to_pylist() for one in batch.columns), strict=True)]


async def follow(engine: TrinoEngine, handle: Any) -> Any:
    """Poll until it is no longer running."""
    while (status := await engine.poll(handle, asking())).phase is Phase.RUNNING:
        handle = status.handle
    return status


@pytest.mark.parametrize("spooling", [(), ("json+zstd",), ("json+lz4",), ("json",)])
async def test_rows_come_whole_and_in_order_with_and_without_spooling(server: TrinoServer, engine: TrinoEngine, spooling: Any):
    """Z-05: the client of Trino and Starburst."""
    server.backend, server.spooling = lambda _: PEOPLE, spooling
    assert await all_rows(engine) == [tuple(row) for row in PEOPLE.rows]
    assert server.segments == {}  # each was acknowledged
    assert bool(server.acknowledged) == bool(spooling)


async def test_an_empty_result_has_its_columns_and_no_rows(server: TrinoServer, engine: TrinoEngine):
    server.backend = lambda _: Result(PEOPLE.columns, [])
    async with engine.stream(asking()) as rows:
        assert [column.name for column in rows.columns] == ["id", "name"]
        assert [batch async for batch in rows.batches()] == []


async def test_memory_is_bounded_while_nobody_takes_the_rows(server: TrinoServer, engines: Callable[..., TrinoEngine]):
    """The bound holds back the next page: nothing is fetched ahead of a reader that does not read."""
    server.backend, server.page_rows = (lambda _: PEOPLE), 10
    engine = engines(server.url, memory_bytes=2000)
    async with engine.stream(asking()) as rows:
        async for batch in rows.batches():
            assert batch.num_rows == 10
            ahead = len(server.sent("GET /v1/statement/executing"))
            assert ahead < 20
            break


async def test_w_13_every_query_says_who_asks(server: TrinoServer, engines: Callable[..., TrinoEngine]):
    """W-13, W-10, W-11: tags, source with the attempt, and the role of this query."""
    server.backend = lambda _: PEOPLE
    engine = engines(server.url, client_tags=("graph-olap-export",), source="graph-olap-export-worker")
    await all_rows(engine, catalog="hive", schema="s", session={"a": "b c"}, max_seconds=90)
    headers = server.sent("POST /v1/statement")[0].headers
    assert headers["x-trino-client-tags"] == "graph-olap-export,job-7-attempt-abc"
    assert headers["x-trino-source"] == "graph-olap-export-worker/job-7-attempt-abc"
    assert headers["x-trino-role"] == "system=ROLE%7Banalysts%7D"
    assert (headers["x-trino-catalog"], headers["x-trino-schema"]) == ("hive", "s")
    assert headers["x-trino-session"] == "a=b%20c,query_max_execution_time=90s"
    assert headers["x-trino-client-capabilities"] == "PARAMETRIC_DATETIME"
    assert "ROLE" not in str([one.headers for one in server.sent("GET ")])


async def test_w_10_no_role_no_query(server: TrinoServer, engine: TrinoEngine, engines: Callable[..., TrinoEngine]):
    """W-10, Q-03: no default stands in, and nothing is sent."""
    for act in (engine.submit, engine.describe):
        with pytest.raises(MissingRole, match=r"^Missing use case ID \(X-Use-Case-Id header required\)$"):
            await act(asking(role=None))
    with pytest.raises(MissingRole):
        await all_rows(engine, role="")
    assert server.requests == []
    server.backend = lambda _: PEOPLE
    assert len(await all_rows(engines(server.url, role_required=False), role=None)) == 2500
    assert "x-trino-role" not in server.requests[0].headers


@pytest.mark.parametrize("role", ["ALL", "NONE", "a,system=ROLE{admin}", "x}", "é"])
async def test_w_11_a_role_is_one_role_whatever_it_is_called(server: TrinoServer, engine: TrinoEngine, role: str):
    """W-11: nobody gets every role by calling his `ALL`."""
    await engine.submit(asking(role=role))
    assert server.requests[0].headers["x-trino-role"] == f"system={quote(f'ROLE{{{role}}}', safe='')}"


async def test_w_11_concurrent_queries_have_each_their_own_role(server: TrinoServer, engine: TrinoEngine):
    """W-11."""
    server.backend = lambda _: PEOPLE
    asked = [(role, f"job-{number}") for number, role in enumerate(("a", "b", "c") * 5)]

    await asyncio.gather(*(engine.submit(asking(role=role, tag=tag)) for role, tag in asked))

    sent = [one.headers for one in server.sent("POST /v1/statement")]
    roles = {one["x-trino-client-tags"].split(",")[-1]: one["x-trino-role"] for one in sent}
    assert (len(sent), roles) == (15, {tag: f"system=ROLE%7B{role}%7D" for role, tag in asked})


async def test_a_header_cannot_be_smuggled_in(server: TrinoServer, engine: TrinoEngine):
    for more in ({"tag": "a\r\nX-Trino-User: root"}, {"catalog": "a\nb"}, {"schema": "é"}, {"session": {"a=b,c": "d"}}):
        with pytest.raises(QueryRefused, match="printable ASCII|session properties"):
            await engine.submit(asking(**more))
    assert server.requests == []


async def test_describe_runs_nothing_and_knows_the_columns(server: TrinoServer, engine: TrinoEngine):
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT range AS id, 'x' AS name, 1.5::DECIMAL(10,2) AS price FROM range(10)")
        server.backend = over_duckdb(connection)
        columns = await engine.describe(asking("SELECT * FROM t -- all of it\n;"))
        assert [(column.name, column.type) for column in columns] == [
            ("id", "bigint"),
            ("name", "varchar(2147483647)"),
            ("price", "decimal(10, 2)"),
        ]
        with pytest.raises(QueryRefused, match="SYNTAX_ERROR"):
            await engine.describe(asking("SELECT nothing FROM nowhere"))


async def test_w_07_submitted_work_is_looked_at_until_it_names_no_next(server: TrinoServer, engine: TrinoEngine):
    """W-07: submit, nextUri in the handle, one step a look, rows written at the end."""
    server.backend = lambda _: Result([("rows", sig("bigint"))], [[42]], update_count=42)
    server.hold = True
    handle = await engine.submit(asking("CREATE TABLE …"))
    (query,) = server.queries.values()
    assert handle["query_id"] == query.id
    assert not query.began  # it begins with the first look
    first = await engine.poll(handle, asking())
    again = await engine.poll(handle, asking())  # whoever knows only the handle before can repeat the step
    assert first.handle == again.handle != handle
    assert query.began
    query.may_end.set()
    look = await follow(engine, first.handle)
    assert (look.phase, look.rows_written, look.handle["next_uri"]) == (Phase.FINISHED, 42, None)
    # Trino would keep each answer for a second: only the first, which says whether it takes the statement, is worth that.
    waits = ["maxWait=100ms" in one.path for one in server.sent("GET /v1/statement/")]
    assert waits == [False, False, *[True] * (len(waits) - 2)]
    assert len(waits) > 2


async def test_w_18_a_lost_next_uri_is_survivable_through_the_query_id(server: TrinoServer, engine: TrinoEngine):
    """W-18: found by the tag, watched and stopped by the id."""
    server.backend, server.hold = (lambda _: Result(PEOPLE.columns, [], update_count=3)), True
    first = await engine.poll(await engine.submit(asking()), asking())
    found = await engine.find(asking().tag, asking())
    assert found == {"query_id": first.handle["query_id"], "next_uri": None, "info_uri": None}
    look = await engine.poll(found, asking())
    assert (look.phase, look.is_detached, first.is_detached) == (Phase.RUNNING, True, False)
    await engine.cancel(found, asking())
    look = await engine.poll(found, asking())
    assert (look.phase, look.error.code) == (Phase.FAILED, "engine_query_refused")
    assert await engine.find("another tag", asking()) is None


async def test_cancel_is_done_also_when_it_had_ended_or_is_not_known(server: TrinoServer, engine: TrinoEngine):
    server.backend = lambda _: PEOPLE
    look = await follow(engine, await engine.submit(asking()))
    await engine.cancel(look.handle, asking())
    server.restart()
    await engine.cancel(look.handle, asking())
    assert (await engine.poll(look.handle, asking())).phase is Phase.GONE


async def test_leaving_early_cancels_the_query(server: TrinoServer, engine: TrinoEngine):
    server.backend, server.page_rows = (lambda _: PEOPLE), 10
    async with engine.stream(asking()) as rows:
        async for _ in rows.batches():
            break
    (query,) = server.queries.values()
    assert query.error is not None
    assert query.error["errorName"] == "USER_CANCELED"


@pytest.mark.parametrize(
    ("name", "kind", "error", "transient"),
    [
        ("FUNCTION_NOT_FOUND", "USER_ERROR", FunctionMissing, False),
        ("SYNTAX_ERROR", "USER_ERROR", QueryRefused, False),
        ("PERMISSION_DENIED", "USER_ERROR", QueryRefused, False),
        ("EXCEEDED_TIME_LIMIT", "INSUFFICIENT_RESOURCES", RanTooLong, False),
        ("GENERIC_INTERNAL_ERROR", "INTERNAL_ERROR", EngineUnavailable, True),
        ("CLUSTER_OUT_OF_MEMORY", "INSUFFICIENT_RESOURCES", EngineUnavailable, True),
        ("HIVE_FILESYSTEM_ERROR", "EXTERNAL", EngineUnavailable, True),
    ],
)
async def test_w_08_errors_are_told_by_their_name_and_type(
    server: TrinoServer, engine: TrinoEngine, name: str, kind: str, error: type, transient: bool
):
    """W-08: a message that speaks of timeouts or missing functions changes nothing."""

    def refuse(_: str) -> Result:
        raise Refuse(name, kind, "function not found, or a timeout")

    server.backend = refuse
    with pytest.raises(error) as raised:
        await all_rows(engine)
    assert type(raised.value) is error
    assert raised.value.transient is transient
    look = await follow(engine, await engine.submit(asking()))
    assert (look.phase, type(look.error)) == (Phase.FAILED, error)


async def test_entries_are_one_statement_a_catalog_and_unknown_is_never_empty(server: TrinoServer, engine: TrinoEngine):
    """C-01."""
    five = ["table_schema", "table_name", "column_name", "data_type"]
    columns = [(name, sig("varchar", 10)) for name in five] + [("ordinal_position", sig("bigint"))]

    def backend(sql: str) -> Result:
        if sql == "SHOW CATALOGS":
            return Result([("Catalog", sig("varchar", 10))], [["system"], ["hive"], ["empty"], ["broken"]])
        if '"hive"' in sql:
            return Result(columns, [["s", "t", "a", "bigint", 1], ["s", "t", "b", "date", 2]])
        if '"empty"' in sql:
            return Result(columns, [])
        raise Refuse("PERMISSION_DENIED")

    server.backend = backend
    seen: list[Any] = []

    async def look_around() -> None:
        async for entries in engine.entries():
            seen.append([(one.catalog, one.schema, one.table, one.column, one.type, one.position) for one in entries])

    with pytest.raises(QueryRefused):
        await look_around()
    assert seen == [
        [("hive", "s", "t", "a", "bigint", 1), ("hive", "s", "t", "b", "date", 2)],
        [("empty", None, None, None, None, None)],
    ]
    assert len(server.sent("POST")) == 4


async def test_statements_of_ours_are_quoted(engines: Callable[..., TrinoEngine]):
    engine = engines("https://trino.example.com", ctas_schema="lake.exports")
    query = asking("SELECT 1;")
    assert engine.unload_sql(query, "gs://b/it's") == (
        "SELECT * FROM TABLE(system.unload(\n  input => TABLE(\nSELECT 1\n),\n"
        "  location => 'gs://b/it''s',\n  format => 'PARQUET'))"
    )
    assert engine.ctas_sql(query, "s3://b/x") == (
        'CREATE TABLE "lake"."exports"."holdfast_job_7_attempt_abc"\n'
        "WITH (format = 'PARQUET', location = 's3://b/x') AS\nSELECT 1"
    )
    assert "unregister_table" in engine.forget_sql(query)
    hive = engines("https://trino.example.com", ctas_schema="hive.x", ctas_location="external_location")
    assert hive.forget_sql(query) == 'DROP TABLE IF EXISTS "hive"."x"."holdfast_job_7_attempt_abc"'
