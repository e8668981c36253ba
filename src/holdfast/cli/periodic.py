"""`holdfast periodic list | show | run | pause | resume | history`"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from holdfast.errors import NotFound
from holdfast.toolkit.cli.exit_codes import Exit
from holdfast.toolkit.cli.output import Column, Kind, Row, Shape
from holdfast.toolkit.cli.times import moment, took
from holdfast.toolkit.cli.verb import All, Limit, Reason, Session, verb
from holdfast.toolkit.cli.waiting import Every, Watch, watch_rows

app = typer.Typer(help="Periodic jobs and loops: list, run now, pause, resume.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(help="A kind or the name of a loop; see `holdfast periodic list`.", show_default=False),
]
LOOPS = "/api/periodic"


def schedule_of(loop: Row) -> str | None:
    """The schedule in a few words. Pure."""
    if loop["interval_seconds"] is not None:
        return f"every {took(loop['interval_seconds']).replace('.0s', 's')}"
    return f"{loop['cron']} {loop['timezone']}"


def health_of(loop: Row) -> str:
    """healthy or unhealthy. Pure."""
    return "healthy" if loop["healthy"] else "unhealthy"


def seconds_of(run: Row) -> float | None:
    """How long a run took. Pure."""
    if run["started_at"] is None or run["finished_at"] is None:
        return None
    return (moment(run["finished_at"]) - moment(run["started_at"])).total_seconds()


SHAPE = Shape(
    "periodic",
    [
        Column("NAME", "job_name"),
        Column("TYPE", "type"),
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
        Column("LAST JOB", "last_job_id", wide=True),
        Column("NEXT RUNS", "next_runs", wide=True),
        Column("CATCH UP", "catch_up", wide=True),
        Column("MISSED", "missed", Kind.NUMBER, wide=True),
        Column("WORKERS", "workers", Kind.NUMBER, wide=True),
    ],
    key="job_name",
    empty="No periodic jobs and no loops: declare one with @job(cron=…) and start a worker, or start `holdfast scheduler run`.",
)
RUNS = Shape(
    "run",
    [
        Column("RUN", "id"),
        Column("TRIGGER", "trigger"),
        Column("STARTED", "started_at", Kind.TIME),
        Column("TOOK", seconds_of, Kind.SECONDS),
        Column("OUTCOME", "outcome", Kind.WORD),
        Column("ITEMS", "items", Kind.NUMBER),
        Column("FAILED", "failed_items", Kind.NUMBER),
        Column("BY", "actor"),
        Column("REASON", "reason", long=True),
        Column("ERROR", "error", wide=True),
        Column("DUE", "due_at", Kind.TIME, wide=True),
    ],
    empty="This loop has not run yet.",
)
QUEUED = Shape(
    "run",
    [
        Column("RUN", "run_id"),
        Column("NAME", "job_name"),
        Column("STATUS", "status", Kind.WORD),
        Column("AT", "triggered_at", Kind.TIME),
        Column("BY", "triggered_by"),
        Column("REASON", "reason", long=True),
    ],
    key="run_id",
)


@verb(app, "list")
def list_command(session: Session, watch: Watch = False, interval: Every = 2.0) -> None:
    """List periodic jobs and loops: the next run, the last outcome, and the health of each."""
    if watch:
        watch_rows(session, SHAPE, lambda: session.get(LOOPS), interval)
    session.rows(SHAPE, session.get(LOOPS))


@verb(app, "show")
def show_command(session: Session, name: Name) -> None:
    """Show one periodic job or loop; exits with 1 if it is unhealthy."""
    found = [loop for loop in session.get(LOOPS) if loop["job_name"] == name]
    if not found:
        raise NotFound(f"no periodic job or loop {name!r}; see `holdfast periodic list`")
    session.one(SHAPE, found[0])
    raise typer.Exit(Exit.OK if found[0]["healthy"] else Exit.FAILED)


def _run(session: Session, name: Name, reason: Reason) -> None:
    """Run a periodic job or a loop now; a loop at most once a minute. The schedule does not change."""
    queued = session.act("POST", f"{LOOPS}/{quote(name, safe='')}/trigger", {"reason": reason})
    session.out.rows(QUEUED, [queued], session.transport, single=True)
    session.out.hint(f"holdfast periodic history {name}")


verb(app, "run")(_run)
verb(app, "trigger", hidden=True)(_run)  # a synonym


@verb(app, "pause")
def pause_command(session: Session, name: Name, reason: Reason) -> None:
    """Pause the schedule of a periodic job or a loop; `holdfast periodic run` still works."""
    _control(session, name, "pause", reason)


@verb(app, "resume")
def resume_command(session: Session, name: Name, reason: Reason) -> None:
    """Resume a paused schedule with its next run; runs that were due during the pause are skipped."""
    _control(session, name, "resume", reason)


def _control(session: Session, name: str, act: str, reason: str) -> None:
    loop = session.act("POST", f"{LOOPS}/{quote(name, safe='')}/{act}", {"reason": reason})
    session.out.rows(SHAPE, [loop], session.transport, single=True)


@verb(app, "history")
def history_command(session: Session, name: Name, limit: Limit = 20, all: All = False) -> None:
    """List the runs of a periodic job or a loop, newest first."""
    session.rows(RUNS, session.listed(f"{LOOPS}/{quote(name, safe='')}/runs", most=None if all else limit))
