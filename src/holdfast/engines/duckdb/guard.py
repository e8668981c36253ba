"""Which SQL DuckDB may run for an export: one SELECT, over tables and over functions that only compute.

The check uses DuckDB's own parser, so no spelling (quotes, LATERAL, FROM first, a schema before the name) hides a function.
`describe` and `stream` both use it: a worker runs exactly what the check of a mapping accepts.

Table functions are refused unless `sources.py` lists them: several of DuckDB's change the whole process (`enable_logging`), run
other SQL (`query`), or show settings and the queries of other users (`duckdb_logs`).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from holdfast.engines.duckdb import DIALECT
from holdfast.engines.port import Query, QueryRefused
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
from holdfast.extras import lazily

if TYPE_CHECKING:
    import duckdb
else:
    duckdb = lazily("duckdb")

BEGINS_A_SELECT: Final = re.compile(
    r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(?:select|with|from|values|table)\b", re.IGNORECASE | re.DOTALL
)
# Types of nodes in DuckDB's syntax tree that are not expressions (those also have a class). Other types are refused.
KNOWN_NODES: Final = frozenset({
    "SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE",
    "EMPTY", "BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "PIVOT",
    "ORDER_DEFAULT", "ASCENDING", "DESCENDING",
})  # fmt: skip
# Functions and operators of one SELECT. Together with the maximum depth it limits the time to bind to a few seconds.
MOST_CALLS: Final = 2_000
PARTS: Final = ("_MODIFIER", "_TYPE_INFO")
SYSTEM: Final = DIALECT.system_names

# One row per field: the tree is deep, and a JSON parser in Python would exhaust the stack before DuckDB does.
SYNTAX_TREE: Final = """
    SELECT id, parent, key, atom FROM json_tree(json_serialize_sql($sql))
    WHERE key IN ('type', 'class', 'function', 'function_name', 'table_name', 'schema_name', 'catalog_name',
                  'error', 'error_message')
"""
# The same tree in the order of the text: function calls, and names that may be aliases. A qualified name is never an alias.
EXPRESSIONS: Final = """
    SELECT key, atom, fullkey FROM json_tree(json_serialize_sql($sql))
    WHERE atom IS NOT NULL AND (key IN ('alias', 'function_name') OR path LIKE '%.column_names')
    QUALIFY key IN ('alias', 'function_name') OR count(*) OVER (PARTITION BY parent) = 1
    ORDER BY id
"""
SELECTED: Final = re.compile(r"(.*)\.select_list\[\d+\]", re.DOTALL)
SYSTEM_VIEWS: Final = (
    "SELECT DISTINCT lower(view_name) FROM duckdb_views() WHERE internal AND schema_name <> 'information_schema'"
)

Node = Mapping[str, str]


def one_select(connection: duckdb.DuckDBPyConnection, query: Query, *, files: bool) -> str:
    """Return the statement without its semicolon if it is one SELECT that an export may run. Otherwise raise `QueryRefused`.

    DuckDB reports PRAGMA, SHOW and similar statements as SELECT, so the first keyword is checked, too.
    """
    statements = connection.extract_statements(query.sql)
    is_one = len(statements) == 1 and statements[0].type == duckdb.StatementType.SELECT
    if not is_one or not BEGINS_A_SELECT.match(query.sql):
        raise QueryRefused("an export must be exactly one SELECT")
    sql = str(statements[0].query).strip().rstrip(";")
    views = frozenset(name for (name,) in connection.execute(SYSTEM_VIEWS).fetchall())
    for reason in (*_of_place(query), *_of_tree(connection.execute(SYNTAX_TREE, {"sql": sql}).fetchall(), views, files)):
        raise QueryRefused(reason)
    if expanded_calls(connection.execute(EXPRESSIONS, {"sql": sql}).fetchall()) > MOST_CALLS:
        raise QueryRefused(
            f"it has more than {MOST_CALLS:,} functions and operators, each use of an alias counted as its expression; "
            "move parts of it into a WITH clause or a view, and qualify column names that are not aliases with their table"
        )
    return sql


def _of_place(query: Query) -> Iterator[str]:
    """Refuse system catalogs and schemas as the default of unqualified names. Pure."""
    for name in (query.catalog, query.schema):
        if name and name.lower() in SYSTEM:
            yield system_refused(name)


def _of_tree(fields: list[tuple[int, int, str, str | None]], views: frozenset[str], files: bool) -> Iterator[str]:
    """The reasons to refuse the statement. Pure."""
    nodes: dict[int, dict[str, str]] = defaultdict(dict)
    functions: dict[int, int] = {}  # function node of a source: the node of the source
    for at, parent, key, atom in fields:
        if key == "function":
            functions[at] = parent
        elif atom is not None:
            nodes[parent][key] = str(json.loads(atom))
    calls = sum("function_name" in node for node in nodes.values())
    if calls > MOST_CALLS:
        yield f"it has {calls:,} functions and operators; the limit is {MOST_CALLS:,}; move parts of it into a view"
    for at, node in nodes.items():
        if node.get("error") == "True":
            yield f"DuckDB cannot describe this SELECT: {node.get('error_message', 'no reason given')}"
        elif "function_name" in node:
            is_source = nodes[functions[at]].get("type") == "TABLE_FUNCTION" if at in functions else False
            yield from _of_function(node["function_name"].lower(), is_source=is_source, files=files)
        elif node.get("type") == "BASE_TABLE":
            yield from _of_table(node, views, files=files)
        elif "class" not in node and "type" in node and node["type"] not in KNOWN_NODES and not node["type"].endswith(PARTS):
            yield f"{node['type'].removesuffix('_REF')} is not allowed in an export; use only SELECT"


def expanded_calls(fields: list[tuple[str, str, str]]) -> int:
    """Count the functions and operators that DuckDB binds. It replaces each use of an alias by its expression, so the count
    of `1 AS a, a + a AS b, b + b AS c, …` doubles with every column. Pure."""
    total = 0
    begun: list[tuple[str, str, int]] = []  # the enclosing columns of a field: path, name, total before it
    sizes: dict[str, list[tuple[str, int]]] = defaultdict(list)  # alias: the SELECTs that define it, and the calls of each
    for key, atom, at in fields:
        while begun and not at.startswith(f"{begun[-1][0]}."):
            column, name, before = begun.pop()
            sizes[name].append((column.rpartition(".select_list[")[0] + ".", total - before))
        text = str(json.loads(atom)).lower()
        if key == "function_name":
            total += 1
        elif key == "alias":
            column = at.removesuffix(".alias")
            if text and SELECTED.fullmatch(column):
                begun.append((column, text, total))
        else:
            total += sum(size for select, size in sizes[text] if at.startswith(select))
    return total


def _of_function(name: str, *, is_source: bool, files: bool) -> Iterator[str]:
    if is_source and name in FILE_SOURCES and not files:
        yield file_refused(f"{name}()")
    elif is_source and name not in COMPUTED_SOURCES | FILE_SOURCES:
        yield source_refused(name)
    elif not is_source and is_refused_scalar(name):
        yield scalar_refused(name)


def _of_table(node: Node, views: frozenset[str], *, files: bool) -> Iterator[str]:
    name, schema, catalog = (node.get(key, "").lower() for key in ("table_name", "schema_name", "catalog_name"))
    if name in views or {schema, catalog} & SYSTEM:
        yield system_refused(".".join(part for part in (catalog, schema, name) if part))
    elif not files and not schema and is_file_name(name):
        yield file_refused(repr(node["table_name"]))
