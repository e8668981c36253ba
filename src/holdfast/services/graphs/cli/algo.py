"""`holdfast graph algo`: run an algorithm on a graph instance and print its rows."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import typer

from holdfast.services.graphs.cli.query import instance_id
from holdfast.services.graphs.cli.rows import parameters_of, shape_of
from holdfast.toolkit.cli.exit_codes import Exit
from holdfast.toolkit.cli.output import Column, Kind, NoClock, Shape
from holdfast.toolkit.cli.times import length
from holdfast.toolkit.cli.verb import Session
from holdfast.toolkit.cli.waiting import wait_for

REQUEST_SECONDS: Final = 120.0
JOB_CARD: Final = Shape("job", [Column("ID", "id"), Column("KIND", "kind"), Column("STATE", "state", Kind.WORD)])


def algo_command(
    session: Session,
    graph: Annotated[str, typer.Argument(help="The instance's id or name.", metavar="GRAPH", show_default=False)],
    name: Annotated[str, typer.Argument(help="The algorithm, such as pagerank, wcc or louvain.", metavar="ALGORITHM")],
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", help="A parameter: name=text or name:=json; may be repeated.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option("--label", help="Only nodes of this label; may be repeated.")] = None,
    edge: Annotated[list[str] | None, typer.Option("--edge", help="Only edges of this type; may be repeated.")] = None,
    weight: Annotated[str | None, typer.Option("--weight", help="Property of the edges that is their weight.")] = None,
    write_to: Annotated[str | None, typer.Option("--property", help="Also write the result to this property.")] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Print this many rows.")] = 10,
    lowest: Annotated[bool, typer.Option("--lowest", help="Print the lowest values instead of the highest.")] = False,
    timeout: Annotated[str, typer.Option("--timeout", help="Stop the run after this time, such as 5m.")] = "30m",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the rows, or print the job and return.")] = True,
) -> None:
    """Run an algorithm and print the nodes with the highest values. The run is a job; Ctrl-C cancels it.

    holdfast graph algo social pagerank --label Person --top 10
    """
    number = instance_id(session, graph)
    given = {"node_labels": label, "edge_types": edge, "weight": weight, "property": write_to}
    body: dict[str, Any] = {key: value for key, value in given.items() if value}
    body |= {"parameters": parameters_of(param or []), "timeout_seconds": length(timeout).total_seconds()}
    job = session.act("POST", f"/api/instances/{number}/algorithms/{name}", body)
    if not wait:
        session.one(JOB_CARD, job)
        session.out.hint(f"holdfast job wait {job['id']}")
        return
    (ended,) = _ended(session, job["id"])
    if ended["state"] != "completed":
        session.out.mistake(f"{name} (job {ended['id']}) {ended['state']}: {ended['error']}")
        raise typer.Exit(Exit.FAILED)
    _print(session, number, ended, order="asc" if lowest else "desc", top=top)


def _ended(session: Session, job_id: int) -> list[dict[str, Any]]:
    """The job when it has ended. Ctrl-C cancels it, because nobody would read its rows."""
    try:
        return wait_for(session, [job_id], None, leaves_running=False)
    except KeyboardInterrupt:
        session.act("POST", f"/api/jobs/{job_id}/cancel", {"reason": "interrupted on the command line"})
        session.out.say(f"Job {job_id} is cancelled.")
        raise


def _print(session: Session, number: int, job: dict[str, Any], *, order: str, top: int) -> None:
    path = f"/api/instances/{number}/graph/algorithms/runs/{job['id']}/result?order={order}&limit={top}"
    found = json.loads(session.transport.content("GET", path, body=None, accept="application/json", timeout=REQUEST_SECONDS))
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    session.out.rows(shape_of(found["columns"], found["column_types"]), rows, NoClock())
    result = job["result"]
    session.out.say(f"{result['nodes']:,} nodes and {result['edges']:,} edges in {result['seconds']:.1f} s", "dim")
