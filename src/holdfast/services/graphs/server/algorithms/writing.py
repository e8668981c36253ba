"""Write a result to a property of nodes: change a copy of the database, and replace the current one by it.

The current database stays open read-only, so queries go on. A crash leaves the copy, which the next start removes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.extras import lazily
from holdfast.services.graphs.server import schema
from holdfast.services.graphs.server.algorithms.progress import Tell, silent
from holdfast.services.graphs.server.columns import quoted
from holdfast.services.graphs.server.engines.port import Database, EngineError
from holdfast.services.graphs.server.graph import Graph, OpenDatabase
from holdfast.services.graphs.server.refusals import Refusal, invalid

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa, pq = lazily("pyarrow"), lazily("pyarrow.parquet")

LONGEST_NAME = 64


def refuse_name(name: Any, selection_nodes: Any, written: Mapping[str, set[str]]) -> None:
    """Refuse a property name that is not valid or that the mapping has. A property of an earlier run may be replaced. Pure."""
    if not isinstance(name, str) or not name.isidentifier() or len(name) > LONGEST_NAME or name.startswith("_"):
        raise invalid(f"`property` must be a name of letters, digits and underscores, not {name!r}")
    for node in selection_nodes:
        names = {one["name"].lower() for one in node["properties"]} - {one.lower() for one in written.get(node["label"], set())}
        if name.lower() in names:
            raise Refusal(
                409, "PROPERTY_EXISTS", f"{node['label']} has the property {name!r} from its mapping.", "Choose another name."
            )


def write_property(
    graph: Graph, name: str, kind: str, values: Mapping[str, pa.Table], folder: Path, tell: Tell = silent
) -> None:
    """Set a property of every label in `values`, whose tables have `key` and `value`. Blocking; called in a thread.

    `kind` is the engine's type of the property.
    """
    before = graph.current
    number = int(before.file.name.rpartition("-")[2]) + 1
    file = before.file.with_name(f"graph-{number}")
    try:
        graph.engine.copy(before.file, file)
        changed = graph.engine.open(file, pool_bytes=graph.pool_bytes // 2, read_only=False)
        try:
            _set(changed, name, kind, values, before.schema, folder, tell)
        finally:
            changed.close()
        opened = graph.engine.open(file, pool_bytes=graph.pool_bytes, read_only=True)
    except (EngineError, OSError) as error:
        file.unlink(missing_ok=True)
        raise Refusal(
            500, "DATABASE_ERROR", f"The property was not written: {error}", "Give the instance more memory."
        ) from None
    graph.replace(OpenDatabase(opened, file, _with_property(before.schema, set(values), name, kind)))


def _set(
    database: Database,
    name: str,
    kind: str,
    values: Mapping[str, pa.Table],
    tables: Mapping[str, Any],
    folder: Path,
    tell: Tell,
) -> None:
    keys = {node["label"]: node["primary_key"] for node in tables["nodes"]}
    types = {node["label"]: {one["name"]: one["type"] for one in node["properties"]} for node in tables["nodes"]}
    written, count = 0, sum(table.num_rows for table in values.values())
    session = database.session()
    try:
        for label, table in values.items():
            file = folder / "values.parquet"
            pq.write_table(table, file)
            key = "CAST(key, 'UUID')" if types[label][keys[label]] == "UUID" else "key"
            if types[label].get(name, kind) != kind:  # of an earlier run with another type
                session.run(f"ALTER TABLE {quoted(label)} DROP {quoted(name)}").close()
            session.run(f"ALTER TABLE {quoted(label)} ADD IF NOT EXISTS {quoted(name)} {kind}").close()
            session.run(
                f"LOAD FROM {schema.text_of(str(file))} MATCH (n:{quoted(label)}) "
                f"WHERE n.{quoted(keys[label])} = {key} SET n.{quoted(name)} = value"
            ).close()
            file.unlink()
            written += table.num_rows
            tell(written, count, "nodes")
    finally:
        session.close()


def _with_property(tables: Mapping[str, Any], labels: set[str], name: str, kind: str) -> dict[str, Any]:
    """The schema with one more property. Pure."""
    nodes = [
        {**node, "properties": [*(one for one in node["properties"] if one["name"] != name), {"name": name, "type": kind}]}
        if node["label"] in labels
        else node
        for node in tables["nodes"]
    ]
    return {**tables, "nodes": nodes}
