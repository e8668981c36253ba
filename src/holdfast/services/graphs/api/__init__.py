"""The routes of graphs: instances, requests to their graph servers, algorithms, reports of graph servers, favourites, trees."""

from __future__ import annotations

from holdfast.services.graphs.api import algorithms, bulk, changes, favorites, instances, passing, reports, trees
from holdfast.services.graphs.settings import GraphsSettings
from holdfast.services.graphs.setup import Graphs, graphs_from

ROUTES = (
    *(instances.routes, changes.routes, bulk.routes, passing.routes, algorithms.routes),
    *(reports.routes, favorites.routes, trees.routes),
)


def open_for(settings: GraphsSettings) -> Graphs:
    """Open the runtime that the routes use."""
    return graphs_from(settings)
