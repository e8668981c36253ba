"""The contract of engines, kept with a real Trino: what our own server believes of Trino is what Trino does."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trino_cluster import TrinoCluster

from holdfast.engines.port import (
    EngineUnavailable,
    FunctionMissing,
    Phase,
    Query,
    QueryRefused,
    QueryStatus,
    RanTooLong,
    UntrustedUri,
)
from holdfast.engines.trino.engine import TrinoEngine

LONG = "SELECT count(*) FROM tpch.sf100.lineitem a CROSS JOIN tpch.sf100.lineitem b"

EVERY_TYPE = {
    "true": (pa.bool_(), True),
    "CAST(-128 AS tinyint)": (pa.int8(), -128),
    "CAST(-32768 AS smallint)": (pa.int16(), -32768),
    "CAST(-2147483648 AS integer)": (pa.int32(), -(2**31)),
    "CAST(-9223372036854775807 AS bigint)": (pa.int64(), -(2**63) + 1),
    "CAST(1.5 AS real)": (pa.float32(), 1.5),
    "CAST(infinity() AS real)": (pa.float32(), float("inf")),
    "DOUBLE '1.0E300'": (pa.float64(), 1e300),
    "-infinity()": (pa.float64(), float("-inf")),
    "DECIMAL '12345678901234567890123456789012345678'": (
        pa.decimal128(38, 0),
        Decimal("12345678901234567890123456789012345678"),
    ),
    "DECIMAL '-1.50'": (pa.decimal128(3, 2), Decimal("-1.50")),
    "CAST('ab' AS char(4))": (pa.string(), "ab  "),
    "U&'a\"],[\\\\ \\000A \\4E2D \\+01F600'": (pa.string(), 'a"],[\\ \n 中 😀'),
    "X'00FF10'": (pa.binary(), b"\x00\xff\x10"),
    "DATE '2024-02-29'": (pa.date32(), date(2024, 2, 29)),
    "DATE '0001-01-01'": (pa.date32(), date.min),
    "TIME '01:02:03.456789'": (pa.time64("us"), datetime(1, 1, 1, 1, 2, 3, 456789).time()),  # noqa: DTZ001
    "TIMESTAMP '2024-02-29 01:02:03'": (pa.timestamp("ms"), datetime(2024, 2, 29, 1, 2, 3)),  # noqa: DTZ001
    "TIMESTAMP '9999-12-31 23:59:59.999999'": (
        pa.timestamp("us"),
        datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
    ),
    "INTERVAL '2' DAY": (pa.string(), "2 00:00:00.000"),
    "INTERVAL '3' MONTH": (pa.string(), "0-3"),
    "TIME '01:02:03.456 +05:30'": (pa.string(), "01:02:03.456+05:30"),
    "UUID '12151fd2-7586-11e9-8f9e-2a86e4085a59'": (pa.string(), "12151fd2-7586-11e9-8f9e-2a86e4085a59"),
    "IPADDRESS '2001:db8::1'": (pa.string(), "2001:db8::1"),
    'JSON \'{"a": [1, "b"]}\'': (pa.string(), '{"a":[1,"b"]}'),
    "NULL": (pa.null(), None),
    "ST_Point(1, 2)": (pa.string(), "POINT (1 2)"),
    "ARRAY[1, NULL, 3]": (pa.list_(pa.int32()), [1, None, 3]),
    "MAP(ARRAY[DATE '2024-01-01'], ARRAY[ARRAY['x', NULL]])": (
        pa.map_(pa.date32(), pa.list_(pa.string())),
        [(date(2024, 1, 1), ["x", None])],
    ),
    "CAST(ROW(1, ROW('x', 1.5)) AS ROW(a bigint, b ROW(c varchar, d decimal(5, 2))))": (
        pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string()), ("d", pa.decimal128(5, 2))]))]),
        {"a": 1, "b": {"c": "x", "d": Decimal("1.50")}},
    ),
}


def asking(sql: str, **more: Any) -> Query:
    return Query(sql, **{"tag": f"real-{uuid.uuid4().hex}", **more})


async def fetch(engine: TrinoEngine, query: Query) -> pa.Table:
    async with engine.stream(query) as rows:
        schema = pa.schema([(column.name, column.arrow) for column in rows.columns])
        return pa.Table.from_batches([batch async for batch in rows.batches()], schema)


async def finish(engine: TrinoEngine, query: Query) -> QueryStatus:
    """Submit it and poll until it has ended."""
    handle = await engine.submit(query)
    while (status := await engine.poll(handle, query)).phase is Phase.RUNNING:
        handle = status.handle
    return status


@pytest.mark.parametrize("expression", EVERY_TYPE)
async def test_every_type_comes_as_it_is_described(engine: TrinoEngine, expression: str):
    arrow, value = EVERY_TYPE[expression]
    query = asking(f"SELECT {expression} AS x FROM (VALUES 1, 2) AS t(n) WHERE n = 1")
    table = await fetch(engine, query)
    assert table.schema.field(0).type == arrow
    assert table.column(0).to_pylist() == [value]
    (described,) = await engine.describe(query)
    assert described.arrow == arrow
    empty = await fetch(engine, asking(f"SELECT {expression} AS x FROM (VALUES 1) AS t(n) WHERE n = 2"))
    assert (empty.num_rows, empty.schema.field(0).type) == (0, arrow)


@pytest.mark.parametrize("digits", [0, 3, 6, 9, 12])
async def test_instants_of_every_precision_are_kept(engine: TrinoEngine, digits: int):
    zones = ["UTC", "Europe/Berlin", "+05:30", "America/New_York"]
    at = f"CAST(from_unixtime(1719835200.123) AS timestamp({digits}) with time zone)"
    columns = ", ".join(f"{at} AT TIME ZONE '{zone}'" for zone in zones)
    table = await fetch(engine, asking(f"SELECT {columns}"))
    seconds = {column.cast(pa.timestamp("ns", "UTC")).cast(pa.int64())[0].as_py() // 10**9 for column in table.columns}
    assert seconds == {1719835200}


@pytest.mark.parametrize("encodings", [(), ("json",), ("json+lz4",), ("json+zstd",)])
async def test_tpch_tables_come_whole_with_and_without_spooling(
    engines: Callable[..., TrinoEngine], encodings: tuple[str, ...]
):
    engine = engines(encodings=encodings)
    table = await fetch(engine, asking("SELECT * FROM tpch.tiny.lineitem"))
    (expected,) = (
        await fetch(
            engine, asking("SELECT count(*), sum(orderkey), sum(length(comment)), max(shipdate) FROM tpch.tiny.lineitem")
        )
    ).to_pylist()
    comments = sum(map(len, table.column("comment").to_pylist()))
    found = (table.num_rows, pa.compute.sum(table.column("orderkey")).as_py(), comments)
    assert (*found, pa.compute.max(table.column("shipdate")).as_py()) == tuple(expected.values())


async def test_segments_in_a_store_that_was_not_named_are_not_fetched(engines: Callable[..., TrinoEngine]):
    """It is the real spooling protocol that the test before has seen: the segments lie in the store."""
    with pytest.raises(UntrustedUri, match="HOLDFAST_TRINO_SEGMENT_ORIGINS"):
        await fetch(engines(segment_origins=()), asking("SELECT * FROM tpch.tiny.lineitem"))


async def test_a_query_begins_with_its_first_look_and_each_step_can_be_repeated(engine: TrinoEngine):
    query = asking(LONG)
    handle = await engine.submit(query)
    assert await engine.find(query.tag, query) is None  # sent, and not begun: forgotten, it would never run
    first, again = await engine.poll(handle, query), await engine.poll(handle, query)
    assert first.phase is again.phase is Phase.RUNNING
    assert "/v1/statement/" in again.handle["next_uri"]
    found = await engine.find(query.tag, query)
    assert found is not None
    assert found["query_id"] == handle["query_id"]
    await engine.cancel(first.handle, query)


async def test_a_lost_query_is_found_watched_and_stopped_by_its_id(engine: TrinoEngine):
    query = asking(LONG)
    handle = await engine.submit(query)
    await engine.poll((await engine.poll(handle, query)).handle, query)
    lost = await engine.find(query.tag, query)
    assert lost is not None
    assert (await engine.poll(lost, query)).is_detached  # it would wait for its reader until Trino lets it go
    behind = await engine.poll(handle, query)  # an address two steps back
    assert behind.phase is Phase.RUNNING
    await engine.cancel(lost, query)
    await engine.cancel(lost, query)
    look = await engine.poll(lost, query)
    assert (look.phase, look.error.detail["engine_error"]) == (Phase.FAILED, "USER_CANCELED")


async def test_leaving_early_cancels_the_query(engine: TrinoEngine):
    query = asking("SELECT * FROM tpch.sf1.lineitem")
    async with engine.stream(query) as rows:
        async for _ in rows.batches():
            break
        query_id = rows.query_id
    look = await engine.poll({"query_id": query_id, "next_uri": None}, query)
    assert look.phase is Phase.FAILED


async def test_it_ends_at_its_time_by_the_engines_own_bound(engine: TrinoEngine):
    query = asking(LONG, session={"query_max_execution_time": "2s"})
    look = await finish(engine, query)
    assert isinstance(look.error, RanTooLong)


async def test_a_role_that_nobody_has_is_refused(engine: TrinoEngine):
    with pytest.raises(QueryRefused, match="Cannot set role nobody_has_it"):
        await engine.submit(asking("SELECT 1", role="nobody_has_it"))


async def test_errors_are_told_by_name(engine: TrinoEngine):
    query = asking("SELECT 1 AS a", catalog="tpch")
    with pytest.raises(FunctionMissing):
        await engine.describe(asking(engine.unload_sql(query, "s3://bucket/x"), catalog="tpch"))
    for sql in ("SELEKT", "SELECT * FROM tpch.tiny.nothing", "SELECT 1/0"):
        with pytest.raises(QueryRefused):
            await fetch(engine, asking(sql))


async def test_ctas_writes_parquet_in_its_place_and_the_table_can_be_let_go(engine: TrinoEngine, cluster: TrinoCluster):
    await finish(engine, asking("CREATE SCHEMA IF NOT EXISTS lake.exports"))
    query = asking("SELECT nationkey, name, regionkey FROM tpch.tiny.nation")
    place = f"out/{query.tag}"
    look = await finish(engine, asking(engine.ctas_sql(query, f"local:///{place}")))
    assert (look.phase, look.rows_written) == (Phase.FINISHED, 25)
    assert (await finish(engine, asking(engine.forget_sql(query)))).phase is Phase.FINISHED
    files = list((cluster.warehouse / place).rglob("*.parquet"))
    tables = [pq.ParquetFile(path).read() for path in files]
    assert sum(table.num_rows for table in tables) == 25
    assert tables[0].column_names == ["nationkey", "name", "regionkey"]


async def test_entries_of_its_catalogs(engine: TrinoEngine):
    found = {entry.catalog: entries async for entries in engine.entries(("tpch", "memory")) for entry in entries[:1]}
    nation = [entry for entry in found["tpch"] if (entry.schema, entry.table) == ("tiny", "nation")]
    assert sorted((entry.position, entry.column) for entry in nation)[:2] == [(1, "nationkey"), (2, "name")]
    assert [entry.table for entry in found["memory"]] == [None]
    catalogs = [entries[0].catalog async for entries in engine.entries()]
    assert set(catalogs) == {"tpch", "memory", "lake"}


async def test_twenty_queries_are_looked_at_side_by_side(engine: TrinoEngine):
    queries = [asking("SELECT count(*) FROM tpch.tiny.orders") for _ in range(20)]
    polls = await asyncio.gather(*(finish(engine, query) for query in queries))
    assert {poll.phase for poll in polls} == {Phase.FINISHED}


async def test_zz_after_a_kill_every_query_is_lost_and_the_next_one_runs(engine: TrinoEngine, cluster: TrinoCluster):
    """The last of all: the server is ended and started again."""
    query = asking(LONG)
    handle = (await engine.poll(await engine.submit(query), query)).handle
    cluster.kill()
    with pytest.raises(EngineUnavailable):
        await engine.poll(handle, query)
    await asyncio.to_thread(cluster.start)
    assert (await engine.poll(handle, query)).phase is Phase.GONE
    assert (await first_answer(engine)).column(0).to_pylist() == [42]


async def first_answer(engine: TrinoEngine) -> pa.Table:
    """Trino says that it has started before it has counted its workers."""
    for _ in range(60):
        try:
            return await fetch(engine, asking("SELECT 42"))
        except EngineUnavailable:
            await asyncio.sleep(1)
    return await fetch(engine, asking("SELECT 42"))
