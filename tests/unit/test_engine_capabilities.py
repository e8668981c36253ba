"""Engines declare what they can do: callers ask for a capability and never for the name of an engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import holdfast
from holdfast.engines.duckdb import DIALECT as DUCKDB
from holdfast.engines.duckdb import DuckDbOptions, open_duckdb
from holdfast.engines.options import EngineOptions
from holdfast.engines.port import SubmittingEngine, submitting
from holdfast.engines.registry import ENGINES, capabilities_of, configured_engines, open_engine
from holdfast.engines.select import reasons_against
from holdfast.engines.settings import EngineSettings
from holdfast.engines.trino import DIALECT as TRINO
from holdfast.engines.trino import TrinoOptions, open_trino
from holdfast.errors import UsageError

SOURCE = Path(holdfast.__file__).parent
BY_NAME = re.compile(r"""[=!]= ?["'](duckdb|trino)["']|["'](duckdb|trino)["'] ?[=!]=|hasattr\((engine|source)""")
SUBMITS = [name for name in vars(SubmittingEngine) if not name.startswith("_") and name not in ("capabilities",)]


def trino(**options: bool) -> EngineOptions:
    return EngineOptions(trino=lambda: TrinoOptions("http://127.0.0.1:1", "export", **options))  # type: ignore[arg-type]


def test_engine_names_are_not_compared():
    found = [path.name for path in SOURCE.rglob("*.py") if BY_NAME.search(path.read_text())]

    assert found == []


async def test_submitting_engine_has_all_submit_functions():
    for engine in (open_duckdb(DuckDbOptions()), open_trino(TrinoOptions("http://127.0.0.1:1", "export"))):
        has = [name for name in SUBMITS if callable(getattr(engine, name, None))]
        assert (sorted(has) == sorted(SUBMITS)) is engine.capabilities.submits, engine.name
        await engine.close()


async def test_queries_are_submitted_only_to_submitting_engines():
    duckdb, other = open_duckdb(DuckDbOptions()), open_trino(TrinoOptions("http://127.0.0.1:1", "export"))

    assert submitting(other) is other
    with pytest.raises(UsageError, match="cannot be submitted to duckdb; use the runtime `direct`"):
        submitting(duckdb)
    await other.close()


async def test_open_engine_has_its_declared_capabilities():
    options = trino(role_required=True)
    for name in ENGINES:
        engine = open_engine(name, options)
        assert engine.capabilities == capabilities_of(name, options)
        await engine.close()


def test_the_first_configured_engine_is_the_default():
    assert configured_engines(EngineOptions()).names == ["duckdb"]
    assert configured_engines(trino()).default == "trino"


def test_requirement_of_a_role_is_an_option():
    assert [capabilities_of("trino", EngineOptions(trino_role_required=needed)).needs_role for needed in (True, False)] == [
        True,
        False,
    ]


def test_unknown_engine_error_lists_the_known_ones():
    with pytest.raises(UsageError, match="no engine 'oracle'; use one of: duckdb, trino"):
        open_engine("oracle", EngineOptions())


@pytest.mark.parametrize(
    "given", [{}, {"trino_url": "https://trino"}, {"trino_user": "export"}], ids=["none", "a url", "a user"]
)
def test_trino_without_a_url_and_a_user_is_refused(given: dict[str, str]):
    """G-04: both are required, also by the names STARBURST_URL and STARBURST_USER."""
    options = EngineOptions.from_settings(EngineSettings(**given)) if given else EngineOptions()  # type: ignore[arg-type]

    with pytest.raises(UsageError, match="set HOLDFAST_TRINO_URL and HOLDFAST_TRINO_USER"):
        open_engine("trino", options)


def test_invalid_trino_options_do_not_affect_duckdb():
    def broken() -> TrinoOptions:
        raise UsageError("HOLDFAST_TRINO_USER is missing")

    engines = configured_engines(EngineOptions(trino=broken))

    assert engines.get("duckdb").name == "duckdb"
    with pytest.raises(UsageError, match="HOLDFAST_TRINO_USER"):
        engines.get("trino")


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELEC *", "it begins with 'SELEC'; a query begins with SELECT or WITH"),
        ("-- people\nSELEC a FROM t", "it begins with 'SELEC'"),
        ("SELECT 1 +", "unexpected or incomplete expression at '+' (line 1, column 10)"),
        ("SELECT * FRM x", "unexpected or incomplete expression at 'x' (line 1, column 14)"),
        ("SELECT (1", "Expecting ) at '1'"),
        ("SELECT 'a", "a quote or comment is not closed"),
    ],
)
@pytest.mark.parametrize("dialect", [DUCKDB, TRINO], ids=lambda one: one.name)
def test_syntax_error_is_reported_as_sql_error(dialect, sql: str, says: str):
    (reason,) = reasons_against(sql, dialect)

    assert says in reason
    assert "sqlglot" not in reason


def test_refused_file_error_names_both_settings():
    (reason,) = reasons_against("SELECT * FROM 'data/a.csv'", DUCKDB)

    assert "HOLDFAST_DUCKDB_DIRS" in reason
    assert "HOLDFAST_MAPPINGS_READ_FILES=true" in reason
