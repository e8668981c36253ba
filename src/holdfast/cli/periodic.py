"""`holdfast periodic list | show | run | pause | resume | history`"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from holdfast.cli.exits import Exit
from holdfast.cli.output import Column, Kind, Row, Shape
from holdfast.cli.times import moment, took
from holdfast.cli.verb import All, Limit, Reason, Session, verb
from holdfast.cli.waiting import Every, Watch, watch_rows
from holdfast.errors import NotFound

app = typer.Typer(help="Periodic loops: look at them, run one now, pause one.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The loop's name; `holdfast periodic list` has them.", show_default=False)]
LOOPS = "/api/periodic"


def schedule_of(loop: Row) -> str | None:
    """When it runs, in a few words. Pure."""
    return loop["cron"] if loop["interval_seconds"] is None else f"every {took(loop['interval_seconds']).replace('.0s', 's')}"


def health_of(loop: Row) -> str:
    """In a word. Pure."""
    return "healthy" if loop["healthy"] else "unhealthy"


def seconds_of(run: Row) -> float | None:
    """How long a run took. Pure."""
    if run["started_at"] is None or run["finished_at"] is None:
        return None
    return (moment(run["finished_at"]) - moment(run["started_at"])).total_seconds()


SHAPE = Shape(
    "loop",
    [
        Column("NAME", "job_name"),
        Column("SCHEDULE", schedule_of),
        Column("STATUS", "status", Kind.WORD),
        Column("HEALTH", health_of, Kind.WORD),
        Column("NEXT", "next_run", Kind.TIME),
        Column("LAST", "last_run", Kind.TIME),
        Column("OUTCOME", "last_outcome", Kind.WORD),
        Column("FAILURES", "consecutive_failures", Kind.NUMBER),
        Column("LAST SUCCESS", "last_success", Kind.TIME, wide=True),
        Column("HOLDER", "holder", wide=True),
        Column("PAUSED BY", "paused_by", wide=True),
        Column("PAUSED REASON", "paused_reason", wide=True),
        Column("LAST ERROR", "last_error", wide=True),
    ],
    key="job_name",
    empty="No loops; start a scheduler: `holdfast serve` or `holdfast scheduler run`.",
)
RUNS = Shape(
    "run",
    [
        Column("RUN", "id"),
        Column("TRIGGER", "trigger"),
        Column("BEGAN", "started_at", Kind.TIME),
        Column("TOOK", seconds_of, Kind.SECONDS),
        Column("OUTCOME", "outcome", Kind.WORD),
        Column("ITEMS", "items", Kind.NUMBER),
        Column("FAILED", "failed_items", Kind.NUMBER),
        Column("BY", "actor"),
        Column("REASON", "reason", long=True),
        Column("ERROR", "error", wide=True),
        Column("DUE", "due_at", Kind.TIME, wide=True),
    ],
    empty="It has not run yet.",
)
QUEUED = Shape(
    "run",
    [
        Column("RUN", "run_id"),
        Column("LOOP", "job_name"),
        Column("STATUS", "status", Kind.WORD),
        Column("AT", "triggered_at", Kind.TIME),
        Column("BY", "triggered_by"),
        Column("REASON", "reason", long=True),
    ],
    key="run_id",
)


@verb(app, "list")
def list_command(session: Session, watch: Watch = False, interval: Every = 2.0) -> None:
    """List the loops: when each is due, how it went last, and whether it is well."""
    if watch:
        watch_rows(session, SHAPE, lambda: session.get(LOOPS), interval)
    session.rows(SHAPE, session.get(LOOPS))


@verb(app, "show")
def show_command(session: Session, name: Name) -> None:
    """Show everything about one loop; ends with 1 if it is unhealthy."""
    found = [loop for loop in session.get(LOOPS) if loop["job_name"] == name]
    if not found:
        raise NotFound(f"there is no loop {name!r}; `holdfast periodic list` names them")
    session.one(SHAPE, found[0])
    raise typer.Exit(Exit.OK if found[0]["healthy"] else Exit.FAILED)


def _run(session: Session, name: Name, reason: Reason) -> None:
    """Run a loop now: once a minute for each. It begins when a scheduler looks, within seconds."""
    queued = session.act("POST", f"{LOOPS}/{quote(name, safe='')}/trigger", {"reason": reason})
    session.out.rows(QUEUED, [queued], session.way, single=True)
    session.out.hint(f"holdfast periodic history {name}")


verb(app, "run")(_run)
verb(app, "trigger", hidden=True)(_run)  # the documents' word


@verb(app, "pause")
def pause_command(session: Session, name: Name, reason: Reason) -> None:
    """Begin no more ticks of a loop; a run that somebody asks for still begins."""
    _control(session, name, "pause", reason)


@verb(app, "resume")
def resume_command(session: Session, name: Name, reason: Reason) -> None:
    """Let a paused loop go on with its next tick."""
    _control(session, name, "resume", reason)


def _control(session: Session, name: str, act: str, reason: str) -> None:
    loop = session.act("POST", f"{LOOPS}/{quote(name, safe='')}/{act}", {"reason": reason})
    session.out.rows(SHAPE, [loop], session.way, single=True)


@verb(app, "history")
def history_command(session: Session, name: Name, limit: Limit = 20, all: All = False) -> None:
    """List the runs of a loop, newest first."""
    session.rows(RUNS, session.listed(f"{LOOPS}/{quote(name, safe='')}/runs", most=None if all else limit))
