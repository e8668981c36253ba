"""Which SQL DuckDB may run for an export: one SELECT, over tables and over functions that only compute.

DuckDB's own parser says what is called, so no spelling (quotes, LATERAL, FROM first, a schema before the name) hides a function
from this check. `describe` and `stream` both pass through here: what a mapping's check accepts is what a worker runs.

Functions that stand as a source are refused unless they are named: several of DuckDB's change the whole process
(`enable_logging`), run other SQL (`query`), or show settings and the queries of others (`duckdb_logs`). The names are in
`sources.py`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from holdfast.services.exports.engines.port import Query, QueryRefused
from holdfast.services.exports.extras import lazily
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

if TYPE_CHECKING:
    import duckdb
else:
    duckdb = lazily("duckdb")

BEGINS_A_SELECT: Final = re.compile(
    r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(?:select|with|from|values|table)\b", re.IGNORECASE | re.DOTALL
)
# Types of nodes in DuckDB's syntax tree, apart from expressions (those have a class too). An unknown one is refused.
KNOWN_NODES: Final = frozenset({
    "SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE",
    "EMPTY", "BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "PIVOT",
    "ORDER_DEFAULT", "ASCENDING", "DESCENDING",
})  # fmt: skip
# Functions and operators of one SELECT. Together with the deepest expression it bounds the time to bind, to a few seconds.
MOST_CALLS: Final = 2_000
PARTS: Final = ("_MODIFIER", "_TYPE_INFO")
SYSTEM: Final = SYSTEM_PLACES["duckdb"]

# One row for each field: the tree is deep, and a parser of JSON in Python would run out of stack before DuckDB does.
SYNTAX_TREE: Final = """
    SELECT id, parent, key, atom FROM json_tree(json_serialize_sql($sql))
    WHERE key IN ('type', 'class', 'function', 'function_name', 'table_name', 'schema_name', 'catalog_name',
                  'error', 'error_message')
"""
# The same tree in the order of the text: what is called, and which names may be aliases. A name with a table before it is none.
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
    """The statement without its semicolon, if it is one SELECT that an export may run; else `QueryRefused`.

    DuckDB makes a SELECT of PRAGMA, SHOW and the like, so the first word counts as well.
    """
    statements = connection.extract_statements(query.sql)
    is_one = len(statements) == 1 and statements[0].type == duckdb.StatementType.SELECT
    if not is_one or not BEGINS_A_SELECT.match(query.sql):
        raise QueryRefused("an export is exactly one SELECT")
    sql = str(statements[0].query).strip().rstrip(";")
    views = frozenset(name for (name,) in connection.execute(SYSTEM_VIEWS).fetchall())
    for reason in (*_of_place(query), *_of_tree(connection.execute(SYNTAX_TREE, {"sql": sql}).fetchall(), views, files)):
        raise QueryRefused(reason)
    if expanded_calls(connection.execute(EXPRESSIONS, {"sql": sql}).fetchall()) > MOST_CALLS:
        raise QueryRefused(
            f"it has more than {MOST_CALLS:,} functions and operators, each use of an alias counted as its expression; "
            "move parts of it into a WITH clause or a view, and write a table before the name of a column that is no alias"
        )
    return sql


def _of_place(query: Query) -> Iterator[str]:
    """A query's catalog and schema are where names without one are looked for. Pure."""
    for name in (query.catalog, query.schema):
        if name and name.lower() in SYSTEM:
            yield system_refused(name)


def _of_tree(fields: list[tuple[int, int, str, str | None]], views: frozenset[str], files: bool) -> Iterator[str]:
    """Why the tree may not run. Pure."""
    nodes: dict[int, dict[str, str]] = defaultdict(dict)
    functions: dict[int, int] = {}  # the function of a source, and the source
    for at, parent, key, atom in fields:
        if key == "function":
            functions[at] = parent
        elif atom is not None:
            nodes[parent][key] = str(json.loads(atom))
    calls = sum("function_name" in node for node in nodes.values())
    if calls > MOST_CALLS:
        yield f"it has {calls:,} functions and operators; at most {MOST_CALLS:,}, so move parts of it into a view"
    for at, node in nodes.items():
        if node.get("error") == "True":
            yield f"an export is one SELECT that DuckDB can describe: {node.get('error_message', 'it cannot')}"
        elif "function_name" in node:
            is_source = nodes[functions[at]].get("type") == "TABLE_FUNCTION" if at in functions else False
            yield from _of_function(node["function_name"].lower(), is_source=is_source, files=files)
        elif node.get("type") == "BASE_TABLE":
            yield from _of_table(node, views, files=files)
        elif "class" not in node and "type" in node and node["type"] not in KNOWN_NODES and not node["type"].endswith(PARTS):
            yield f"{node['type'].removesuffix('_REF')} has no place in an export; it must be a SELECT all through"


def expanded_calls(fields: list[tuple[str, str, str]]) -> int:
    """How many functions and operators DuckDB binds. It puts an expression in the place of each use of its alias, so
    `1 AS a, a + a AS b, b + b AS c, …` doubles with every column. Pure."""
    total = 0
    begun: list[tuple[str, str, int]] = []  # the columns that a field is in: where, their name, the total before them
    sizes: dict[str, list[tuple[str, int]]] = defaultdict(list)  # of a name: the SELECT that has it, and its calls
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
