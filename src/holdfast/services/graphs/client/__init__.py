"""The client of graphs: `hf.graphs` of `holdfast.client.connect()`, and the `%%cypher` magic for notebooks."""

from holdfast.services.graphs.client.algorithms import AlgorithmFailed, Algorithms, Run
from holdfast.services.graphs.client.graphs import Graph, GraphFailed, Graphs
from holdfast.services.graphs.client.results import QueryResult

__all__ = ["AlgorithmFailed", "Algorithms", "Graph", "GraphFailed", "Graphs", "QueryResult", "Run"]
