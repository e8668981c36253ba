"""`holdfast snapshot create | list | show | watch | cancel | retry | delete`"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from holdfast.cli.exits import Exit, GaveUp
from holdfast.cli.mapping import UseCase, id_of
from holdfast.cli.output import Column, Kind, Row, Shape
from holdfast.cli.times import length
from holdfast.cli.verb import All, Limit, Session, Yes, verb
from holdfast.cli.waiting import Every, Timeout, Wait, Watch

app = typer.Typer(help="Snapshots: one run of a mapping, as Parquet files.", no_args_is_help=True)

SnapshotId = Annotated[str, typer.Argument(help="The snapshot's number.", metavar="ID", show_default=False)]
Why = Annotated[str | None, typer.Option("--reason", help="Why; it stands in the audit.")]
ENDS = {"ready": Exit.OK, "failed": Exit.FAILED, "cancelled": Exit.CANCELLED}

SHAPE = Shape(
    "snapshot",
    [
        Column("ID", "id"),
        Column("NAME", "name"),
        Column("STATUS", "status", Kind.WORD),
        Column("MAPPING", lambda one: f"{one['mapping_id']} v{one['mapping_version']}"),
        Column("BYTES", "size_bytes", Kind.NUMBER),
        Column("CREATED", "created_at", Kind.TIME),
        Column("ERROR", "error_message", long=True),
        Column("OWNER", "owner", wide=True),
        Column("FINISHED", "finished_at", Kind.TIME, wide=True),
        Column("EXPIRES", "expires_at", Kind.TIME, wide=True),
        Column("INACTIVE", "inactive_at", Kind.TIME, wide=True),
        Column("LOCATION", "location", wide=True),
    ],
    empty="There are no snapshots: holdfast snapshot create MAPPING",
)
CARD = Shape(
    "snapshot",
    [
        Column("SNAPSHOT", "id"),
        Column("NAME", "name"),
        Column("STATUS", "status", Kind.WORD),
        Column("DONE", "share", Kind.PERCENT),
        Column("MAPPING", lambda one: f"{one['mapping_id']} v{one['mapping_version']}"),
        Column("ROWS", "rows", Kind.NUMBER),
        Column("BYTES", "bytes", Kind.NUMBER),
        Column("ERROR", "error_message"),
        Column("LOCATION", "location"),
        Column("CREATED", "created_at", Kind.TIME),
        Column("FINISHED", "finished_at", Kind.TIME),
        Column("EXPIRES", "expires_at", Kind.TIME),
        Column("INACTIVE", "inactive_at", Kind.TIME),
    ],
)


def says(export: Row) -> str | None:
    """What there is to say about an export: its place in the queue, what the engine says, what went wrong. Pure."""
    if export["error_message"]:
        return str(export["error_message"])
    if export["queue_position"]:
        return f"number {export['queue_position']} in the queue"
    said: str | None = export["message"] or export["starburst_query_id"]
    return said


EXPORTS = Shape(
    "export",
    [
        Column("JOB", "id"),
        Column("TYPE", "job_type"),
        Column("NAME", "entity_name"),
        Column("STATUS", "status", Kind.WORD),
        Column("DONE", "progress", Kind.PERCENT),
        Column("ROWS", "row_count", Kind.NUMBER),
        Column("BYTES", "size_bytes", Kind.NUMBER),
        Column("ATTEMPTS", "attempts", Kind.NUMBER),
        Column("SAYS", says, long=True),
    ],
)


@verb(app, "create")
def create_command(
    session: Session,
    mapping: Annotated[str, typer.Argument(help="The mapping's number or name.", metavar="MAPPING", show_default=False)],
    version: Annotated[int | None, typer.Option("--version", help="Which version; default: the current one.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="What it is called.")] = None,
    runtime: Annotated[str | None, typer.Option("--runtime", help="auto, direct, unload or ctas.")] = None,
    use_case: UseCase = None,
    key: Annotated[str | None, typer.Option("--key", help="Idempotency key: the same call again gives the same one.")] = None,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Make a snapshot: one export job per node and edge, run by workers."""
    asked = {"mapping_id": id_of(session, mapping), "mapping_version": version, "name": name, "runtime": runtime}
    made = session.act("POST", "/api/snapshots", asked, key=key, use_case=use_case)
    number = made["snapshot"]["id"]
    if wait:
        _follow(session, number, timeout, 1.0)
        return
    session.one(CARD, flat(made))
    session.out.hint(f"holdfast snapshot watch {number}")


@verb(app, "list")
def list_command(
    session: Session,
    status: Annotated[str | None, typer.Option("--status", help="pending, creating, ready, failed or cancelled.")] = None,
    limit: Limit = 50,
    all: All = False,
) -> None:
    """List snapshots, newest first."""
    session.rows(SHAPE, session.listed("/api/snapshots", most=None if all else limit, status=status))


@verb(app, "show")
def show_command(session: Session, snapshot: SnapshotId, watch: Watch = False, interval: Every = 1.0) -> None:
    """Show a snapshot with its exports: rows, bytes, what the engine says, the place in the queue."""
    if watch:
        _follow(session, _id(snapshot), None, interval)
        return
    _show(session, _look(session, _id(snapshot)))


@verb(app, "watch")
def watch_command(session: Session, snapshot: SnapshotId, timeout: Timeout = None, interval: Every = 1.0) -> None:
    """Show a snapshot until it has ended; the exit code says how."""
    _follow(session, _id(snapshot), timeout, interval)


@verb(app, "cancel")
def cancel_command(session: Session, snapshot: SnapshotId, reason: Why = None, yes: Yes = False) -> None:
    """Stop a snapshot: what waits is cancelled, what runs is asked to stop."""
    session.confirm(f"Cancel snapshot {_id(snapshot)}?", yes)
    _show(session, session.act("POST", f"/api/snapshots/{_id(snapshot)}/cancel", {"reason": reason}))


@verb(app, "retry")
def retry_command(session: Session, snapshot: SnapshotId, reason: Why = None) -> None:
    """Run the exports that failed or were cancelled once more; what completed stays."""
    _show(session, session.act("POST", f"/api/snapshots/{_id(snapshot)}/retry", {"reason": reason}))


@verb(app, "delete")
def delete_command(session: Session, snapshot: SnapshotId, yes: Yes = False) -> None:
    """Delete a snapshot that has ended; its files are removed by a job."""
    session.confirm(f"Delete snapshot {_id(snapshot)} and its files?", yes)
    gone = session.act("DELETE", f"/api/snapshots/{_id(snapshot)}")
    session.out.say(f"Snapshot {gone['id']} is gone; job {gone['removal_job_id']} removes its files.")


# ---------------------------------------------------------------------------------------------------------------------
# Showing
# ---------------------------------------------------------------------------------------------------------------------


def flat(found: Row) -> dict[str, Any]:
    """A snapshot with how far it is, in one row. Pure."""
    progress = found["progress"]
    return {**found["snapshot"], "share": progress["share"], "rows": progress["rows"], "bytes": progress["bytes"]}


def _look(session: Session, number: int) -> dict[str, Any]:
    found: dict[str, Any] = session.get(f"/api/snapshots/{number}")
    return found


def _screen(session: Session, found: Row) -> RenderableType:
    now = session.way.now()
    return Group(session.out.card(CARD, flat(found), now), Text(""), session.out.table(EXPORTS, found["exports"], now))


def _show(session: Session, found: Row) -> None:
    if session.out.for_people:
        session.out.screen(_screen(session, found), found)
    else:
        session.one(CARD, {**flat(found), "exports": found["exports"]})


def _follow(session: Session, number: int, timeout: str | None, interval: float) -> None:
    """Look again and again until it has ended: a live screen on a terminal, the end alone for programs."""
    deadline = None if timeout is None else time.monotonic() + length(timeout).total_seconds()
    found = _look(session, number)
    live = session.out.is_terminal and session.out.for_people
    with Live(console=session.out.console, auto_refresh=False, transient=True) as screen:
        while found["snapshot"]["status"] not in ENDS:
            if live:
                screen.update(_screen(session, found), refresh=True)
            if deadline is not None and time.monotonic() + interval > deadline:
                raise GaveUp(f"snapshot {number} is {found['snapshot']['status']} after {timeout}; it goes on without us")
            try:
                session.way.pause(interval)
            except KeyboardInterrupt:
                session.out.say(f"Not watching any more; it goes on. To stop it: holdfast snapshot cancel {number}")
                raise
            found = _look(session, number)
    _show(session, found)
    code = ENDS[found["snapshot"]["status"]]
    if code is not Exit.OK:
        raise typer.Exit(code)


def _id(text: str) -> int:
    word = text.removeprefix("snapshot/")
    if not (word.isascii() and word.isdecimal()):  # int() takes other digits, too, and ² is none for it
        raise typer.BadParameter(f"{text} is no number of a snapshot")
    return int(word)
