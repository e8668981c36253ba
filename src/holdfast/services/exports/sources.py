"""What the SQL of an export may read, by name, and how a refusal is worded. Pure.

Two checks share it: `mappings/select.py` on the parsed text, for both engines, before anything is stored or enqueued; and
`engines/duckdb/guard.py` on DuckDB's own syntax tree, wherever a query is described or run. Names are compared unquoted, in
lower case and without catalog and schema.
"""

from __future__ import annotations

from typing import Final

# Functions that may stand as a source: they compute rows from their arguments. Every other one is refused: several of DuckDB's
# change the whole process (enable_logging, checkpoint), run other SQL (query, json_execute_serialized_sql) or show settings,
# secrets and the queries of others (duckdb_settings, duckdb_secrets, duckdb_logs).
COMPUTED_SOURCES: Final = frozenset({
    "unnest", "explode", "range", "generate_series", "repeat", "repeat_row", "json_each", "json_tree", "json_table", "values",
})  # fmt: skip
# Those that read files, where DuckDB was shown folders.
FILE_SOURCES: Final = frozenset({
    "glob", "read_blob", "read_text", "read_csv", "read_csv_auto", "sniff_csv", "read_json", "read_json_auto", "read_ndjson",
    "read_ndjson_auto", "read_json_objects", "read_ndjson_objects", "read_json_objects_auto", "read_parquet", "parquet_scan",
    "parquet_metadata", "parquet_schema", "parquet_file_metadata", "parquet_kv_metadata",
})  # fmt: skip
# Functions that do more than compute a value from their arguments. They read the environment and settings, plan other SQL
# (which runs part of it), write to a log, change a sequence, describe the objects of a catalog, or hold a worker.
REFUSED_SCALARS: Final = frozenset({
    "getenv", "current_setting", "set_config", "getvariable", "json_serialize_plan", "json_execute_serialized_sql", "query",
    "query_table", "write_log", "nextval", "currval", "setval", "lastval", "sleep_ms", "stats", "which_secret",
    "get_block_size", "col_description", "obj_description", "shobj_description",
})  # fmt: skip
REFUSED_PREFIXES: Final = ("__internal", "duckdb_", "pragma_", "pg_")
HARMLESS: Final = frozenset({"pg_typeof", "pg_size_pretty"})

# Where an engine describes itself: DuckDB shows the databases of all exports there, and Trino the queries of all who share
# our user. What people may know of tables is in the schema cache.
SYSTEM_PLACES: Final = {
    "duckdb": frozenset({"information_schema", "pg_catalog", "system"}),
    "trino": frozenset({"system", "jmx"}),
}


def is_refused_scalar(name: str) -> bool:
    return name in REFUSED_SCALARS or (name.startswith(REFUSED_PREFIXES) and name not in HARMLESS)


def is_file_name(table: str) -> bool:
    """DuckDB takes a table's name for a file when no table has it."""
    return any(mark in table for mark in "./\\:*?")


def source_refused(name: str) -> str:
    return f"{name}() may not stand in FROM; name a table, or use one of: {', '.join(sorted(COMPUTED_SOURCES))}"


def file_refused(what: str) -> str:
    return (
        f"{what} reads files, and this DuckDB may read none; load the data into a table, or name folders with "
        "HOLDFAST_DUCKDB_DIRS (and allow mappings to read them with HOLDFAST_MAPPINGS_READ_FILES)"
    )


def scalar_refused(name: str) -> str:
    return f"{name}() does more than compute a value from its arguments; remove it"


def system_refused(name: str) -> str:
    return f"{name} describes the engine and not your data; name a table of yours"
