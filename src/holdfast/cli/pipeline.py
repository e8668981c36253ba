"""`holdfast pipeline list | show | watch | abort`"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.cli import job_shapes
from holdfast.toolkit.cli.arguments import uuid_of
from holdfast.toolkit.cli.output import Column, Kind, Row, Shape
from holdfast.toolkit.cli.times import counted
from holdfast.toolkit.cli.verb import All, Limit, Reason, Session, Yes, verb
from holdfast.toolkit.cli.waiting import Every, Watch, watch_rows, watch_screen

app = typer.Typer(help="Pipelines: jobs that depend on each other.", no_args_is_help=True)

PipelineId = Annotated[str, typer.Argument(help="The pipeline's id.", metavar="ID", show_default=False)]


def counts_of(pipeline: Row) -> str:
    """How many jobs are in each state, in one line. Pure."""
    return ", ".join(f"{count} {state}" for state, count in pipeline["counts"].items() if count) or "no jobs"


SHAPE = Shape(
    "pipeline",
    [
        Column("ID", "id"),
        Column("NAME", "name"),
        Column("STATUS", "status", Kind.WORD),
        Column("CREATED", "created_at", Kind.TIME),
        Column("JOBS", counts_of, long=True),
        Column("ABORTED", "aborted_at", Kind.TIME, wide=True),
        Column("REASON", "reason", wide=True),
    ],
    empty="No pipelines.",
)
CARD = Shape(
    "pipeline",
    [Column("PIPELINE", "id"), Column("NAME", "name"), Column("STATUS", "status", Kind.WORD), Column("JOBS", counts_of)],
)
STEPS = Shape(
    "job", [Column("STEP", lambda one: one["step"] or "–"), *job_shapes.SHAPE.columns[:7]], empty="This pipeline has no jobs."
)


@verb(app, "list")
def list_command(session: Session, limit: Limit = 50, all: All = False, watch: Watch = False, interval: Every = 2.0) -> None:
    """List pipelines, newest first."""
    most = None if all else limit
    if watch:
        watch_rows(session, SHAPE, lambda: session.listed("/api/pipelines", most=most), interval)
    session.rows(SHAPE, session.listed("/api/pipelines", most=most))


@verb(app, "show")
def show_command(session: Session, pipeline: PipelineId, watch: Watch = False, interval: Every = 2.0) -> None:
    """Show one pipeline with its newest jobs."""

    def fetch() -> dict[str, Any]:
        found: dict[str, Any] = session.get(f"/api/pipelines/{_id(pipeline)}")
        return found

    def screen(found: Row) -> RenderableType:
        now = session.transport.now()
        steps = list(reversed(found["jobs"]))
        return Group(session.out.card(CARD, found, now), Text(""), session.out.table(STEPS, steps, now))

    if watch and session.out.is_terminal and session.out.for_people:
        watch_screen(session, lambda: screen(fetch()), interval)
    if watch:
        watch_rows(session, CARD, lambda: [fetch()], interval)
    found = fetch()
    if session.out.for_people:
        session.out.screen(screen(found), found)
    else:
        session.one(CARD, found)


@verb(app, "watch")
def watch_command(session: Session, pipeline: PipelineId, interval: Every = 2.0) -> None:
    """Show one pipeline, and refresh when it changes: the same as `show --watch`."""
    show_command(session, pipeline, True, interval)


@verb(app, "abort")
def abort_command(session: Session, pipeline: PipelineId, reason: Reason, yes: Yes = False) -> None:
    """Cancel all jobs of a pipeline that have not ended."""
    found = session.get(f"/api/pipelines/{_id(pipeline)}")
    session.confirm(f"Abort pipeline {found['name']} ({counts_of(found)})?", yes)
    answer = session.act("POST", f"/api/pipelines/{_id(pipeline)}/abort", {"reason": reason})
    session.out.say(f"Cancelled or asked to stop: {counted(answer['stopped'], 'job')}.")
    session.one(CARD, session.get(f"/api/pipelines/{_id(pipeline)}"))


def _id(text: str) -> str:
    return uuid_of(text, "pipeline")
