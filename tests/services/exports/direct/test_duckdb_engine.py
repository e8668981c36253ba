"""DuckDB behind the port: what it may read, what it refuses, how it is stopped, and what its types become."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from holdfast.engines.duckdb.engine import BATCH_BYTES, DuckDbEngine, batch_rows
from holdfast.engines.duckdb.errors import arrow_error
from holdfast.engines.duckdb.sandbox import open_sandbox
from holdfast.engines.port import EngineError, EngineLost, EngineUnavailable, Entry, Query, QueryRefused
from holdfast.parquet.schema import fitted, storable_schema

MINUTE = 60


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder that DuckDB may read, with a file and a database; beside it one that it may not."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "people.csv").write_text("name,age\nada,36\n")
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with duckdb.connect(str(folder / "shop.duckdb")) as shop:
        shop.execute("CREATE SCHEMA sales; CREATE TABLE sales.orders (id BIGINT, price DECIMAL(9,2))")
        shop.execute("INSERT INTO sales.orders VALUES (1, 2.50)")
    return folder


@pytest.fixture
async def engine(data: Path, tmp_path: Path) -> AsyncIterator[DuckDbEngine]:
    scratch = tmp_path / "scratch"
    shop = {"shop": data / "shop.duckdb"}
    engine = DuckDbEngine(partial(open_sandbox, folders=[data], attach=shop, memory="200MB", scratch=scratch))
    yield engine
    await engine.close()


def q(sql: str, **said: Any) -> Query:
    return Query(sql, "tag", **said)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def all_of(engine: DuckDbEngine, sql: str, **said: Any) -> list[dict[str, Any]]:
    async with engine.stream(q(sql, **said)) as rows:
        return [row async for batch in rows.batches() for row in batch.to_pylist()]


async def test_it_reads_files_of_its_folder_and_attached_databases(engine: DuckDbEngine, data: Path):
    assert await all_of(engine, f"SELECT * FROM '{data}/people.csv'") == [{"name": "ada", "age": 36}]
    assert await all_of(engine, "SELECT price FROM shop.sales.orders") == [{"price": Decimal("2.50")}]
    assert await all_of(engine, "SELECT id FROM orders", catalog="shop", schema="sales") == [{"id": 1}]


variable_of_this_process = pa.table({"a": [1]})


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM '{outside}/secret.csv'",
        "SELECT * FROM '{outside}/data/../secret.csv'",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM sniff_csv('/etc/passwd')",
        "SELECT * FROM parquet_metadata('/etc/passwd')",
        "SELECT * FROM variable_of_this_process",
        "SELECT getenv('HOME')",
    ],
)
async def test_it_reads_nothing_else(engine: DuckDbEngine, tmp_path: Path, sql: str):
    with pytest.raises(QueryRefused):
        await all_of(engine, sql.format(outside=tmp_path))


async def test_it_speaks_to_nobody(engine: DuckDbEngine):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/x.parquet"

        with pytest.raises(QueryRefused):
            await all_of(engine, f"SELECT * FROM '{address}'")

        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1; SELECT 2",
        "COPY (SELECT 1) TO '{data}/x.csv'",
        "CREATE TABLE t AS SELECT 1",
        "INSERT INTO shop.sales.orders VALUES (2, 1)",
        "ATTACH '{data}/other.duckdb'",
        "SET threads = 1",
        "PRAGMA version",
        "SHOW TABLES",
        "DESCRIBE SELECT 1",
        "EXPLAIN SELECT 1",
        "LOAD httpfs",
        "INSTALL httpfs",
        "CALL pragma_version()",
        "USE shop",
        "SELEC 1",
        "",
        "-- nothing",
    ],
)
async def test_it_refuses_everything_but_one_select(engine: DuckDbEngine, data: Path, sql: str):
    before = names_in(data)
    for act in (engine.describe(q(sql.format(data=data))), all_of(engine, sql.format(data=data))):
        with pytest.raises(QueryRefused):
            await act
    assert names_in(data) == before


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 AS x;",
        "-- why\nSELECT 1 AS x -- so",
        "(SELECT 1 AS x)",
        "WITH a AS (SELECT 1 AS x) FROM a",
        "/* */ VALUES (1)",
    ],
)
async def test_it_takes_a_select_however_it_is_written(engine: DuckDbEngine, sql: str):
    assert [list(row.values()) for row in await all_of(engine, sql)] == [[1]]


async def test_a_query_is_described_and_not_run(engine: DuckDbEngine):
    columns = await engine.describe(q("SELECT error('it ran') AS a, 1::HUGEINT AS b FROM range(10)"))

    assert [(column.name, column.type) for column in columns][1] == ("b", "HUGEINT")


# Names of types as DuckDB says them, a value, and what it is at the other end.
TYPES: list[tuple[str, Any]] = [
    ("(-128)::TINYINT", -128),
    ("18446744073709551615::UBIGINT", 2**64 - 1),
    ("99999999999999999999999999999999999999::HUGEINT", Decimal(10**38 - 1)),
    ("[1::UHUGEINT, NULL]", [Decimal(1), None]),
    ("{'a b': 1::HUGEINT, 'HUGEINT': 2}", {"a b": Decimal(1), "HUGEINT": 2}),
    ("MAP {'k': [1::HUGEINT]}", [("k", [Decimal(1)])]),
    ("[1, 2]::INTEGER[2]", [1, 2]),
    ("1.25::DECIMAL(38, 10)", Decimal("1.2500000000")),
    ("'10:00:00+02'::TIMETZ", "10:00:00+02"),
    ("'1010'::BIT", "1010"),
    ("'a'::ENUM('a', 'b')", "a"),
    ("INTERVAL '1 month 2 days 3.5 seconds'", "P1M2DT3.5S"),
    ("union_value(n := 1)", {"tag": "n", "n": 1}),
    ("'ü€😀'", "ü€😀"),
    ("'\\x00\\xFF'::BLOB", b"\x00\xff"),
    ("NULL", None),
    ("'6b8a2ad4-8a4a-4b6e-9d5c-0f8d5a1a2b3c'::UUID", "6b8a2ad4-8a4a-4b6e-9d5c-0f8d5a1a2b3c"),
    ("123456789012345678901234567890::BIGNUM", "123456789012345678901234567890"),
]


@pytest.mark.parametrize(("expression", "value"), TYPES)
async def test_every_type_arrives_whole(engine: DuckDbEngine, expression: str, value: Any):
    async with engine.stream(q(f"SELECT {expression} AS x")) as rows:
        schema = storable_schema(rows.columns)
        found = [fitted(batch, schema).to_pylist() async for batch in rows.batches()]

    assert found == [[{"x": value}]]


async def test_a_number_that_no_column_can_hold_is_refused_and_not_bent(engine: DuckDbEngine):
    with pytest.raises(QueryRefused, match="Could not cast"):
        await all_of(engine, "SELECT 170141183460469231731687303715884105727::HUGEINT AS x")


async def test_an_order_by_is_kept_also_where_columns_are_cast(engine: DuckDbEngine):
    found = await all_of(engine, "SELECT i::HUGEINT AS x FROM range(200000) t(i) ORDER BY i DESC")

    assert [int(row["x"]) for row in found] == list(range(199_999, -1, -1))


# ---------------------------------------------------------------------------------------------------------------------
# Running and stopping
# ---------------------------------------------------------------------------------------------------------------------

ENDLESS = "SELECT max(hash(a.i, b.i)) AS x FROM range(10000000) a(i), range(10000000) b(i)"


async def test_a_query_that_nobody_waits_for_is_stopped(engine: DuckDbEngine):
    async with asyncio.timeout(MINUTE):
        async with engine.stream(q(ENDLESS)) as rows:
            reading = asyncio.create_task(anext(rows.batches()))
            while rows._running is None:  # in its thread, or on its way to one: it is stopped either way
                await asyncio.sleep(0)
            reading.cancel()
        assert reading.cancelled() or await asyncio.wait({reading})
    assert await all_of(engine, "SELECT 1 AS x") == [{"x": 1}]


async def test_leaving_early_is_no_error(engine: DuckDbEngine):
    async with asyncio.timeout(MINUTE), engine.stream(q("SELECT i FROM range(50000000) t(i)")) as rows:
        assert rows.columns[0].name == "i"
        async for batch in rows.batches():
            assert batch.num_rows
            break


async def test_an_error_half_way_says_why(tmp_path: Path):
    """With one thread. With several, DuckDB raises the interrupt of another thread instead in 1 of 400 queries."""
    engine = DuckDbEngine(partial(open_sandbox, memory="200MB", threads=1, scratch=tmp_path / "scratch"))
    sql = "SELECT CASE WHEN i < 2000000 THEN '1' ELSE 'x' END::INTEGER AS x FROM range(3000000) t(i)"
    try:
        with pytest.raises(QueryRefused, match="Could not convert string"):
            await all_of(engine, sql)
    finally:
        await engine.close()


async def test_too_little_memory_is_worth_another_try(data: Path, tmp_path: Path):
    engine = DuckDbEngine(partial(open_sandbox, memory="10MB", threads=1, scratch=tmp_path / "scratch"))
    try:
        with pytest.raises(EngineUnavailable):
            await all_of(engine, "SELECT list(i) AS x FROM range(10000000) t(i)")
    finally:
        await engine.close()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Conversion Error: no", QueryRefused),
        ("Out of Memory Error: no", EngineUnavailable),
        ("INTERRUPT Error: Interrupted!", EngineLost),
        ("something else", EngineUnavailable),
    ],
)
def test_an_error_that_arrow_passes_on_keeps_its_meaning(text: str, kind: type[EngineError]):
    assert type(arrow_error(text)) is kind


def test_rows_are_read_by_the_width_of_their_types_and_few_at_once_where_it_is_unknown():
    assert batch_rows(pa.schema([("a", pa.int8())])) == 122_880
    assert batch_rows(pa.schema([(str(n), pa.int64()) for n in range(1_000)])) == 2_048
    for kind in (pa.string(), pa.binary(), pa.list_(pa.int8())):
        assert batch_rows(pa.schema([("a", pa.int8()), ("b", kind)])) == 256


@pytest.mark.parametrize(("width", "rows"), [(4, 2_000_000), (20_000, 4_096), (100_000, 1_024)])
async def test_a_batch_has_a_few_megabytes_however_long_its_texts_are(engine: DuckDbEngine, width: int, rows: int):
    sizes: list[tuple[int, int]] = []
    async with engine.stream(q(f"SELECT repeat('x', {width}) AS a FROM range({rows})")) as stream:
        async for batch in stream.batches():
            sizes.append((batch.num_rows, batch.nbytes))

    one_read = 256 * (width + 4)
    assert sum(found for found, _ in sizes) == rows
    assert max(size for _, size in sizes) <= BATCH_BYTES + one_read
    assert all(size > BATCH_BYTES / 2 for _, size in sizes[:-1]), "short texts are joined to large batches"


async def test_its_catalogs_are_listed(engine: DuckDbEngine):
    found = {entries[0].catalog: entries async for entries in engine.entries()}

    assert found["shop"] == [
        Entry("shop", "sales", "orders", "id", "BIGINT", 1),
        Entry("shop", "sales", "orders", "price", "DECIMAL(9,2)", 2),
    ]
    with pytest.raises(QueryRefused, match="no catalog"):
        [_ async for _ in engine.entries(("nowhere",))]
