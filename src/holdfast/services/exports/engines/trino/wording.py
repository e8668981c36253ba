"""The statements that we write ourselves: names quoted, texts escaped, the user's SQL on lines of its own."""

from __future__ import annotations

import re

from holdfast.errors import UsageError
from holdfast.services.exports.engines.port import Query
from holdfast.services.exports.engines.trino.options import TrinoOptions

CATALOGS = "SHOW CATALOGS"
NOT_FOR_PEOPLE = frozenset({"system", "jmx"})
FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,2}")


def name(text: str) -> str:
    """A quoted identifier."""
    return '"' + text.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A quoted text."""
    return "'" + text.replace("'", "''") + "'"


def describing(sql: str) -> str:
    """Analysed and planned like the query, with nothing to run. Its columns come with the same signatures."""
    return f"SELECT * FROM (\n{bare(sql)}\n) LIMIT 0"


def columns_of(catalog: str) -> str:
    """Every column of a catalog, in one statement."""
    return (
        "SELECT table_schema, table_name, column_name, data_type, ordinal_position "
        f"FROM {name(catalog)}.information_schema.columns WHERE table_schema <> 'information_schema'"
    )


def submitted_under(source: str) -> str:
    """The queries of one source, the newest first."""
    return f"SELECT query_id FROM system.runtime.queries WHERE source = {literal(source)} ORDER BY created DESC LIMIT 1"


def unloading(query: Query, location: str, options: TrinoOptions) -> str:
    """Starburst's table function."""
    if not FUNCTION.fullmatch(options.unload_function):
        raise UsageError(f"HOLDFAST_TRINO_UNLOAD_FUNCTION must name a function, not {options.unload_function!r}")
    return (
        f"SELECT * FROM TABLE({options.unload_function}(\n"
        f"  input => TABLE(\n{bare(query.sql)}\n),\n"
        f"  location => {literal(location)},\n  format => 'PARQUET'))"
    )


def creating(query: Query, location: str, options: TrinoOptions) -> str:
    """Plain Trino: a table in that place."""
    return (
        f"CREATE TABLE {table_of(query, options)}\n"
        f"WITH (format = 'PARQUET', {options.ctas_location} = {literal(location)}) AS\n{bare(query.sql)}"
    )


def forgetting(query: Query, options: TrinoOptions) -> str:
    """Dropping an Iceberg table removes its files: it is unregistered instead. An external table of Hive keeps them."""
    if options.ctas_location == "external_location":
        return f"DROP TABLE IF EXISTS {table_of(query, options)}"
    catalog, schema = schema_of(options)
    called = f"schema_name => {literal(schema)}, table_name => {literal(table_name(query))}"
    return f"CALL {name(catalog)}.system.unregister_table({called})"


def table_of(query: Query, options: TrinoOptions) -> str:
    """The table of one attempt, in full."""
    return ".".join(map(name, (*schema_of(options), table_name(query))))


def table_name(query: Query) -> str:
    return "holdfast_" + re.sub(r"[^a-z0-9]+", "_", query.tag.lower()).strip("_")


def schema_of(options: TrinoOptions) -> tuple[str, str]:
    catalog, dot, schema = (options.ctas_schema or "").partition(".")
    if not (catalog and dot and schema) or options.ctas_location not in ("location", "external_location"):
        raise UsageError("CTAS needs HOLDFAST_TRINO_CTAS_SCHEMA=catalog.schema, and its location property")
    return catalog, schema


def bare(sql: str) -> str:
    """Without the semicolon that people end statements with."""
    return sql.strip().rstrip(";").rstrip()
