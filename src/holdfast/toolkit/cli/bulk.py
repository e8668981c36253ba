"""One action on many jobs: a dry run shows what would change first, and no more than that is changed."""

from __future__ import annotations

from typing import Any

import typer

from holdfast.toolkit.cli.exit_codes import Exit
from holdfast.toolkit.cli.output import Column, Kind, Row, Shape
from holdfast.toolkit.cli.times import counted
from holdfast.toolkit.cli.verb import Session
from holdfast.toolkit.cli.waiting import wait_for

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
        Column("EXAMPLES", lambda seen: ", ".join(str(job["id"]) for job in seen["sample"])),
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
    """Dry run, confirm, act, wait. Exits with 8 if some of the jobs could not be changed."""
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
    """What an action would change, in one sentence. Pure."""
    if not seen["matched"]:
        return f"No job matches; there is nothing to {action}."
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(seen["by_kind"].items(), key=lambda pair: -pair[1]))
    sample = ", ".join(str(job["id"]) for job in seen["sample"])
    return f"This would {action} {counted(seen['matched'], 'job')} ({kinds}), such as {sample}."


def finished(session: Session, operation: Row) -> Any:
    """The operation when it has ended. Without a server this process runs it."""
    session.transport.run_control_jobs()
    wait_for(session, [operation["id"]], None)
    return session.get(f"/api/operations/{operation['id']}")
