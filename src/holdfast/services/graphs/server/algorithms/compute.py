"""The algorithms, on arrays: edges from `source` to `target`, both numbers from 0 to `nodes` - 1. Pure.

scipy for everything that is linear algebra or a search; networkit for communities, cores and triangles. The measurement is in
docs/decisions/0030. Several edges between two nodes count several times where weights count, else once. The algorithms that
iterate in Python tell how far they are; the functions of both libraries do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.extras import lazily
from holdfast.services.graphs.server.algorithms.progress import Tell, silent

if TYPE_CHECKING:
    import networkit as nk
    import numpy as np
    import scipy.sparse as sparse
    import scipy.sparse.csgraph as csgraph
else:
    nk, np = lazily("networkit"), lazily("numpy")
    sparse, csgraph = lazily("scipy.sparse"), lazily("scipy.sparse.csgraph")

Array = Any  # a numpy array
BATCH: Final = 16  # sources of betweenness that are searched at once


@dataclass(frozen=True, slots=True)
class Edges:
    """A graph as arrays. Without weights every edge has the weight 1."""

    nodes: int
    source: Array
    target: Array
    weight: Array | None = None

    def matrix(self, *, undirected: bool = False) -> Any:
        """The adjacency matrix in CSR; weights of parallel edges are added."""
        weight = np.ones(len(self.source)) if self.weight is None else self.weight
        made = sparse.coo_matrix((weight, (self.source, self.target)), shape=(self.nodes, self.nodes)).tocsr()
        return made + made.T if undirected else made

    def simple(self) -> tuple[Array, Array, Array]:
        """The undirected graph without loops and parallel edges: lower end, upper end, weight."""
        low, high = np.minimum(self.source, self.target), np.maximum(self.source, self.target)
        keep = low != high
        weight = np.ones(len(low)) if self.weight is None else self.weight
        keys, place = np.unique(low[keep] * self.nodes + high[keep], return_inverse=True)
        return keys // max(self.nodes, 1), keys % max(self.nodes, 1), np.bincount(place, weight[keep], len(keys))


Answer = dict[str, Array]  # "node": numbers of nodes; then the columns of the algorithm
Compute = Callable[[Edges, Mapping[str, Any], Tell], Answer]


def compute(name: str, edges: Edges, parameters: Mapping[str, Any], tell: Tell = silent) -> Answer:
    """Run an algorithm of the catalog."""
    return FUNCTIONS[name](edges, parameters, tell)


def _every(edges: Edges, **columns: Array) -> Answer:
    return {"node": np.arange(edges.nodes, dtype=np.int64), **columns}


def _by_size(groups: Array) -> Array:
    """Groups numbered by size: 0 is the largest. Groups of one size are in the order of their first nodes."""
    _, first, place, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    order = np.lexsort((first, -sizes))
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    return number[place]


# ---------------------------------------------------------------------------------------------------------------------
# Linear algebra and searches: scipy
# ---------------------------------------------------------------------------------------------------------------------


def pagerank(edges: Edges, given: Mapping[str, Any], tell: Tell) -> Answer:
    """Power iteration. The rank of nodes without outgoing edges is spread over all nodes."""
    count = edges.nodes
    matrix = edges.matrix()
    out = np.asarray(matrix.sum(axis=1)).ravel()
    share = np.divide(1.0, out, out=np.zeros(count), where=out > 0)
    incoming, is_end = matrix.T.tocsr(), out <= 0
    rank = np.full(count, 1.0 / max(count, 1))
    for done in range(1, given["max_iterations"] + 1):
        spread = given["damping"] * (incoming @ (rank * share) + rank[is_end].sum() / count)
        after = spread + (1.0 - given["damping"]) / count
        change, rank = np.abs(after - rank).sum(), after
        if change < given["tolerance"]:
            break
        tell(done, expected_iterations(done, float(change), given), "iterations")
    return _every(edges, rank=rank)


def expected_iterations(done: int, change: float, given: Mapping[str, Any]) -> int:
    """How many iterations PageRank needs at most: each multiplies the change by `damping` or less. Pure."""
    damping, most = given["damping"], int(given["max_iterations"])
    if damping >= 1:
        return most
    left = math.ceil(math.log(given["tolerance"] / change) / math.log(damping)) if damping > 0 else 1
    return min(most, done + max(left, 1))


def wcc(edges: Edges, _: Mapping[str, Any], __: Tell) -> Answer:
    return _every(edges, component=_by_size(csgraph.connected_components(edges.matrix(), connection="weak")[1]))


def scc(edges: Edges, _: Mapping[str, Any], __: Tell) -> Answer:
    return _every(edges, component=_by_size(csgraph.connected_components(edges.matrix(), connection="strong")[1]))


def degree(edges: Edges, given: Mapping[str, Any], _: Tell) -> Answer:
    def counted(ends: Array) -> Array:
        return np.bincount(ends, edges.weight, edges.nodes).astype(float)

    out, into = given["direction"] in ("out", "both"), given["direction"] in ("in", "both")
    return _every(edges, degree=out * counted(edges.source) + into * counted(edges.target))


def shortest_path(edges: Edges, given: Mapping[str, Any], _: Tell) -> Answer:
    """Dijkstra from `source`, a number. With `target` the nodes of one path in order, else all nodes that can be reached."""
    matrix = _lightest(edges)
    distance, before = csgraph.dijkstra(
        matrix, directed=given["directed"], indices=given["source"], return_predecessors=True, unweighted=edges.weight is None
    )
    if given["target"] is None:
        reached = np.flatnonzero(np.isfinite(distance))
        nodes = reached[np.argsort(distance[reached], kind="stable")]
    else:
        nodes = np.array(_path(before, given["source"], given["target"]), dtype=np.int64)
    return {"node": nodes, "distance": distance[nodes], "position": np.arange(len(nodes), dtype=np.int64)}


def _lightest(edges: Edges) -> Any:
    """The adjacency matrix with the lowest weight of parallel edges."""
    if edges.weight is None:
        return edges.matrix()
    order = np.lexsort((edges.weight, edges.target, edges.source))
    source, target = edges.source[order], edges.target[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
    ends = (source[first], target[first])
    return sparse.csr_matrix((edges.weight[order][first], ends), shape=(edges.nodes, edges.nodes))


def _path(before: Array, source: int, target: int) -> list[int]:
    path = [target]
    while path[-1] != source:
        if before[path[-1]] < 0:
            return []  # it cannot be reached
        path.append(int(before[path[-1]]))
    return path[::-1]


def betweenness(edges: Edges, given: Mapping[str, Any], tell: Tell) -> Answer:
    """Brandes' algorithm from sampled sources, some at a time, as products of a sparse matrix with narrow dense ones."""
    low, high, _ = edges.simple() if not given["directed"] else (edges.source, edges.target, None)
    loops = low != high
    matrix = sparse.csr_matrix((np.ones(loops.sum()), (low[loops], high[loops])), shape=(edges.nodes, edges.nodes))
    matrix.data[:] = 1.0  # parallel edges are one
    if not given["directed"]:
        matrix = matrix + matrix.T
    count = min(given["samples"], edges.nodes)
    sources = np.random.default_rng(given["seed"]).choice(edges.nodes, size=count, replace=False)
    total = np.zeros(edges.nodes)
    back = matrix.T.tocsr()
    for at in range(0, count, BATCH):
        tell(at, count, "sources")
        total += _dependencies(matrix, back, sources[at : at + BATCH])
    pairs = max((edges.nodes - 1) * (edges.nodes - 2), 1)
    return _every(edges, betweenness=total * (edges.nodes / max(count, 1)) / pairs)


def _dependencies(matrix: Any, back: Any, sources: Array) -> Array:
    """The sum of the dependencies of these sources on every node."""
    width = len(sources)
    paths = np.zeros((matrix.shape[0], width))
    paths[sources, np.arange(width)] = 1.0
    level = np.where(paths > 0, 0, -1)
    depth, frontier = 0, paths.copy()
    while True:
        frontier = (back @ frontier) * (level < 0)
        new = frontier > 0
        if not new.any():
            break
        depth += 1
        level[new] = depth
        paths += frontier
    dependency = np.zeros_like(paths)
    share = np.divide(1.0, paths, out=np.zeros_like(paths), where=paths > 0)
    for each in range(depth, 0, -1):
        sent = matrix @ np.where(level == each, (1.0 + dependency) * share, 0.0)
        dependency += np.where(level == each - 1, sent * paths, 0.0)
    dependency[sources, np.arange(width)] = 0.0
    return dependency.sum(axis=1)


# ---------------------------------------------------------------------------------------------------------------------
# Communities, cores and triangles: networkit
# ---------------------------------------------------------------------------------------------------------------------


def _networkit(edges: Edges, *, weighted: bool = False, seed: int = 42) -> Any:
    """The simple undirected graph. One thread and a seed, so that a run can be repeated."""
    nk.setNumberOfThreads(1)
    nk.setSeed(seed, False)
    low, high, weight = edges.simple()
    return nk.GraphFromCoo((weight, (low, high)), n=edges.nodes, weighted=weighted, directed=False)


def louvain(edges: Edges, given: Mapping[str, Any], _: Tell) -> Answer:
    graph = _networkit(edges, weighted=edges.weight is not None, seed=given["seed"])
    found = nk.community.PLM(graph, refine=False, gamma=given["resolution"]).run().getPartition()
    return _every(edges, community=_by_size(np.array(found.getVector(), dtype=np.int64)))


def label_propagation(edges: Edges, given: Mapping[str, Any], _: Tell) -> Answer:
    graph = _networkit(edges, seed=given["seed"])
    found = nk.community.PLP(graph, maxIterations=given["max_iterations"]).run().getPartition()
    return _every(edges, community=_by_size(np.array(found.getVector(), dtype=np.int64)))


def k_core(edges: Edges, _: Mapping[str, Any], __: Tell) -> Answer:
    scores = nk.centrality.CoreDecomposition(_networkit(edges)).run().scores()
    return _every(edges, core=np.array(scores, dtype=np.int64))


def triangle_count(edges: Edges, _: Mapping[str, Any], __: Tell) -> Answer:
    """From the clustering coefficient: triangles by pairs of neighbours."""
    graph = _networkit(edges)
    share = np.array(nk.centrality.LocalClusteringCoefficient(graph, True).run().scores(), dtype=float)
    low, high, _ = edges.simple()
    neighbours = np.bincount(low, minlength=edges.nodes) + np.bincount(high, minlength=edges.nodes)
    return _every(edges, triangles=np.rint(share * neighbours * (neighbours - 1) / 2).astype(np.int64))


FUNCTIONS: Final[dict[str, Compute]] = {
    "pagerank": pagerank,
    "wcc": wcc,
    "scc": scc,
    "louvain": louvain,
    "k_core": k_core,
    "label_propagation": label_propagation,
    "triangle_count": triangle_count,
    "degree": degree,
    "betweenness": betweenness,
    "shortest_path": shortest_path,
}
