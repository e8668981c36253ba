"""The statements that create, load and describe tables. Pure, but for `described`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.services.graphs.plan import EdgeTable, LoadPlan, NodeTable
from holdfast.services.graphs.server.columns import engine_type, quoted
from holdfast.services.graphs.server.engines.port import Session

if TYPE_CHECKING:
    import pyarrow as pa


def creation(table: NodeTable | EdgeTable, arrow: pa.Schema | None) -> str:
    """CREATE NODE TABLE or CREATE REL TABLE. `arrow` is the schema of the table's files, None without files."""
    columns = [(column.name, column.type) for column in table.properties]
    if isinstance(table, NodeTable):
        columns = [(table.primary_key.name, table.primary_key.type), *columns]
    parts = [f"{quoted(name)} {engine_type(kind, None if arrow is None else arrow.field(name).type)}" for name, kind in columns]
    if isinstance(table, NodeTable):
        return f"CREATE NODE TABLE {quoted(table.label)}({', '.join(parts)}, PRIMARY KEY({quoted(table.primary_key.name)}))"
    ends = f"FROM {quoted(table.from_node)} TO {quoted(table.to_node)}"
    return f"CREATE REL TABLE {quoted(table.type)}({', '.join([ends, *parts])})"


def copying(name: str, files: Sequence[Path]) -> str:
    """COPY of Parquet files into a table."""
    return f"COPY {quoted(name)} FROM [{', '.join(text_of(str(file)) for file in files)}]"


def counting(table: NodeTable | EdgeTable) -> str:
    """How many rows a table has."""
    if isinstance(table, NodeTable):
        return f"MATCH (n:{quoted(table.label)}) RETURN count(*)"
    return f"MATCH (:{quoted(table.from_node)})-[e:{quoted(table.type)}]->(:{quoted(table.to_node)}) RETURN count(*)"


def text_of(text: str) -> str:
    """A string in Cypher."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def columns_of(table: NodeTable | EdgeTable) -> list[str]:
    """The columns of a table's files, in their order."""
    names = [column.name for column in table.properties]
    return [table.primary_key.name, *names] if isinstance(table, NodeTable) else [table.from_key, table.to_key, *names]


def described(session: Session, plan: LoadPlan, rows: Mapping[str, int]) -> dict[str, Any]:
    """The tables of a database with the types that the engine gave them: the body of `/schema`."""
    nodes = [
        {
            "label": node.label,
            "primary_key": node.primary_key.name,
            "properties": _properties(session, node.label),
            "rows": rows[node.label],
        }
        for node in plan.nodes
    ]
    edges = [
        {
            "type": edge.type,
            "from": edge.from_node,
            "to": edge.to_node,
            "properties": _properties(session, edge.type),
            "rows": rows[edge.type],
        }
        for edge in plan.edges
    ]
    return {"nodes": nodes, "edges": edges}


def _properties(session: Session, table: str) -> list[dict[str, str]]:
    result = session.run(f"CALL table_info({text_of(table)}) RETURN name, type")
    try:
        return [{"name": row["name"], "type": row["type"]} for row in result.arrow(1000).to_pylist()]
    finally:
        result.close()
