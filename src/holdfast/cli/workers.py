"""`holdfast worker list | show | quiet`, beside `holdfast worker run | remote`"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli import job_shapes, remote_worker
from holdfast.cli.modules import RunsModules
from holdfast.cli.worker import app
from holdfast.toolkit.cli.arguments import uuid_of
from holdfast.toolkit.cli.output import Column, Kind, Row, Shape
from holdfast.toolkit.cli.verb import All, Limit, Reason, Session, program, verb
from holdfast.toolkit.cli.waiting import Every, Watch, watch_rows

program(app, "remote", cls=RunsModules)(remote_worker.command)
WorkerId = Annotated[str, typer.Argument(help="The worker's id.", metavar="ID", show_default=False)]


def state_of(worker: Row) -> str:
    """alive, quiet (alive, but claims no more), stopped, or lost. Pure."""
    if worker["alive"]:
        return "quiet" if worker["quiet_at"] else "alive"
    return "stopped" if worker["stopped_at"] else "lost"


SHAPE = Shape(
    "worker",
    [
        Column("ID", "id"),
        Column("NAME", "name"),
        Column("STATE", state_of, Kind.WORD),
        Column("HOLDS", "holds", Kind.NUMBER),
        Column("HEARTBEAT", "beat_at", Kind.TIME),
        Column("VERSION", "version"),
        Column("KINDS", lambda worker: ", ".join(worker["kinds"]), long=True),
        Column("QUEUES", lambda worker: ", ".join(worker["queues"] or []), wide=True),
        Column("RUNNER", "runner", wide=True),
        Column("HOST", "host", wide=True),
        Column("PID", "pid", wide=True),
        Column("POD", "pod", wide=True),
        Column("COMMIT", "git_sha", wide=True),
        Column("CONCURRENCY", "concurrency", Kind.NUMBER, wide=True),
        Column("STARTED", "started_at", Kind.TIME, wide=True),
        Column("LEASE UNTIL", "lease_until", Kind.TIME, wide=True),
    ],
    empty="No workers.",
)


@verb(app, "list")
def list_command(
    session: Session,
    alive: Annotated[bool, typer.Option("--alive", help="Only workers that are alive.")] = False,
    limit: Limit = 50,
    all: All = False,
    watch: Watch = False,
    interval: Every = 2.0,
) -> None:
    """List workers: their state, their kinds, and how many jobs each holds."""

    def fetch() -> list[dict[str, Any]]:
        return session.listed("/api/workers", most=None if all else limit, alive=alive)

    if watch:
        watch_rows(session, SHAPE, fetch, interval)
    session.rows(SHAPE, fetch())


@verb(app, "show")
def show_command(session: Session, worker: WorkerId) -> None:
    """Show one worker and the jobs that it holds."""
    worker_id = uuid_of(worker, "worker")
    session.one(SHAPE, session.get(f"/api/workers/{worker_id}"))
    if session.out.for_people:
        session.out.console.print()
        session.rows(job_shapes.SHAPE, session.listed("/api/jobs", most=50, worker_id=worker_id))


@verb(app, "quiet")
def quiet_command(
    session: Session,
    workers: Annotated[list[str], typer.Argument(help="Worker ids.", metavar="ID...", show_default=False)],
    reason: Reason,
    undo: Annotated[bool, typer.Option("--undo", help="Let the workers claim jobs again.")] = False,
) -> None:
    """Make workers claim no more jobs, for example before a node is removed. Held jobs finish. A restart undoes it."""
    changed = [
        session.act("POST", f"/api/workers/{worker_id}/quiet", {"reason": reason, "quiet": not undo})
        for worker_id in [uuid_of(worker, "worker") for worker in workers]
    ]
    session.rows(SHAPE, changed)
    session.out.hint(f"holdfast worker show {changed[0]['id']}")
