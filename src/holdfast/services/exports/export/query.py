"""The query of an export: exactly the mapping's columns, in their order, in the name of the export's role. Pure."""

from __future__ import annotations

from holdfast.services.exports.engines.port import Query
from holdfast.services.exports.export.payload import ExportSpec
from holdfast.services.exports.mappings.select import in_order


def query_of(spec: ExportSpec, tag: str) -> Query:
    """What the engine is asked, under a tag that is this attempt's alone."""
    return Query(
        in_order(spec.sql, [column["name"] for column in spec.columns]),
        tag,
        catalog=spec.catalog,
        schema=spec.schema,
        role=spec.role,
        max_seconds=spec.max_seconds,
    )
