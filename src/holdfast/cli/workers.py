"""`holdfast worker list | show | quiet`, beside `holdfast worker run | remote`"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli import job, remote_worker
from holdfast.cli.modules import RunsModules
from holdfast.cli.output import Column, Kind, Row, Shape
from holdfast.cli.verb import All, Limit, Reason, Session, verb
from holdfast.cli.waiting import Every, Watch, watch_rows
from holdfast.cli.worker import app

app.command("remote", cls=RunsModules)(remote_worker.command)
WorkerId = Annotated[str, typer.Argument(help="The worker's id.", metavar="ID", show_default=False)]


def state_of(worker: Row) -> str:
    """In a word: alive, alive and told to claim no more, stopped as it should, or silent. Pure."""
    if worker["alive"]:
        return "quiet" if worker["quiet_at"] else "alive"
    return "stopped" if worker["stopped_at"] else "silent"


SHAPE = Shape(
    "worker",
    [
        Column("ID", "id"),
        Column("NAME", "name"),
        Column("STATE", state_of, Kind.WORD),
        Column("HOLDS", "holds", Kind.NUMBER),
        Column("BEAT", "beat_at", Kind.TIME),
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
    alive: Annotated[bool, typer.Option("--alive", help="Only those whose lease runs.")] = False,
    limit: Limit = 50,
    all: All = False,
    watch: Watch = False,
    interval: Every = 2.0,
) -> None:
    """List workers: who is alive, what each can run, and how many jobs it holds."""

    def look() -> list[dict[str, Any]]:
        return session.listed("/api/workers", most=None if all else limit, alive=alive)

    if watch:
        watch_rows(session, SHAPE, look, interval)
    session.rows(SHAPE, look())


@verb(app, "show")
def show_command(session: Session, worker: WorkerId) -> None:
    """Show one worker and the jobs that it holds."""
    worker_id = worker.removeprefix("worker/")
    session.one(SHAPE, session.get(f"/api/workers/{worker_id}"))
    if session.out.for_people:
        session.out.console.print()
        session.rows(job.SHAPE, session.listed("/api/jobs", most=50, worker_id=worker_id))


@verb(app, "quiet")
def quiet_command(
    session: Session,
    workers: Annotated[list[str], typer.Argument(help="Ids of workers.", metavar="ID...", show_default=False)],
    reason: Reason,
    undo: Annotated[bool, typer.Option("--undo", help="Let them claim again.")] = False,
) -> None:
    """Have workers claim no more, before a node goes: what they hold comes to its end. A restart undoes it."""
    told = [
        session.act("POST", f"/api/workers/{worker.removeprefix('worker/')}/quiet", {"reason": reason, "quiet": not undo})
        for worker in workers
    ]
    session.rows(SHAPE, told)
    session.out.hint(f"holdfast worker show {told[0]['id']}")
