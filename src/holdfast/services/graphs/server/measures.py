"""The metrics of a graph server, served at its own `/metrics`. Its registry is not that of the control plane's processes."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0)


class Measures:
    """What one graph server counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.queries = Counter(
            "graph_queries_total",
            "Queries that ended, by outcome: ok, or the code of the error.",
            ["outcome"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "graph_query_duration_seconds",
            "From the request to the first byte of the rows.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.rows = Counter("graph_rows_returned_total", "Rows that queries returned.", registry=self.registry)
        self.running = Gauge("graph_queries_running", "Queries that run or wait.", registry=self.registry)
        self.nodes = Gauge("graph_nodes", "Loaded nodes.", registry=self.registry)
        self.edges = Gauge("graph_edges", "Loaded edges.", registry=self.registry)
        self.load = Gauge("graph_load_seconds", "How long the load took.", registry=self.registry)
        self.runs = Counter("graph_algorithm_runs_total", "Runs that were started.", ["algorithm"], registry=self.registry)
