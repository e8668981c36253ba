"""Is it one SELECT, and nothing more? Decided on the parsed statement, never on words in its text.

What a mapping's author may read is decided by the engine and the role that it is asked with. Here is kept out what would
not be reading at all, and what would read something else than tables: files, the network, the settings of the process.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final

from holdfast.errors import UsageError

LONGEST_DEPTH: Final = 200
TABLE_FUNCTIONS: Final = frozenset({"unnest", "explode", "range", "generate_series", "values"})
# Functions of DuckDB that look outside, wherever they stand.
OUTSIDE: Final = frozenset({
    "getenv", "glob", "read_blob", "read_text", "read_csv", "read_csv_auto", "sniff_csv", "read_json", "read_json_auto",
    "read_ndjson", "read_ndjson_auto", "read_json_objects", "read_ndjson_objects", "read_json_objects_auto", "read_parquet",
    "parquet_scan", "parquet_metadata", "parquet_schema", "parquet_file_metadata", "parquet_kv_metadata", "arrow_scan",
    "read_arrow", "iceberg_scan", "delta_scan", "sqlite_scan", "postgres_scan", "postgres_query", "mysql_scan", "mysql_query",
    "st_read", "read_xlsx", "query", "query_table", "duckdb_secrets", "which_secret", "current_setting", "pragma_version",
})  # fmt: skip


def reasons_against(sql: str, dialect: str, *, files: bool = False) -> Iterator[str]:
    """Why this cannot be the SQL of a node or an edge; nothing: it can. `files`: DuckDB may be asked to read files, too."""
    glot = _sqlglot()
    try:
        statements = glot.parse(sql, read=dialect)
    except glot.errors.SqlglotError as error:
        yield f"it cannot be parsed as SQL of {dialect}: {_first_line(error)}"
        return
    except RecursionError:
        yield "it is nested too deeply; use WITH to name its parts"
        return
    if len(statements) != 1 or statements[0] is None or isinstance(statements[0], glot.exp.Semicolon):
        yield "it must be exactly one statement; remove the semicolons"
        return
    (statement,) = statements
    if not isinstance(statement, glot.exp.Query):
        yield f"it must be a SELECT (WITH … SELECT is fine), and not {statement.key.upper()}"
        return
    yield from dict.fromkeys(_of_nodes(glot.exp, statement, dialect, files=files))


def _of_nodes(exp: Any, statement: Any, dialect: str, *, files: bool) -> Iterator[str]:
    changing = (exp.DML, exp.DDL, exp.Command, exp.Drop, exp.Alter, exp.Copy, exp.Attach, exp.Set, exp.Pragma, exp.Use)
    for node in statement.walk():
        if isinstance(node, changing):
            yield f"{node.key.upper()} has no place in it; a mapping only reads"
        if isinstance(node, (exp.Summarize, exp.Describe, exp.Show)):
            yield f"{node.key.upper()} has no place in it; it must be a SELECT all through"
        if isinstance(node, exp.Into):
            yield "SELECT … INTO makes a table; remove INTO"
        if isinstance(node, exp.Lock):
            yield "FOR UPDATE has no place in it; a mapping only reads"
        if isinstance(node, exp.Placeholder | exp.Parameter):
            yield "it has a placeholder, and nobody will fill it in; write the value"
        yield from _of_sources(exp, node, dialect, files=files)


def _of_sources(exp: Any, node: Any, dialect: str, *, files: bool) -> Iterator[str]:
    name = _function_name(exp, node)
    if name in OUTSIDE and not files:
        yield f"{name}() looks outside the tables; load the data into a table, or allow files for this engine"
    if not isinstance(node, exp.Table):
        return
    source = node.this
    if not isinstance(source, exp.Identifier):
        called = _function_name(exp, source) or source.key
        if called not in TABLE_FUNCTIONS | OUTSIDE:
            yield f"{called}() is no table; name a table, or use one of: {', '.join(sorted(TABLE_FUNCTIONS))}"
    elif dialect == "duckdb" and not files and _is_a_file(node):
        yield f"{source.name!r} would be read as a file; load it into a table, or allow files for this engine"


def _is_a_file(table: Any) -> bool:
    """DuckDB takes a table's name for a file when no table has it."""
    return not table.db and any(mark in table.name for mark in "./\\:*?")


def _function_name(exp: Any, node: Any) -> str | None:
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower()
    if isinstance(node, exp.Func):
        return str(node.sql_name()).lower() if node.sql_names() else None
    return None


def quoted(name: str) -> str:
    """An identifier that passed the rules, as SQL. Both engines quote in the standard's way."""
    if '"' in name or "\x00" in name:
        raise UsageError(f"{name!r} cannot be an identifier")
    return f'"{name}"'


def in_order(sql: str, columns: Sequence[str]) -> str:
    """The SELECT with exactly these columns, in this order. The line break ends a comment at its end."""
    return f"SELECT {', '.join(map(quoted, columns))} FROM (\n{sql.rstrip().rstrip(';')}\n) AS {quoted('export')}"


def _first_line(error: Exception) -> str:
    words = str(error).split("\n", 1)[0].strip()
    return words[:300] or type(error).__name__


def _sqlglot() -> Any:
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # what it cannot parse is refused, and said so by us
    try:
        return import_module("sqlglot")
    except ModuleNotFoundError:
        raise UsageError("mappings need sqlglot: install holdfast[exports]") from None
