"""One act on many jobs: what it would touch is looked at and shown first, and no more than that is touched."""

from __future__ import annotations

from typing import Any

import typer

from holdfast.cli.exits import Exit
from holdfast.cli.output import Column, Kind, Row, Shape
from holdfast.cli.times import counted
from holdfast.cli.verb import Session
from holdfast.cli.waiting import wait_for

OPERATION = Shape(
    "operation",
    [
        Column("ID", "id"),
        Column("ACTION", "action"),
        Column("STATE", "state", Kind.WORD),
        Column("MATCHED", "matched", Kind.NUMBER),
        Column("DONE", "done", Kind.NUMBER),
        Column("FAILED", "failed", Kind.NUMBER),
        Column("FAILURES", lambda operation: [f"job {one['job_id']}: {one['why']}" for one in operation["failures"]] or None),
    ],
)
MATCH = Shape(
    "match",
    [
        Column("MATCHED", "matched", Kind.NUMBER),
        Column("KINDS", lambda seen: ", ".join(f"{kind} {count:,}" for kind, count in seen["by_kind"].items())),
        Column("SUCH AS", lambda seen: ", ".join(str(job["id"]) for job in seen["sample"])),
    ],
    key="matched",
)


def act_in_bulk(
    session: Session,
    path: str,
    body: dict[str, Any],
    action: str,
    *,
    dry_run: bool,
    yes: bool,
    expect: int | None = None,
    wait: bool = True,
) -> None:
    """Look, ask, act, wait. Exits 8 when some of the jobs could not be moved."""
    seen = session.act("POST", path, {**body, "dry_run": True})
    if dry_run:
        session.one(MATCH, seen)
        return
    session.out.say(impact(action, seen))
    if not seen["matched"]:
        return
    session.confirm(f"{action.capitalize()} {counted(seen['matched'], 'job')}?", yes or expect is not None)
    expected = seen["matched"] if expect is None else expect
    operation = session.act("POST", path, {**body, "dry_run": False, "expected_count": expected})
    if wait:
        operation = finished(session, operation)
    session.one(OPERATION, operation)
    if operation["failed"]:
        raise typer.Exit(Exit.PARTIAL)
    if operation["state"] in ("failed", "cancelled"):
        raise typer.Exit(Exit.FAILED)


def impact(action: str, seen: Row) -> str:
    """What an act would touch, in one sentence. Pure."""
    if not seen["matched"]:
        return f"There is no job to {action} that fits."
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(seen["by_kind"].items(), key=lambda pair: -pair[1]))
    sample = ", ".join(str(job["id"]) for job in seen["sample"])
    return f"This {action} would touch {counted(seen['matched'], 'job')} ({kinds}), such as {sample}."


def finished(session: Session, operation: Row) -> Any:
    """The operation when it has ended. Without a server nobody else would do it: then it is done here."""
    session.way.do_own_jobs()
    wait_for(session, [operation["id"]], None)
    return session.get(f"/api/operations/{operation['id']}")
