"""`holdfast snapshot create | list | show | watch | cancel | retry | delete`"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.services.exports.cli.mapping import EngineRole, id_of
from holdfast.toolkit.cli.arguments import number_of
from holdfast.toolkit.cli.exit_codes import Exit
from holdfast.toolkit.cli.output import Column, Kind, Row, Shape
from holdfast.toolkit.cli.verb import All, Limit, OptionalReason, Session, Yes, verb
from holdfast.toolkit.cli.waiting import Every, Timeout, Wait, Watch, end_with_code, follow

app = typer.Typer(help="Snapshots: one run of a mapping, as Parquet files.", no_args_is_help=True)

SnapshotId = Annotated[str, typer.Argument(help="The snapshot's id.", metavar="ID", show_default=False)]
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
    empty="No snapshots. Create one: holdfast snapshot create MAPPING",
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


def note_of(export: Row) -> str | None:
    """The error of an export, its place in the queue, or its progress message. Pure."""
    if export["error_message"]:
        return str(export["error_message"])
    if export["queue_position"]:
        return f"number {export['queue_position']} in the queue"
    note: str | None = export["message"] or export["starburst_query_id"]
    return note


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
        Column("NOTE", note_of, long=True),
    ],
)


@verb(app, "create")
def create_command(
    session: Session,
    mapping: Annotated[str, typer.Argument(help="The mapping's id or name.", metavar="MAPPING", show_default=False)],
    version: Annotated[int | None, typer.Option("--version", help="Version of the mapping; default: the current one.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the snapshot.")] = None,
    runtime: Annotated[str | None, typer.Option("--runtime", help="How to export: auto, direct, unload or ctas.")] = None,
    role: EngineRole = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: repeating the call returns the same snapshot.")
    ] = None,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Create a snapshot: one export job for each node and edge, run by workers."""
    body = {"mapping_id": id_of(session, mapping), "mapping_version": version, "name": name, "runtime": runtime}
    made = session.act("POST", "/api/snapshots", body, key=key, role=role)
    number = made["snapshot"]["id"]
    if wait:
        _follow(session, number, timeout, 1.0)
        return
    session.one(CARD, flat(made))
    session.out.hint(f"holdfast snapshot watch {number}")


@verb(app, "list")
def list_command(
    session: Session,
    status: Annotated[
        str | None, typer.Option("--status", help="Only this status: pending, creating, ready, failed or cancelled.")
    ] = None,
    limit: Limit = 50,
    all: All = False,
) -> None:
    """List snapshots, newest first."""
    session.rows(SHAPE, session.listed("/api/snapshots", most=None if all else limit, status=status))


@verb(app, "show")
def show_command(session: Session, snapshot: SnapshotId, watch: Watch = False, interval: Every = 1.0) -> None:
    """Show a snapshot and its exports: rows, bytes, progress, place in the queue."""
    if watch:
        _follow(session, _id(snapshot), None, interval)
        return
    _show(session, _fetch(session, _id(snapshot)))


@verb(app, "watch")
def watch_command(session: Session, snapshot: SnapshotId, timeout: Timeout = None, interval: Every = 1.0) -> None:
    """Show a snapshot until it has ended. Exit code: 0 ready, 1 failed, 9 cancelled, 124 timeout."""
    _follow(session, _id(snapshot), timeout, interval)


@verb(app, "cancel")
def cancel_command(session: Session, snapshot: SnapshotId, reason: OptionalReason = None, yes: Yes = False) -> None:
    """Cancel a snapshot: waiting exports are cancelled, running ones are asked to stop."""
    session.confirm(f"Cancel snapshot {_id(snapshot)}?", yes)
    _show(session, session.act("POST", f"/api/snapshots/{_id(snapshot)}/cancel", {"reason": reason}))


@verb(app, "retry")
def retry_command(session: Session, snapshot: SnapshotId, reason: OptionalReason = None) -> None:
    """Retry the failed and cancelled exports of a snapshot."""
    _show(session, session.act("POST", f"/api/snapshots/{_id(snapshot)}/retry", {"reason": reason}))


@verb(app, "delete")
def delete_command(session: Session, snapshot: SnapshotId, yes: Yes = False) -> None:
    """Delete a snapshot that has ended. A job removes its files."""
    session.confirm(f"Delete snapshot {_id(snapshot)} and its files?", yes)
    gone = session.act("DELETE", f"/api/snapshots/{_id(snapshot)}")
    session.out.say(f"Snapshot {gone['id']} is deleted; job {gone['removal_job_id']} removes its files.")


# ---------------------------------------------------------------------------------------------------------------------
# Show and wait
# ---------------------------------------------------------------------------------------------------------------------


def flat(found: Row) -> dict[str, Any]:
    """A snapshot with its progress, in one row. Pure."""
    progress = found["progress"]
    return {**found["snapshot"], "share": progress["share"], "rows": progress["rows"], "bytes": progress["bytes"]}


def _fetch(session: Session, number: int) -> dict[str, Any]:
    found: dict[str, Any] = session.get(f"/api/snapshots/{number}")
    return found


def _screen(session: Session, found: Row) -> RenderableType:
    now = session.transport.now()
    return Group(session.out.card(CARD, flat(found), now), Text(""), session.out.table(EXPORTS, found["exports"], now))


def _show(session: Session, found: Row) -> None:
    if session.out.for_people:
        session.out.screen(_screen(session, found), found)
    else:
        session.one(CARD, {**flat(found), "exports": found["exports"]})


def _follow(session: Session, number: int, timeout: str | None, interval: float) -> None:
    """Wait until it has ended, show it, and exit with the code of its status."""

    def fetch() -> dict[str, Any]:
        found = _fetch(session, number)
        return {**found, "status": found["snapshot"]["status"]}

    found = follow(
        session, fetch, partial(_screen, session), name=f"snapshot {number}", ends=ENDS, timeout=timeout, interval=interval,
        cancel=f"holdfast snapshot cancel {number}",
    )  # fmt: skip
    _show(session, found)
    end_with_code(ENDS[found["status"]])


def _id(text: str) -> int:
    return number_of(text, "snapshot")
