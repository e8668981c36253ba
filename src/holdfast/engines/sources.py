"""The functions and tables that users' SQL may read, by name, and the messages of refusals. Pure.

Two checks use it: `select.py` on the parsed text, for all engines, before a query is stored or enqueued; and `duckdb/guard.py`
on DuckDB's own syntax tree, wherever DuckDB describes or runs a query. Names are compared unquoted, in lower case and without
catalog and schema.
"""

from __future__ import annotations

from typing import Final

# Table functions that are allowed in FROM: they compute rows from their arguments. All others are refused: several of DuckDB's
# change the whole process (enable_logging, checkpoint), run other SQL (query, json_execute_serialized_sql) or show settings,
# secrets and the queries of other users (duckdb_settings, duckdb_secrets, duckdb_logs).
COMPUTED_SOURCES: Final = frozenset({
    "unnest", "explode", "range", "generate_series", "repeat", "repeat_row", "json_each", "json_tree", "json_table", "values",
})  # fmt: skip
# Table functions that read files. Allowed if the engine has folders that it may read.
FILE_SOURCES: Final = frozenset({
    "glob", "read_blob", "read_text", "read_csv", "read_csv_auto", "sniff_csv", "read_json", "read_json_auto", "read_ndjson",
    "read_ndjson_auto", "read_json_objects", "read_ndjson_objects", "read_json_objects_auto", "read_parquet", "parquet_scan",
    "parquet_metadata", "parquet_schema", "parquet_file_metadata", "parquet_kv_metadata",
})  # fmt: skip
# Scalar functions with side effects or access to anything but their arguments: they read the environment and settings, plan
# other SQL (which runs part of it), write to a log, change a sequence, describe the objects of a catalog, or block a worker.
REFUSED_SCALARS: Final = frozenset({
    "getenv", "current_setting", "set_config", "getvariable", "json_serialize_plan", "json_execute_serialized_sql", "query",
    "query_table", "write_log", "nextval", "currval", "setval", "lastval", "sleep_ms", "stats", "which_secret",
    "get_block_size", "col_description", "obj_description", "shobj_description",
})  # fmt: skip
REFUSED_PREFIXES: Final = ("__internal", "duckdb_", "pragma_", "pg_")
HARMLESS: Final = frozenset({"pg_typeof", "pg_size_pretty"})


def is_refused_scalar(name: str) -> bool:
    return name in REFUSED_SCALARS or (name.startswith(REFUSED_PREFIXES) and name not in HARMLESS)


def is_file_name(table: str) -> bool:
    """Whether DuckDB would read the name of a table as the path of a file, if no such table exists."""
    return any(mark in table for mark in "./\\:*?")


def source_refused(name: str) -> str:
    return f"{name}() is not allowed in FROM; use a table or one of: {', '.join(sorted(COMPUTED_SOURCES))}"


def file_refused(what: str) -> str:
    return (
        f"{what} reads a file, and this engine may not read files; load the data into a table, or list its folder in "
        "HOLDFAST_DUCKDB_DIRS and, for mappings, set HOLDFAST_MAPPINGS_READ_FILES=true"
    )


def scalar_refused(name: str) -> str:
    return f"{name}() is not allowed: it does more than compute a value from its arguments; remove it"


def system_refused(name: str) -> str:
    return f"{name} is a system table of the engine; use a table with your data"
