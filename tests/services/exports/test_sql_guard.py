"""What the SQL of an export may call: a function as a source only from an allow-list, however the call is written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import httpx2
import pyarrow.parquet as pq
import pytest
from psycopg.types.json import Jsonb

from export_factories import mapping, wrong
from factories import rows
from holdfast.engines.duckdb import DIALECT as DUCKDB
from holdfast.engines.duckdb.engine import DuckDbEngine
from holdfast.engines.duckdb.guard import one_select
from holdfast.engines.duckdb.sandbox import Sandbox, open_sandbox
from holdfast.engines.port import EngineUnavailable, Query, QueryRefused
from holdfast.engines.select import reasons_against
from holdfast.engines.sources import COMPUTED_SOURCES, FILE_SOURCES, is_refused_scalar
from holdfast.engines.trino import DIALECT as TRINO
from holdfast.services.exports.kinds import KINDS
from holdfast.services.exports.setup import Exports, exports_from
from holdfast.settings import settings
from holdfast.testing import Harness, harness

Client = httpx2.AsyncClient
LOGS_TO_A_FILE = "enable_logging(storage := 'file', storage_config := {'path': '/nowhere/x'})"

# Every way to write a call as a source, or to reach a system view, another statement or a file.
ATTACKS = [
    f"SELECT t.i AS id FROM range(1) t(i) LEFT JOIN LATERAL {LOGS_TO_A_FILE} l ON true",
    "SELECT 1 AS id FROM enable_logging('QueryLog')",
    'SELECT 1 AS id FROM "enable_logging"()',
    'SELECT 1 AS id FROM "Enable_LOGGING"()',
    "SELECT 1 AS id FROM system.main.enable_logging()",
    'SELECT 1 AS id FROM "system"."main"."enable_logging"()',
    "FROM enable_logging() SELECT 1 AS id",
    "FROM (FROM enable_logging())",
    "SELECT 1 AS id FROM range(1), enable_logging()",
    "SELECT 1 AS id FROM range(1) CROSS JOIN enable_logging()",
    "SELECT 1 AS id FROM range(1) CROSS JOIN LATERAL enable_logging()",
    "SELECT 1 AS id FROM range(1), LATERAL (SELECT * FROM enable_logging())",
    "SELECT 1 AS id FROM range(1) POSITIONAL JOIN enable_logging()",
    "SELECT 1 AS id FROM range(1) t(i) ASOF JOIN enable_logging() l ON t.i >= 1",
    "SELECT 1 AS id FROM range(1) SEMI JOIN enable_logging() ON true",
    "WITH x AS (SELECT * FROM enable_logging()) SELECT 1 AS id",
    "WITH RECURSIVE x AS (SELECT 1 AS i UNION ALL SELECT 1 FROM x, enable_logging() WHERE i < 2) SELECT i AS id FROM x",
    "SELECT (SELECT count(*) FROM enable_logging()) AS id",
    "SELECT 1 AS id WHERE EXISTS (FROM enable_logging())",
    "SELECT 1 AS id ORDER BY (SELECT count(*) FROM enable_logging())",
    "SELECT 1 AS id LIMIT (SELECT count(*) FROM enable_logging())",
    "SELECT 1 AS id UNION ALL SELECT 1 FROM enable_logging()",
    "SELECT list_transform([1], lambda x: (SELECT count(*) FROM enable_logging())) AS id",
    "SELECT * FROM (PIVOT enable_logging() ON 1 IN (1) USING count(*))",
    "SELECT * FROM (UNPIVOT enable_logging() ON a INTO NAME n VALUE v)",
    "VALUES ((SELECT count(*) FROM enable_logging()))",
    "SELECT 1 AS id FROM (DESCRIBE FROM enable_logging())",
    "SELECT * FROM (SUMMARIZE FROM enable_logging())",
    "SELECT * FROM (SHOW TABLES)",
    "SELECT 1 AS id FROM query('FROM enable_logging()')",
    "SELECT 1 AS id FROM query_table('duckdb_logs')",
    "SELECT 1 AS id FROM json_execute_serialized_sql(json_serialize_sql('FROM enable_logging()'))",
    "SELECT json_serialize_plan('FROM enable_logging()') AS id",
    "SELECT upper(json_serialize_plan('FROM enable_logging()')) AS id",
    "SELECT write_log('x') AS id",
    "SELECT ('x').write_log() AS id",
    "SELECT ('temp_directory').current_setting() AS id",
    "SELECT \"current_setting\"('temp_directory') AS id",
    "SELECT upper(current_setting('temp_directory')) AS id",
    "SELECT system.main.current_setting('temp_directory') AS id",
    "SELECT count(*) OVER (PARTITION BY current_setting('threads')) AS id",
    "SELECT list_transform([1], lambda x: current_setting('threads')) AS id",
    "SELECT max(1) FILTER (current_setting('threads') = '1') AS id",
    "SELECT getenv('HOME') AS id",
    "SELECT sleep_ms(1) AS id",
    "SELECT pg_sleep(1) AS id",
    "SELECT * FROM duckdb_logs",
    'SELECT * FROM "DuckDB_Logs"',
    "SELECT * FROM main.duckdb_logs",
    "SELECT * FROM system.main.duckdb_logs",
    "SELECT * FROM duckdb_logs()",
    "SELECT * FROM duckdb_logs_parsed('QueryLog')",
    "SELECT * FROM pg_settings",
    "SELECT * FROM pg_catalog.pg_settings",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM system.information_schema.tables",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_temporary_files()",
    "SELECT * FROM sqlite_master",
    "TABLE duckdb_logs",
    "SELECT * FROM 'x.csv'",
    'SELECT * FROM "read_blob"(\'/etc/passwd\')',
    "SELECT * FROM range(1), LATERAL read_text('/etc/passwd')",
    "SELECT * FROM glob('/tmp/*')",
    "SELECT * FROM checkpoint()",
    "SELECT * FROM histogram(duckdb_logs, message)",
    "CALL enable_logging()",
    "PRAGMA enable_logging",
    "PREPARE x AS SELECT 1",
]  # fmt: skip

ALLOWED = [
    "SELECT i AS id FROM range(3) t(i) ORDER BY i DESC NULLS LAST LIMIT 2 OFFSET 1",
    "SELECT * FROM generate_series(1, 3) a(x) CROSS JOIN unnest([1, 2]) b(y), LATERAL (SELECT x + y AS z)",
    "WITH a AS MATERIALIZED (VALUES (1, 'x')), b AS (FROM a) SELECT * FROM a JOIN b USING (col0)",
    "WITH RECURSIVE x AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM x WHERE i < 3) SELECT i FROM x",
    "SELECT sum(i) OVER (ORDER BY i ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS s FROM range(3) t(i) QUALIFY s > 1",
    "SELECT * FROM (PIVOT (SELECT 1 AS a, 2 AS b) ON a IN (1, 2) USING sum(b))",
    "SELECT * FROM (UNPIVOT (SELECT 1 AS a, 2 AS b) ON a, b INTO NAME n VALUE v)",
    "SELECT list_transform([1], lambda x: x + 1) AS l, {'a': 1} AS s, MAP {'k': 1} AS m, ('x').upper() AS u, today() AS t",
    "SELECT i % 2 AS g, count(DISTINCT i) FILTER (i > 1) AS n FROM range(9) t(i) GROUP BY ALL HAVING n > 0",
    "SELECT CAST(1 AS DECIMAL(9, 2)) AS d, DATE '2026-01-01' AS e, CASE WHEN true THEN 1 END AS f, uuid() AS u, random() AS r",
    "SELECT key FROM json_each('{\"a\": 1}')",
    "SELECT id FROM shop.main.orders UNION ALL BY NAME SELECT id FROM shop.orders",
    "SELECT * FROM range(100) USING SAMPLE 10",
    "SELECT pg_typeof(1) AS t, current_date AS d, * EXCLUDE (i) REPLACE (1 AS j) FROM (SELECT 1 AS i, 2 AS j)",
]  # fmt: skip


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    place = tmp_path_factory.mktemp("guard")
    with duckdb.connect(str(place / "shop.duckdb")) as made:
        made.execute("CREATE TABLE orders AS SELECT 1 AS id")
    with closing(open_sandbox(attach={"shop": place / "shop.duckdb"}, scratch=place / "scratch")) as opened:
        yield opened


def refused(sandbox: Sandbox, sql: str, *, files: bool = False, **place: str) -> str | None:
    """Why DuckDB's own check refuses it; None: it passes."""
    try:
        one_select(sandbox.database, Query(sql, "tag", **place), files=files)
    except (QueryRefused, duckdb.Error) as error:
        return str(error)
    return None


@pytest.mark.more
def test_every_table_function_of_this_duckdb_is_on_the_allow_list_or_refused(sandbox: Sandbox) -> None:
    found = sandbox.database.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type IN ('table', 'table_macro', 'pragma')"
    ).fetchall()
    names = {name for (name,) in found}

    for files, allowed in ((False, COMPUTED_SOURCES), (True, COMPUTED_SOURCES | FILE_SOURCES)):
        passed = {name for name in names if refused(sandbox, f'SELECT * FROM "{name}"(1, 2)', files=files) is None}
        assert passed == names & allowed
        text = {name for name in names if not [*reasons_against(f'SELECT * FROM "{name}"(1, 2)', DUCKDB, files=files)]}
        assert text == names & allowed
    assert {"enable_logging", "query", "checkpoint", "duckdb_logs", "read_duckdb"} <= names - COMPUTED_SOURCES - FILE_SOURCES


# Functions that DuckDB marks as more than a computation, and that are harmless in a sandbox of one query.
REVIEWED = {
    "current_connection_id", "current_database", "current_date", "current_query", "current_query_id", "current_schema",
    "current_schemas", "current_transaction_id", "error", "gen_random_uuid", "get_current_time", "get_current_timestamp",
    "in_search_path", "now", "random", "setseed", "today", "transaction_timestamp", "txid_current", "uuid", "uuidv4", "uuidv7",
}  # fmt: skip


def test_every_scalar_function_of_this_duckdb_with_an_effect_is_refused_or_was_reviewed(sandbox: Sandbox) -> None:
    found = sandbox.database.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() "
        "WHERE function_type IN ('scalar', 'aggregate') AND (has_side_effects OR stability <> 'CONSISTENT')"
    ).fetchall()

    assert {name for (name,) in found if not is_refused_scalar(name)} == REVIEWED


@pytest.mark.parametrize("sql", ATTACKS)
def test_no_spelling_gets_past_the_check_of_duckdbs_own_syntax_tree(sandbox: Sandbox, sql: str) -> None:
    assert refused(sandbox, sql) is not None


@pytest.mark.parametrize("place", [{"schema": "information_schema"}, {"schema": "PG_Catalog"}, {"catalog": "system"}])
def test_system_schemas_are_no_default_place_either(sandbox: Sandbox, place: dict[str, str]) -> None:
    assert "is a system table of the engine" in str(refused(sandbox, "SELECT * FROM tables", **place))


@pytest.mark.parametrize("sql", ALLOWED)
def test_what_only_reads_tables_and_computes_passes_both_checks(sandbox: Sandbox, sql: str) -> None:
    assert refused(sandbox, sql) is None
    sandbox.database.execute(sql).fetchall()
    assert not [*reasons_against(sql, DUCKDB)]


def test_a_deep_expression_is_checked_and_does_not_exhaust_the_stack(sandbox: Sandbox) -> None:
    sql = f"SELECT {' + '.join(['1'] * 120)} AS many"

    assert refused(sandbox, sql) is None
    assert not [*reasons_against(sql, DUCKDB)]


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT * FROM TABLE(pg.system.query(query => 'SELECT 1'))", "query() is not allowed in FROM"),
        ("SELECT * FROM TABLE(\"query\"(query => 'SELECT 1'))", "query() is not allowed in FROM"),
        (
            "SELECT * FROM a, TABLE(system.unload(input => TABLE(SELECT 1), location => 's3://b/x'))",
            "unload() is not allowed in FROM",
        ),
        (
            "SELECT * FROM a CROSS JOIN LATERAL (SELECT * FROM TABLE(x.system.raw_query(q => '')))",
            "raw_query() is not allowed in FROM",
        ),
        ("SELECT (SELECT max(x) FROM TABLE(query(query => '')))", "query() is not allowed in FROM"),
        ("WITH FUNCTION f(x int) RETURNS int RETURN 1 SELECT f(1)", "defines a function"),
        ("SELECT query FROM system.runtime.queries", "is a system table of the engine"),
        ('SELECT query FROM "SYSTEM".runtime.queries', "is a system table of the engine"),
        (
            "SELECT * FROM TABLE(exclude_columns(input => TABLE(system.runtime.queries)))",
            "exclude_columns() is not allowed in FROM",
        ),
    ],
)
def test_the_same_holds_for_trino(sql: str, says: str) -> None:
    assert any(says in reason for reason in reasons_against(sql, TRINO))


def test_trinos_system_catalog_is_no_default_either_and_its_other_sources_pass() -> None:
    assert [*reasons_against("SELECT query FROM runtime.queries", TRINO, catalog="System")]
    for sql in (
        "SELECT * FROM a CROSS JOIN UNNEST(b) AS t(c)",
        "SELECT * FROM a CROSS JOIN LATERAL (SELECT a.x + 1)",
        "SELECT * FROM TABLE(sequence(start => 1, stop => 3))",
        "SELECT * FROM (VALUES (1)) AS t(x)",
        'SELECT * FROM iceberg.sales."orders$files"',
        "SELECT table_name FROM hive.information_schema.tables",
    ):
        assert not [*reasons_against(sql, TRINO)], sql


SUM = "+".join(["1"] * 100)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT " + "(" * 900 + "1" + " + 1)" * 900 + " AS id",
        "SELECT " + "(1 + " * 900 + "1" + ")" * 900 + " AS id",
        f"SELECT {'+'.join(['1'] * 900)} AS id",
        f"SELECT {SUM} AS a, a+{SUM} AS b, b+{SUM} AS id",  # DuckDB puts the expression in the place of its alias
    ],
)
async def test_an_expression_that_is_nested_too_deep_is_refused_before_it_is_bound(tmp_path: Path, sql: str) -> None:
    """Binding 900 additions takes DuckDB a minute, in which nothing interrupts it."""
    engine = DuckDbEngine(partial(open_sandbox, scratch=tmp_path))

    with pytest.raises(QueryRefused, match="nested too deep .*at most 128 levels.* WITH clause or in a view"):
        await engine.describe(Query(sql, "tag"))
    await engine.close()


def test_a_select_of_too_many_operators_is_refused(sandbox: Sandbox) -> None:
    """Each sum is below the deepest; all of them together would take a minute."""
    sums = ", ".join(f"{SUM} AS c{at}" for at in range(21))

    assert "it has 2,079 functions and operators; the limit is 2,000" in str(refused(sandbox, f"SELECT {sums}"))
    wide = ", ".join(f"upper(a{at}) || '-' AS c{at}" for at in range(500))
    assert refused(sandbox, f"SELECT {wide} FROM shop.orders") is None
    again = ", ".join(f"upper(c{at}) || c{at} AS c{at}" for at in range(500))
    assert refused(sandbox, f"SELECT {again} FROM (SELECT {wide} FROM shop.orders)") is None, "columns are no aliases"
    sums = ", ".join(f"o.c{at} + o.c{at + 1} AS c{at + 2}" for at in range(100))
    assert refused(sandbox, f"SELECT {sums} FROM shop.orders o") is None, "nor are names with a table before them"
    terms = " OR ".join(f"id = {at}" for at in range(500))
    assert refused(sandbox, f"SELECT id FROM shop.orders WHERE {terms}") is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 AS a0, {doubled}",
        "SELECT * FROM (SELECT 1 AS a0, {doubled})",
        "WITH w AS (SELECT 1 AS a0, {doubled}) SELECT a29 FROM w",
        "SELECT 1 AS A0, {doubled} ORDER BY a3",
        "SELECT 1 AS a0, {nested}",
    ],
)
def test_aliases_that_double_an_expression_thirty_times_are_refused(sandbox: Sandbox, sql: str) -> None:
    """Binding 18 of them takes DuckDB half a minute, and each one more twice as long."""
    doubled = ", ".join(f"a{at} + a{at} AS a{at + 1}" for at in range(30))
    nested = ", ".join(f"(SELECT 1 AS z) + a{at} + a{at} AS a{at + 1}" for at in range(30))

    assert "each use of an alias counted" in str(refused(sandbox, sql.format(doubled=doubled, nested=nested)))


async def test_an_error_of_duckdb_while_a_sandbox_opens_is_an_error_of_the_engine(tmp_path: Path) -> None:
    engine = DuckDbEngine(partial(open_sandbox, memory="much", scratch=tmp_path))

    with pytest.raises(EngineUnavailable, match="DuckDB cannot start: .*HOLDFAST_DUCKDB"):
        await engine.describe(Query("SELECT 1", "tag"))
    await engine.close()


async def test_each_query_has_a_duckdb_of_its_own(tmp_path: Path) -> None:
    opened: list[Sandbox] = []

    def opening() -> Sandbox:
        opened.append(open_sandbox(scratch=tmp_path))
        return opened[-1]

    engine = DuckDbEngine(opening)
    async with engine.stream(Query("SELECT 1", "a")), engine.stream(Query("SELECT 2", "b")):
        first, second = opened
        first.database.execute("CREATE TABLE only_here AS SELECT 1")
        with pytest.raises(duckdb.CatalogException):
            second.database.execute("FROM only_here")
    assert not any(one.spill.path.exists() for one in opened), "each is removed with its query"


# ---------------------------------------------------------------------------------------------------------------------
# Two owners
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


@pytest.fixture
def here(folder: Path) -> Exports:
    return exports_from(settings())


@pytest.fixture
async def h(database: str, folder: Path) -> AsyncIterator[Harness]:
    async with harness(database, KINDS) as made:
        yield made


def numbers(sql: str) -> dict[str, Any]:
    node = {"label": "Number", "sql": sql, "primary_key": {"name": "id", "type": "INT64"}}
    return mapping(nodes=[node], edges=[])


def rows_below(place: Path) -> int:
    return sum(pq.read_metadata(file).num_rows for file in place.rglob("*.parquet"))


LOGGING = f"SELECT t.i AS id FROM range(1) t(i) LEFT JOIN LATERAL {LOGS_TO_A_FILE} l ON true"
READING = "SELECT length(message) AS id FROM duckdb_logs"


async def test_one_owners_sql_neither_ends_the_worker_nor_reads_the_queries_of_another(
    as_role: Any, ops: Client, h: Harness, conn: Any
) -> None:
    """Refused where it is checked and stored; and by the worker, should it have been stored before."""
    attacker, victim = await as_role("analyst", "one"), await as_role("analyst", "two")
    for sql in (LOGGING, READING, LOGGING.replace("enable_logging", '"enable_logging"')):
        for path in ("/api/mappings/check", "/api/mappings"):
            assert list(wrong(await attacker.post(path, json=numbers(sql)))) == ["/nodes/0/sql"]
    snapshots = []
    for client in (attacker, victim):
        made = (await client.post("/api/mappings", json=numbers("SELECT i AS id FROM range(5) t(i)"))).json()["data"]
        snapshots.append((await ops.post("/api/snapshots", json={"mapping_id": made["id"]})).headers["Location"])
    await conn.execute(
        "UPDATE holdfast.jobs SET payload = payload || %s WHERE id = (SELECT min(id) FROM holdfast.jobs)",
        [Jsonb({"sql": LOGGING})],
    )

    await h.drain()

    states = await rows(conn, "SELECT state, error FROM holdfast.jobs WHERE kind = 'exports.export' ORDER BY id")
    assert [state for state, _ in states] == ["failed", "completed"]
    assert "enable_logging() is not allowed in FROM" in states[0][1]
    ready = (await ops.get(snapshots[1])).json()["data"]
    assert ready["snapshot"]["status"] == "ready"
    assert rows_below(Path(ready["exports"][0]["gcs_path"])) == 5
