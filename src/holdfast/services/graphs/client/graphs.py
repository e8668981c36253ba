"""Graph instances: create, wait, query."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from holdfast.errors import HoldfastError, UsageError
from holdfast.services.graphs.client.algorithms import ARROW, JSON, REQUEST_SECONDS, Algorithms
from holdfast.services.graphs.client.results import QueryResult
from holdfast.toolkit.client.api import Api
from holdfast.toolkit.client.card import card
from holdfast.toolkit.client.progress import Line, ProgressView, progress_display
from holdfast.toolkit.client.records import record
from holdfast.toolkit.client.waiting import wait

ENDED: Final = frozenset({"running", "failed", "suspended"})
SPARE_SECONDS: Final = 30.0  # that a request may take longer than its query
COMPLETED: Final = {
    "loaded": "completed",
    "ready": "completed",
    "running": "completed",
    "copying": "running",
    "fetching": "running",
}


class GraphFailed(HoldfastError):
    """The instance failed, or was suspended, while `wait` waited for it; `graph` is the instance."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        reason = f"{graph.error_code}: {graph.error_message}" if graph.error_code else "no error was recorded"
        super().__init__(f"graph {graph.id} is {graph.status}: {reason}")


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph instance as it was when it was read. `refresh` reads it again."""

    id: int
    name: str
    owner: str
    status: str
    wrapper_type: str
    mapping_id: int
    mapping_version: int
    snapshot_id: int
    cpu_cores: float
    memory_gb: float
    error_code: str | None
    error_message: str | None
    ttl: str | None
    inactivity_timeout: str | None
    created_at: datetime
    expires_at: datetime | None
    inactive_at: datetime | None
    _graphs: Graphs = field(repr=False, compare=False)
    _progress: dict[str, Any] | None = field(default=None, repr=False, compare=False)

    def query(
        self, cypher: str, parameters: dict[str, Any] | None = None, /, *, timeout: float = 60, max_rows: int | None = None,
        **named: Any,
    ) -> QueryResult:  # fmt: skip
        """Run Cypher. Named arguments are its parameters: `query("MATCH (p {id: $id}) RETURN p", id=7)`.

        A parameter with the name `timeout` or `max_rows` goes into the dict `parameters`.
        """
        return self._graphs.query(self, cypher, {**(parameters or {}), **named}, timeout=timeout, max_rows=max_rows)

    @property
    def algo(self) -> Algorithms:
        """Graph algorithms: `graph.algo.pagerank()`."""
        return self._graphs.algorithms(self)

    def schema(self) -> dict[str, Any]:
        """Labels, edge types and their properties, with row counts."""
        return self._graphs.schema(self)

    def wait(self, *, timeout: float | None = 1800, show: bool = True) -> Graph:
        """The instance when it runs, with a progress bar until then; `GraphFailed` if it failed."""
        return self._graphs.wait(self, timeout=timeout, show=show)

    def refresh(self) -> Graph:
        """The instance as it is now."""
        return self._graphs.get(self)

    def extend(self, by: str) -> Graph:
        """Extend its TTL by a duration such as `PT4H`."""
        return self._graphs.act(self, "extend", {"by": by})

    def suspend(self) -> Graph:
        """End its graph server and keep the instance; `resume` loads it again."""
        return self._graphs.act(self, "suspend")

    def resume(self) -> Graph:
        """Load it again."""
        return self._graphs.act(self, "resume")

    def delete(self) -> None:
        """Delete it with its graph server."""
        self._graphs.delete(self)

    def _repr_html_(self) -> str:
        return card(progress_of(self))


class Graphs:
    """`hf.graphs`. Methods that take a graph accept a `Graph`, its id or its name."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def create(
        self,
        mapping: Any = None,
        *,
        snapshot: Any = None,
        name: str | None = None,
        engine: str | None = None,
        version: int | None = None,
        role: str | None = None,
        **options: Any,
    ) -> Graph:
        """Create an instance of a mapping (its name, id or `Mapping`), or of a ready snapshot.

        Options: description, ttl, inactivity_timeout, cpu_cores, memory_gb. `Conflict` names the limit that is reached.
        """
        if (mapping is None) == (snapshot is None):
            raise UsageError("pass either mapping or snapshot")
        given = {
            "name": name or self._default_name(mapping, snapshot),
            "mapping_id": None if mapping is None else self._mapping_id(mapping),
            "mapping_version": version,
            "snapshot_id": getattr(snapshot, "id", snapshot),
            "wrapper_type": engine,
            **options,
        }
        body = {key: value for key, value in given.items() if value is not None}
        return self._graph(self._api.act("POST", "/api/instances", body, role=role))

    def get(self, graph: Graph | int | str) -> Graph:
        """An instance as it is now."""
        return self._graph(self._api.get(f"/api/instances/{self._id(graph)}"))

    def list(self, *, status: str | None = None, owner: str | None = None, most: int | None = 50) -> builtins.list[Graph]:
        """Instances, newest first, at most `most` (None: all)."""
        return [self._graph(row) for row in self._api.listed("/api/instances", most=most, status=status, owner=owner)]

    def wait(
        self,
        graph: Graph | int | str,
        *,
        timeout: float | None = 1800,
        show: bool = True,
        on_progress: Callable[[Graph], None] | None = None,
    ) -> Graph:
        """The instance when it runs; `GraphFailed` if it failed or was suspended."""
        number = self._id(graph)
        found = wait(
            lambda: self._with_progress(number),
            lambda current: current.status in ENDED,
            timeout=timeout,
            display=progress_display(progress_of, show=show),
            describe=lambda current: f"graph {current.id} is {current.status}",
            on_progress=on_progress,
        )
        if found.status != "running":
            raise GraphFailed(found)
        return found

    def query(
        self,
        graph: Graph | int | str,
        cypher: str,
        parameters: dict[str, Any] | None = None,
        *,
        timeout: float = 60,
        max_rows: int | None = None,
    ) -> QueryResult:
        """Run Cypher on an instance."""
        given = {"query": cypher, "parameters": parameters or None, "timeout_ms": round(timeout * 1000), "max_rows": max_rows}
        body = {name: value for name, value in given.items() if value is not None}
        content = self._api.content("POST", f"{self._path(graph)}/query", body, accept=ARROW, timeout=timeout + SPARE_SECONDS)
        return QueryResult.of_stream(content)

    def schema(self, graph: Graph | int | str) -> dict[str, Any]:
        """Labels, edge types and their properties, with row counts."""
        content = self._api.content("GET", f"{self._path(graph)}/schema", accept=JSON, timeout=REQUEST_SECONDS)
        found: dict[str, Any] = json.loads(content)
        return found

    def status(self, graph: Graph | int | str) -> dict[str, Any]:
        """What the graph server says of itself: rows, seconds of the load, queries that run."""
        content = self._api.content("GET", f"{self._path(graph)}/status", accept=JSON, timeout=REQUEST_SECONDS)
        found: dict[str, Any] = json.loads(content)
        return found

    def algorithms(self, graph: Graph | int | str) -> Algorithms:
        """The algorithms of an instance."""
        return Algorithms(self._api, self._id(graph))

    def act(self, graph: Graph | int | str, action: str, body: dict[str, Any] | None = None) -> Graph:
        """Extend, suspend or resume an instance."""
        return self._graph(self._api.act("POST", f"/api/instances/{self._id(graph)}/{action}", body or {}))

    def delete(self, graph: Graph | int | str) -> None:
        """Delete an instance with its graph server."""
        self._api.act("DELETE", f"/api/instances/{self._id(graph)}")

    # -----------------------------------------------------------------------------------------------------------------

    def _id(self, graph: Graph | int | str) -> int:
        if isinstance(graph, Graph):
            return graph.id
        if isinstance(graph, int):
            return graph
        found = [row for row in self._api.listed("/api/instances", most=200, search=graph) if row["name"] == graph]
        if len(found) != 1:
            there = "no graph" if not found else f"{len(found)} graphs"
            raise UsageError(f"there is {there} with the name {graph!r}; pass an id of hf.graphs.list()")
        return int(found[0]["id"])

    def _mapping_id(self, mapping: Any) -> int:
        if not isinstance(mapping, str):
            return int(getattr(mapping, "id", mapping))
        found = self._api.get("/api/mappings", name=mapping, limit=2)
        if len(found) != 1:
            there = "no mapping" if not found else "more than one mapping"
            raise UsageError(f"there is {there} with the name {mapping!r}; pass an id of hf.mappings.list()")
        return int(found[0]["id"])

    @staticmethod
    def _default_name(mapping: Any, snapshot: Any) -> str:
        source = snapshot if mapping is None else mapping
        kind = "snapshot" if mapping is None else "mapping"
        return str(getattr(source, "name", source if isinstance(source, str) else f"{kind} {source}"))

    def _path(self, graph: Graph | int | str) -> str:
        return f"/api/instances/{self._id(graph)}/graph"

    def _with_progress(self, number: int) -> Graph:
        row = self._api.get(f"/api/instances/{number}")
        progress = self._api.get(f"/api/instances/{number}/progress") if row["status"] not in ENDED else None
        return record(Graph, row, _graphs=self, _progress=progress)

    def _graph(self, row: dict[str, Any]) -> Graph:
        return record(Graph, row, _graphs=self, _progress=None)


def progress_of(graph: Graph) -> ProgressView:
    """An instance for a progress display: the export, then each table of the load. Pure."""
    title, note = f"graph {graph.id} · {graph.name}", graph.error_message or ""
    if graph._progress is None:
        state = COMPLETED.get(graph.status, graph.status)
        return ProgressView(title, graph.status, [Line("instance", state, None, graph.status)], note)
    export = graph._progress.get("export_share") or 0.0
    lines = [Line("export", "completed" if export >= 1 else "running", export, f"{export:.0%} of the snapshot")]
    steps = graph._progress.get("steps") or {}
    for table in steps.get("tables", ()) if isinstance(steps, dict) else ():
        share = table["loaded"] / table["rows"] if table["rows"] else None
        state = COMPLETED.get(table["state"], table["state"])
        lines.append(Line(table["name"], state, share, f"{table['loaded']:,} of {table['rows']:,} rows"))
    return ProgressView(title, graph.status, lines, note)
