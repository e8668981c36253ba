"""Algorithms of a graph: `graph.algo.pagerank()`. Each call starts a job that runs it, waits for the job, and returns the rows.

`start` returns the job at once; it can be waited for, cancelled and read as every job.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.services.graphs.client.results import QueryResult
from holdfast.toolkit.client.api import Api
from holdfast.toolkit.client.jobs import Job, Jobs, id_of
from holdfast.toolkit.client.problems import JobFailed
from holdfast.toolkit.client.records import record

ARROW: Final = "application/vnd.apache.arrow.stream"
JSON: Final = "application/json"
REQUEST_SECONDS: Final = 60.0
RESULT_SECONDS: Final = 600.0
SPARE_SECONDS: Final = 60.0  # that the job may take longer than the run


class AlgorithmFailed(JobFailed):
    """An algorithm failed or was cancelled; `job` is its job."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the graph server has it. `id` is the id of its job."""

    id: int
    algorithm: str
    state: str
    step: str
    progress: float | None  # from 0 to 1; None if the graph server is too old to report it
    holder: str
    seconds: float
    rows: int | None
    property: str | None
    error: str | None

    @classmethod
    def of(cls, row: dict[str, Any]) -> Run:
        return cls(**{"progress": None, **{name: row[name] for name in cls.__slots__ if name in row}})


class Algorithms:
    """`graph.algo`. Options of all: node_labels, edge_types, weight (of edges), property (write the result to it)."""

    def __init__(self, api: Api, instance_id: int) -> None:
        self._api, self._jobs = api, Jobs(api)
        self._path, self._server = f"/api/instances/{instance_id}/algorithms", f"/api/instances/{instance_id}/graph/algorithms"

    def pagerank(self, *, damping: float = 0.85, **options: Any) -> QueryResult:
        """Importance of nodes by incoming edges, highest first."""
        return self.run("pagerank", damping=damping, **options)

    def wcc(self, **options: Any) -> QueryResult:
        """Weakly connected components; 0 is the largest."""
        return self.run("wcc", order="asc", **options)

    def scc(self, **options: Any) -> QueryResult:
        """Strongly connected components; 0 is the largest."""
        return self.run("scc", order="asc", **options)

    def louvain(self, *, resolution: float = 1.0, **options: Any) -> QueryResult:
        """Communities by modularity; 0 is the largest."""
        return self.run("louvain", order="asc", resolution=resolution, **options)

    def label_propagation(self, **options: Any) -> QueryResult:
        """Communities by majority of neighbours; 0 is the largest."""
        return self.run("label_propagation", order="asc", **options)

    def k_core(self, **options: Any) -> QueryResult:
        """Core numbers, highest first."""
        return self.run("k_core", **options)

    def triangle_count(self, **options: Any) -> QueryResult:
        """Triangles of each node, highest first."""
        return self.run("triangle_count", **options)

    def degree(self, *, direction: str = "both", **options: Any) -> QueryResult:
        """Number of edges of each node, highest first. Direction: in, out or both."""
        return self.run("degree", direction=direction, **options)

    def betweenness(self, *, samples: int = 64, **options: Any) -> QueryResult:
        """Share of shortest paths through each node, estimated from so many sources, highest first."""
        return self.run("betweenness", samples=samples, **options)

    def shortest_path(self, source: tuple[str, Any], target: tuple[str, Any] | None = None, **options: Any) -> QueryResult:
        """The path between two nodes, each `(label, key)`, in order; without `target` the distances to all nodes."""
        end = None if target is None else _node(target)
        return self.run("shortest_path", order="asc", source=_node(source), target=end, **options)

    def run(
        self,
        name: str,
        *,
        node_labels: Sequence[str] | None = None,
        edge_types: Sequence[str] | None = None,
        weight: str | None = None,
        property: str | None = None,
        order: str = "desc",
        most: int | None = None,
        timeout: float = 1800,
        show: bool = True,
        **parameters: Any,
    ) -> QueryResult:
        """Run an algorithm by name and wait for its rows; `AlgorithmFailed` if it fails."""
        started = self.start(
            name,
            node_labels=node_labels,
            edge_types=edge_types,
            weight=weight,
            property=property,
            timeout=timeout,
            **parameters,
        )
        try:
            self.wait(started, timeout=timeout + SPARE_SECONDS, show=show)
        except (KeyboardInterrupt, TimeoutError):  # nobody would read its rows
            self._jobs.cancel(started)
            raise
        return self.result(started, order=order, most=most)

    def start(
        self,
        name: str,
        *,
        node_labels: Sequence[str] | None = None,
        edge_types: Sequence[str] | None = None,
        weight: str | None = None,
        property: str | None = None,
        timeout: float = 1800,
        **parameters: Any,
    ) -> Job:
        """Start a run and return its job at once; `Conflict` names the job that runs another algorithm on this graph."""
        given = {
            "node_labels": None if node_labels is None else list(node_labels),
            "edge_types": None if edge_types is None else list(edge_types),
            "weight": weight,
            "property": property,
            "timeout_seconds": timeout,
            "parameters": {name: value for name, value in parameters.items() if value is not None},
        }
        body = {key: value for key, value in given.items() if value is not None}
        return record(Job, self._api.act("POST", f"{self._path}/{name}", body), _jobs=self._jobs)

    def wait(self, job: Job | int, *, timeout: float | None = 1800, show: bool = True) -> Job:
        """The job when it has completed, with its progress until then; `AlgorithmFailed` if it failed or was cancelled."""
        try:
            return self._jobs.wait(job, timeout=timeout, show=show)
        except JobFailed as error:
            raise AlgorithmFailed(error.job) from None

    def get(self, job: Job | int) -> Job:
        """The job of a run as it is now."""
        return self._jobs.get(job)

    def cancel(self, job: Job | int, *, reason: str | None = None) -> Job:
        """Stop a run. A reason is required if it belongs to another user."""
        return self._jobs.cancel(job, reason=reason)

    def list(self) -> builtins.list[Run]:
        """The last runs of this graph, newest first."""
        return [Run.of(row) for row in self._json(f"{self._server}/runs")["runs"]]

    def result(self, job: Job | int, *, order: str | None = None, most: int | None = None) -> QueryResult:
        """The rows of a completed run: label, key, and its values. Those of the last five runs are kept."""
        path = f"{self._server}/runs/{id_of(job)}/result"
        content = self._api.content("GET", path, accept=ARROW, timeout=RESULT_SECONDS, order=order, limit=most)
        return QueryResult.of_stream(content)

    def catalog(self) -> builtins.list[dict[str, Any]]:
        """All algorithms with their parameters."""
        found: builtins.list[dict[str, Any]] = self._json(self._server)["algorithms"]
        return found

    def _json(self, path: str) -> Any:
        return json.loads(self._api.content("GET", path, accept=JSON, timeout=REQUEST_SECONDS))


def _node(given: tuple[str, Any]) -> dict[str, Any]:
    label, key = given
    return {"label": label, "key": key}
