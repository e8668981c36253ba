"""`holdfast kind list`"""

from __future__ import annotations

import typer

from holdfast.cli.output import Column, Kind, Row, Shape
from holdfast.cli.verb import Session, verb
from holdfast.cli.waiting import Every, Watch, watch_rows

app = typer.Typer(help="Kinds of jobs: who can run them, and what waits.", no_args_is_help=True)


def control_of(kind: Row) -> str | None:
    """What operators have said about a kind, in a word or two. Pure."""
    said = [word for word in ("paused", "drained") if kind[word]]
    return " and ".join(said) or None


SHAPE = Shape(
    "kind",
    [
        Column("KIND", "kind"),
        Column("WORKERS", "workers", Kind.NUMBER),
        Column("WAITING", "waiting", Kind.NUMBER),
        Column("CONTROL", control_of, Kind.WORD),
        Column("BY", "actor"),
        Column("REASON", "reason", long=True),
    ],
    key="kind",
    empty="No worker lives, nothing waits, and nothing is paused.",
)


@app.callback()
def _kinds() -> None:
    """Kinds of jobs: who can run them, and what waits."""


@verb(app, "list")
def list_command(session: Session, watch: Watch = False, interval: Every = 2.0) -> None:
    """List the kinds that a worker can run, that wait, or that are paused or drained."""
    if watch:
        watch_rows(session, SHAPE, lambda: session.get("/api/job-kinds"), interval)
    session.rows(SHAPE, session.get("/api/job-kinds"))
