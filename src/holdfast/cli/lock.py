"""`holdfast lock list | show | release`"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from holdfast.cli import job_shapes
from holdfast.errors import NotFound
from holdfast.toolkit.cli.output import Column, Kind, Row, Shape
from holdfast.toolkit.cli.verb import All, Limit, Reason, Session, Yes, verb
from holdfast.toolkit.cli.waiting import Every, Watch, watch_rows

app = typer.Typer(help="Locks: holders, waiting jobs, release.", no_args_is_help=True)

LockKey = Annotated[str, typer.Argument(help="The lock's key.", metavar="KEY", show_default=False)]


def places_of(lock: Row) -> str:
    """How many holders there are, and how many may be. Pure."""
    return f"{lock['holders']}, shared" if lock["most"] is None else f"{lock['holders']} of {lock['most']}"


SHAPE = Shape(
    "lock",
    [
        Column("KEY", "key"),
        Column("HELD", places_of),
        Column("SINCE", "taken_at", Kind.TIME),
        Column("BY JOBS", lambda lock: ", ".join(map(str, lock["jobs"]))),
        Column("WAITING", "waiting", Kind.NUMBER),
    ],
    key="key",
    empty="No lock is held.",
)


@verb(app, "list")
def list_command(session: Session, limit: Limit = 50, all: All = False, watch: Watch = False, interval: Every = 2.0) -> None:
    """List the locks that are held, by key."""
    most = None if all else limit
    if watch:
        watch_rows(session, SHAPE, lambda: session.listed("/api/locks", most=most), interval)
    session.rows(SHAPE, session.listed("/api/locks", most=most))


@verb(app, "show")
def show_command(session: Session, key: LockKey) -> None:
    """Show one lock and the jobs that hold it."""
    found = session.listed("/api/locks", most=1, key=key)
    if not found:
        raise NotFound(f"lock {key!r} is not held; `holdfast lock list` shows the held locks")
    session.one(SHAPE, found[0])
    if session.out.for_people:
        session.out.console.print()
        session.rows(job_shapes.SHAPE, [session.get(f"/api/jobs/{job_id}") for job_id in found[0]["jobs"]])


@verb(app, "release")
def release_command(session: Session, key: LockKey, reason: Reason, yes: Yes = False) -> None:
    """Release a lock whose holders have all ended. If a holder still runs, cancel that job instead."""
    session.confirm(f"Release lock {key!r}?", yes)
    answer = session.act("DELETE", f"/api/locks/{quote(key)}", reason=reason)
    session.out.say(f"Lock {key!r} is released; it was held by the ended jobs {', '.join(map(str, answer['jobs']))}.")
