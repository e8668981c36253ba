"""`holdfast graph-server`"""

from __future__ import annotations

import typer

from holdfast.services.graphs.server.program import serve
from holdfast.services.graphs.server.settings import GraphServerSettings
from holdfast.toolkit.cli.verb import program

app = typer.Typer()


@program(app)
def graph_server_command() -> None:
    """Load one snapshot into a graph database and answer Cypher queries until SIGTERM.

    A runtime starts it and sets HOLDFAST_GRAPH_PLAN, HOLDFAST_GRAPH_SECRET and the other HOLDFAST_GRAPH_ variables.
    """
    serve(GraphServerSettings())
