"""The query of an export: exactly the mapping's columns, in their order, in the name of the export's role. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.services.exports.engines.port import Query
from holdfast.services.exports.export.payload import ExportSpec
from holdfast.services.exports.mappings.select import in_order, quoted


def query_of(spec: ExportSpec, tag: str, casts: Mapping[str, str] | None = None) -> Query:
    """What the engine is asked, under a tag that is this attempt's alone; `casts` has SQL types for some of the columns."""
    names = [column["name"] for column in spec.columns]
    sql = in_order(spec.sql, names)
    return Query(
        _cast(sql, names, casts) if casts else sql,
        tag,
        catalog=spec.catalog,
        schema=spec.schema,
        role=spec.role,
        max_seconds=spec.max_seconds,
    )


def _cast(sql: str, names: list[str], casts: Mapping[str, str]) -> str:
    parts = [f"CAST({quoted(one)} AS {casts[one]}) AS {quoted(one)}" if one in casts else quoted(one) for one in names]
    return f"SELECT {', '.join(parts)} FROM (\n{sql}\n) AS {quoted('typed')}"
