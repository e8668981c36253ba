"""The query of an export: exactly the columns of the mapping, in their order, with the role of the export. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.engines.port import Query
from holdfast.engines.sql import quoted, select_columns
from holdfast.services.exports.export.payload import ExportSpec


def query_of(spec: ExportSpec, tag: str, casts: Mapping[str, str] | None = None) -> Query:
    """The query of an export under a tag that is unique to the attempt; `casts` has SQL types for some of the columns."""
    names = [column["name"] for column in spec.columns]
    sql = select_columns(spec.sql, names)
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
