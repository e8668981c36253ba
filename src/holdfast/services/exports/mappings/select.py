"""Is it one SELECT, and nothing more? Decided on the parsed statement, never on words in its text.

What a mapping's author may read is decided by the engine and the role that it is asked with. This check refuses what is no
reading at all, and what reads something else than tables: files, other SQL, the settings of the process (`sources.py`).
DuckDB checks its own syntax tree again wherever a query is described or run (`engines/duckdb/guard.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from holdfast.errors import UsageError
from holdfast.services.exports.sources import (
    COMPUTED_SOURCES,
    FILE_SOURCES,
    SYSTEM_PLACES,
    file_refused,
    is_file_name,
    is_refused_scalar,
    scalar_refused,
    source_refused,
    system_refused,
)


def reasons_against(sql: str, dialect: str, *, files: bool = False, catalog: str | None = None) -> Iterator[str]:
    """Why this cannot be the SQL of an export; empty: it can. `files`: DuckDB may read files; `catalog`: the default one."""
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
    if catalog is not None and catalog.lower() in SYSTEM_PLACES.get(dialect, ()):
        yield system_refused(catalog)
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
            yield "it has a placeholder, and no value is given for it; write the value"
        if isinstance(node, exp.UserDefinedFunction):
            yield "it defines a function; write the expression instead"
        yield from _of_sources(exp, node, dialect, files=files)


def _of_sources(exp: Any, node: Any, dialect: str, *, files: bool) -> Iterator[str]:
    """What a function or a table may not be. A function is judged where it stands: as a source only those that are allowed."""
    source = _source(exp, node)
    if source is not None:
        yield from _of_function(_name(exp, source), files=files)
    name = _called(exp, node)
    if name in FILE_SOURCES and not files:
        yield file_refused(f"{name}()")
    elif name is not None and is_refused_scalar(name) and not isinstance(node.parent, exp.Table):
        yield scalar_refused(name)
    if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
        yield from _of_table(node, dialect, files=files)


def _of_function(name: str, *, files: bool) -> Iterator[str]:
    if name not in COMPUTED_SOURCES | FILE_SOURCES:
        yield source_refused(name)
    elif name in FILE_SOURCES and not files:
        yield file_refused(f"{name}()")


def _of_table(table: Any, dialect: str, *, files: bool) -> Iterator[str]:
    places = [table.catalog] if dialect == "trino" else [table.catalog, table.db]
    if any(place.lower() in SYSTEM_PLACES.get(dialect, ()) for place in places):
        yield system_refused(".".join(part.name for part in table.parts))
    elif dialect == "duckdb" and not files and not table.db and is_file_name(table.name):
        yield file_refused(repr(table.name))


def _source(exp: Any, node: Any) -> Any | None:
    """What stands in FROM at this node, if it is neither a named table nor a query in parentheses."""
    if isinstance(node, exp.Table):
        return None if isinstance(node.this, exp.Identifier) else node.this
    if not isinstance(node, exp.Lateral | exp.From | exp.Join):
        return None
    known = (exp.Table, exp.Lateral, exp.Query, exp.Values, exp.Unnest)
    return None if isinstance(node.this, known) else node.this


def _name(exp: Any, source: Any) -> str:
    """The function of a source; the one inside of Trino's TABLE(…), without the catalog and schema before it."""
    while True:
        if isinstance(source, exp.Dot):
            source = source.expression
        elif isinstance(source, exp.Anonymous) and source.name.lower() == "table" and source.expressions:
            source = source.expressions[0]
        else:
            return _called(exp, source) or str(source.key)


def _called(exp: Any, node: Any) -> str | None:
    """The name of a function: unquoted, in small letters."""
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower()
    if isinstance(node, exp.JSONTable):
        return "json_table"
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
