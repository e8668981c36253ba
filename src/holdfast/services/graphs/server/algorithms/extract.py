"""A part of the graph as Arrow arrays: some labels and edge types, all others left out.

Nodes get numbers from 0: first the nodes of the first label in the order of their offsets in the engine, then those of the
next. An engine numbers the rows of a loaded table without gaps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.extras import lazily
from holdfast.services.graphs.server.algorithms.progress import Tell, silent
from holdfast.services.graphs.server.columns import quoted
from holdfast.services.graphs.server.engines.port import Session
from holdfast.services.graphs.server.refusals import Refusal, invalid

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa, pc = lazily("pyarrow"), lazily("pyarrow.compute")

ROWS: Final = 1_000_000  # of one chunk
NUMBERS: Final = frozenset({"INT64", "INT32", "INT16", "INT8", "UINT8", "UINT16", "UINT32", "DOUBLE", "FLOAT"})


@dataclass(frozen=True, slots=True)
class Selection:
    """Which nodes and edges an algorithm sees. `starts` is the first number of each label's nodes."""

    nodes: tuple[Mapping[str, Any], ...]
    edges: tuple[Mapping[str, Any], ...]
    weight: str | None

    @property
    def count(self) -> int:
        return sum(int(node["rows"]) for node in self.nodes)

    @property
    def rows(self) -> int:
        """Rows of all tables: how much there is to read."""
        return self.count + sum(int(edge["rows"]) for edge in self.edges)

    @property
    def starts(self) -> dict[str, int]:
        found, at = {}, 0
        for node in self.nodes:
            found[str(node["label"])] = at
            at += int(node["rows"])
        return found


def selected(schema: Mapping[str, Any], labels: Any, types: Any, weight: Any) -> Selection:
    """The part of a schema that a request names; everything if it names nothing. `Refusal` says what is wrong. Pure."""
    nodes = _named(schema["nodes"], "label", "node_labels", labels)
    chosen = {node["label"] for node in nodes}
    edges = _named(schema["edges"], "type", "edge_types", types)
    within = tuple(edge for edge in edges if edge["from"] in chosen and edge["to"] in chosen)
    if types is not None and len(within) < len(edges):
        outside = next(edge for edge in edges if edge not in within)
        raise invalid(f"{outside['type']} connects {outside['from']} and {outside['to']}, which are not both in `node_labels`")
    if weight is not None:
        for edge in within:
            if not any(one["name"] == weight and one["type"] in NUMBERS for one in edge["properties"]):
                raise invalid(f"`weight` must be a number of every edge type; {edge['type']} has no such property {weight!r}")
    found = Selection(nodes, within, weight)
    if not found.count:
        raise invalid("the selected labels have no nodes")
    return found


def _named(tables: Sequence[Mapping[str, Any]], key: str, field: str, names: Any) -> tuple[Mapping[str, Any], ...]:
    if names is None:
        return tuple(tables)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise invalid(f"`{field}` must be a list of names; leave it out for all")
    known = {table[key]: table for table in tables}
    for name in names:
        if name not in known:
            raise invalid(f"`{field}` has {name!r}, which is not in the graph; there are: {', '.join(known) or 'none'}")
    return tuple(known[name] for name in dict.fromkeys(names))


def write_edges(session: Session, selection: Selection, file: Path, deadline: float, tell: Tell = silent) -> int:
    """Write the edges as numbers of nodes to an Arrow file: source, target and, if it is asked for, weight. How many."""
    fields = [pa.field("source", pa.int64()), pa.field("target", pa.int64())]
    if selection.weight is not None:
        fields.append(pa.field("weight", pa.float64()))
    schema, starts, count = pa.schema(fields), selection.starts, 0
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for edge in selection.edges:
            found = _rows(session, _edge_query(edge, selection.weight), deadline)
            count += found.num_rows
            columns = [pc.add(found.column(0), starts[edge["from"]]), pc.add(found.column(1), starts[edge["to"]])]
            if selection.weight is not None:
                columns.append(found.column(2).cast(pa.float64()))
            writer.write_table(pa.table(columns, schema=schema))
            tell(count, selection.rows, "rows")
    return count


def read_keys(session: Session, selection: Selection, deadline: float, tell: Tell = silent) -> dict[str, pa.Array]:
    """The primary keys of each label, in the order of the nodes' numbers."""
    keys, count = {}, selection.rows - selection.count
    for node in selection.nodes:
        name = quoted(node["label"])
        query = f"MATCH (n:{name}) RETURN offset(id(n)) AS number, n.{quoted(node['primary_key'])} AS key"
        found = _rows(session, query, deadline)
        number = found.column(0).combine_chunks()
        if found.num_rows != node["rows"] or (found.num_rows and pc.max(number).as_py() != found.num_rows - 1):
            raise Refusal(500, "DATABASE_ERROR", f"The rows of {node['label']} are not numbered without gaps.", "Report it.")
        keys[str(node["label"])] = found.column(1).combine_chunks().take(pc.sort_indices(number))
        count += found.num_rows
        tell(count, selection.rows, "rows")
    return keys


def _edge_query(edge: Mapping[str, Any], weight: str | None) -> str:
    ends = f"MATCH (a:{quoted(edge['from'])})-[e:{quoted(edge['type'])}]->(b:{quoted(edge['to'])})"
    more = "" if weight is None else f", e.{quoted(weight)} AS weight"
    return f"{ends} RETURN offset(id(a)) AS source, offset(id(b)) AS target{more}"


def _rows(session: Session, query: str, deadline: float) -> pa.Table:
    result = session.run(query, seconds=max(0.001, deadline - time.monotonic()))
    try:
        return result.arrow(ROWS)
    finally:
        result.close()
