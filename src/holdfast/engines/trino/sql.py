"""The SQL that this client writes itself: names quoted, texts escaped, the user's SQL on separate lines."""

from __future__ import annotations

import re

from holdfast.engines.port import Query
from holdfast.engines.trino.options import TrinoOptions
from holdfast.errors import UsageError

CATALOGS = "SHOW CATALOGS"
SYSTEM_CATALOGS = frozenset({"system", "jmx"})
FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,2}")


def identifier(text: str) -> str:
    """Quote an identifier."""
    return '"' + text.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote a string literal."""
    return "'" + text.replace("'", "''") + "'"


def describe_sql(sql: str) -> str:
    """Trino analyses and plans it like the query, but it reads no rows. It has the columns and types of the query."""
    return f"SELECT * FROM (\n{without_semicolon(sql)}\n) LIMIT 0"


def columns_sql(catalog: str) -> str:
    """Read all columns of a catalog in one statement."""
    return (
        "SELECT table_schema, table_name, column_name, data_type, ordinal_position "
        f"FROM {identifier(catalog)}.information_schema.columns WHERE table_schema <> 'information_schema'"
    )


def find_sql(source: str) -> str:
    """Find the newest query of a source."""
    return f"SELECT query_id FROM system.runtime.queries WHERE source = {literal(source)} ORDER BY created DESC LIMIT 1"


def unload_sql(query: Query, location: str, options: TrinoOptions) -> str:
    """Unload the query with Starburst's table function."""
    if not FUNCTION.fullmatch(options.unload_function):
        raise UsageError(f"HOLDFAST_TRINO_UNLOAD_FUNCTION must name a function, not {options.unload_function!r}")
    return (
        f"SELECT * FROM TABLE({options.unload_function}(\n"
        f"  input => TABLE(\n{without_semicolon(query.sql)}\n),\n"
        f"  location => {literal(location)},\n  format => 'PARQUET'))"
    )


def ctas_sql(query: Query, location: str, options: TrinoOptions) -> str:
    """Create a table with the result at this location. Works with every Trino."""
    return (
        f"CREATE TABLE {table_of(query, options)}\n"
        f"WITH (format = 'PARQUET', {options.ctas_location} = {literal(location)}) AS\n{without_semicolon(query.sql)}"
    )


def forget_sql(query: Query, options: TrinoOptions) -> str:
    """Remove the table and keep its files. DROP TABLE deletes the files of an Iceberg table, so that is unregistered
    instead; the files of an external Hive table are kept by DROP TABLE."""
    if options.ctas_location == "external_location":
        return f"DROP TABLE IF EXISTS {table_of(query, options)}"
    catalog, schema = schema_of(options)
    arguments = f"schema_name => {literal(schema)}, table_name => {literal(table_name(query))}"
    return f"CALL {identifier(catalog)}.system.unregister_table({arguments})"


def table_of(query: Query, options: TrinoOptions) -> str:
    """The full name of the table of one attempt."""
    return ".".join(map(identifier, (*schema_of(options), table_name(query))))


def table_name(query: Query) -> str:
    return "holdfast_" + re.sub(r"[^a-z0-9]+", "_", query.tag.lower()).strip("_")


def schema_of(options: TrinoOptions) -> tuple[str, str]:
    catalog, dot, schema = (options.ctas_schema or "").partition(".")
    if not (catalog and dot and schema) or options.ctas_location not in ("location", "external_location"):
        raise UsageError(
            f"CTAS exports need HOLDFAST_TRINO_CTAS_SCHEMA=catalog.schema, not {options.ctas_schema!r}, and "
            f"HOLDFAST_TRINO_CTAS_LOCATION=location or external_location, not {options.ctas_location!r}"
        )
    return catalog, schema


def without_semicolon(sql: str) -> str:
    """Remove the semicolon at the end of a statement."""
    return sql.strip().rstrip(";").rstrip()
