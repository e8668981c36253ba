"""Checks that a text is one SELECT that only reads. Decided on the parsed statement, never on words in its text.

The engine and the role of the query decide which tables a user may read. This check refuses statements that are not a SELECT,
and reading anything but tables: files, other SQL, settings of the process (`sources.py`). DuckDB checks its own syntax tree
again wherever it describes or runs a query (`duckdb/guard.py`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any, Final

from holdfast.engines.port import Dialect
from holdfast.engines.sources import (
    COMPUTED_SOURCES,
    FILE_SOURCES,
    file_refused,
    is_file_name,
    is_refused_scalar,
    scalar_refused,
    source_refused,
    system_refused,
)
from holdfast.extras import loaded

COMMENTS: Final = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*", re.DOTALL)
FIRST_WORD: Final = re.compile(r"[A-Za-z_]\w*")
SELECT_WORDS: Final = frozenset({"SELECT", "WITH", "FROM", "VALUES", "TABLE", "PIVOT", "UNPIVOT"})


def reasons_against(sql: str, dialect: Dialect, *, files: bool = False, catalog: str | None = None) -> Iterator[str]:
    """Why users may not run this SQL; nothing: they may. `files`: it may read files; `catalog`: for names without one."""
    glot = _sqlglot()
    try:
        statements = glot.parse(sql, read=dialect.name)
    except glot.errors.SqlglotError as error:
        yield f"it cannot be parsed as {dialect.name} SQL: {_syntax_error(sql, error)}"
        return
    except RecursionError:
        yield "it is nested too deeply; move parts of it into a WITH clause"
        return
    if len(statements) != 1 or statements[0] is None or isinstance(statements[0], glot.exp.Semicolon):
        yield "it must be exactly one statement; remove the semicolons"
        return
    (statement,) = statements
    if not isinstance(statement, glot.exp.Query):
        yield f"it must be a SELECT (WITH … SELECT is allowed), not {_kind(sql, statement)}"
        return
    if catalog is not None and catalog.lower() in dialect.system_names:
        yield system_refused(catalog)
    yield from dict.fromkeys(_of_nodes(glot.exp, statement, dialect, files=files))


def _syntax_error(sql: str, error: Any) -> str:
    """The parser's error in terms of SQL. Its own message names classes of the parser. Pure."""
    first = _first_word(sql)
    if first and first.upper() not in SELECT_WORDS:
        return f"it begins with {first[:40]!r}; a query begins with SELECT or WITH"
    found = getattr(error, "errors", None)
    if not found:
        return "a quote or comment is not closed"
    described, near = str(found[0].get("description") or ""), str(found[0].get("highlight") or "")
    if "<class" in described or "Invalid expression" in described or not described:
        described = "unexpected or incomplete expression"
    return f"{described[:200]} at {near[:40]!r} (line {found[0].get('line')}, column {found[0].get('col')})"


def _first_word(sql: str) -> str | None:
    begins = COMMENTS.match(sql)
    word = FIRST_WORD.match(sql, begins.end() if begins else 0)
    return None if word is None else word[0]


def _kind(sql: str, statement: Any) -> str:
    """What a statement is, as people know it: the parser has no name for some."""
    first = _first_word(sql)
    return first.upper()[:40] if first and statement.key in ("command", "column", "alias") else str(statement.key).upper()


def _of_nodes(exp: Any, statement: Any, dialect: Dialect, *, files: bool) -> Iterator[str]:
    changing = (exp.DML, exp.DDL, exp.Command, exp.Drop, exp.Alter, exp.Copy, exp.Attach, exp.Set, exp.Pragma, exp.Use)
    for node in statement.walk():
        if isinstance(node, changing):
            yield f"{node.key.upper()} is not allowed; the query may only read"
        if isinstance(node, (exp.Summarize, exp.Describe, exp.Show)):
            yield f"{node.key.upper()} is not allowed; every part of the query must be a SELECT"
        if isinstance(node, exp.Into):
            yield "SELECT … INTO creates a table; remove INTO"
        if isinstance(node, exp.Lock):
            yield "FOR UPDATE is not allowed; the query may only read"
        if isinstance(node, exp.Placeholder | exp.Parameter):
            yield "it has a placeholder without a value; write the value"
        if isinstance(node, exp.UserDefinedFunction):
            yield "it defines a function; use the expression instead"
        yield from _of_sources(exp, node, dialect, files=files)


def _of_sources(exp: Any, node: Any, dialect: Dialect, *, files: bool) -> Iterator[str]:
    """Functions and tables that are refused. A function in FROM must be on the allow-list."""
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


def _of_table(table: Any, dialect: Dialect, *, files: bool) -> Iterator[str]:
    names = [table.catalog, table.db] if dialect.system_schemas else [table.catalog]
    if any(name.lower() in dialect.system_names for name in names):
        yield system_refused(".".join(part.name for part in table.parts))
    elif dialect.tables_name_files and not files and not table.db and is_file_name(table.name):
        yield file_refused(repr(table.name))


def _source(exp: Any, node: Any) -> Any | None:
    """The source in FROM at this node, if it is neither a named table nor a subquery."""
    if isinstance(node, exp.Table):
        return None if isinstance(node.this, exp.Identifier) else node.this
    if not isinstance(node, exp.Lateral | exp.From | exp.Join):
        return None
    known = (exp.Table, exp.Lateral, exp.Query, exp.Values, exp.Unnest)
    return None if isinstance(node.this, known) else node.this


def _name(exp: Any, source: Any) -> str:
    """The name of a source's function without catalog and schema; for Trino's TABLE(…), the function inside."""
    while True:
        if isinstance(source, exp.Dot):
            source = source.expression
        elif isinstance(source, exp.Anonymous) and source.name.lower() == "table" and source.expressions:
            source = source.expressions[0]
        else:
            return _called(exp, source) or str(source.key)


def _called(exp: Any, node: Any) -> str | None:
    """The name of a function, unquoted and in lower case."""
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower()
    if isinstance(node, exp.JSONTable):
        return "json_table"
    if isinstance(node, exp.Func):
        return str(node.sql_name()).lower() if node.sql_names() else None
    return None


def _sqlglot() -> Any:
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # statements that it cannot parse are refused with our own message
    return loaded("sqlglot")
