"""`holdfast graph query`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.errors import UsageError
from holdfast.services.graphs.cli.rows import GraphRequests, parameters_of, print_rows, write_rows
from holdfast.toolkit.cli.times import length
from holdfast.toolkit.cli.verb import Session


def query_command(
    session: Session,
    graph: Annotated[str, typer.Argument(help="The instance's id or name.", metavar="GRAPH", show_default=False)],
    cypher: Annotated[str, typer.Argument(help="One Cypher statement, @file.cypher, or - for standard input.")],
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", help="A parameter: name=text or name:=json; may be repeated.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="Write the rows to this file: .parquet, .csv, .json (lines) or .arrow.")
    ] = None,
    timeout: Annotated[str, typer.Option("--timeout", help="Stop the query after this time, such as 30s.")] = "60s",
    max_rows: Annotated[int | None, typer.Option("--max-rows", min=1, help="Return at most this many rows.")] = None,
) -> None:
    """Run Cypher on a graph instance and print the rows. The graph is read-only.

    holdfast graph query social "MATCH (p:Person) WHERE p.age > \\$age RETURN p.name" -p age:=30
    """
    text, parameters = cypher_of(cypher), parameters_of(param or [])
    seconds = length(timeout).total_seconds()
    requests = GraphRequests(session, instance_id(session, graph), seconds=seconds, max_rows=max_rows)
    if to is not None:
        session.out.say(write_rows(requests, text, parameters, to))
        return
    print_rows(session.out, requests, text, parameters)


def cypher_of(text: str) -> str:
    """The statement itself, the content of the file that `@file` names, or standard input."""
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text()
    except OSError as error:
        raise UsageError(f"cannot read {text[1:]}: {error.strerror}") from None


def instance_id(session: Session, graph: str) -> int:
    """The id of an instance that is named by its id or its name."""
    if graph.isdecimal():
        return int(graph)
    found = [row for row in session.listed("/api/instances", most=200, search=graph) if row["name"] == graph]
    if len(found) != 1:
        there = "no graph" if not found else f"{len(found)} graphs"
        raise UsageError(f"there is {there} with the name {graph!r}; pass its id: holdfast graph list")
    return int(found[0]["id"])
