"""`holdfast drain | undrain | pause | resume`"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from holdfast.cli import kind as kinds
from holdfast.errors import UsageError
from holdfast.toolkit.cli.output import Column, Shape
from holdfast.toolkit.cli.verb import Reason, Session, Yes, verb

drain, undrain, pause, resume = (typer.Typer() for _ in range(4))

OneKind = Annotated[str, typer.Argument(help="The kind.", metavar="KIND", show_default=False)]
MaybeKind = Annotated[
    str | None,
    typer.Argument(help="A kind, or `status`, `on` or `off`; default: all kinds.", metavar="[KIND]", show_default=False),
]

MaybeReason = Annotated[str | None, typer.Option("--reason", help="Why; recorded in the audit log.", show_default=False)]
AllowUnknown = Annotated[bool, typer.Option("--allow-unknown", help="Accept a kind that no worker has published.")]
DRAIN = Shape(
    "drain",
    [Column("DRAINING", "enabled"), Column("REASON", "reason"), Column("BY", "actor")],
    key="enabled",
)


@verb(drain)
def drain_command(
    session: Session,
    kind: MaybeKind = None,
    reason: MaybeReason = None,
    allow_unknown: AllowUnknown = False,
    yes: Yes = False,
) -> None:
    """Refuse new jobs, of one kind or of all kinds. Jobs already queued still run.

    `drain status` shows the current state; `drain on` and `drain off` are the same as `drain` and `undrain`.
    """
    if kind == "status":
        session.one(DRAIN, session.get("/api/ops/drain"))
        return
    if reason is None:
        raise UsageError("--reason is required; it is recorded in the audit log")
    if kind == "off":
        undrain_command(session, reason)
        return
    if kind not in (None, "on"):
        _control(session, "drain", str(kind), reason, allow_unknown=allow_unknown)
        return
    session.confirm("Refuse all new jobs?", yes)
    _drain(session, True, reason, "New jobs are refused until `holdfast undrain`; jobs already queued still run.")


@verb(undrain)
def undrain_command(session: Session, reason: Reason) -> None:
    """Accept new jobs again. For one kind: `holdfast resume KIND`."""
    _drain(session, False, reason, "New jobs are accepted again.")


@verb(pause)
def pause_command(session: Session, kind: OneKind, reason: Reason, allow_unknown: AllowUnknown = False) -> None:
    """Start no more jobs of a kind until it is resumed; running jobs continue."""
    _control(session, "pause", kind, reason, allow_unknown=allow_unknown)


@verb(resume)
def resume_command(session: Session, kind: OneKind, reason: Reason) -> None:
    """Undo pause and drain of a kind."""
    _control(session, "resume", kind, reason)


def _control(session: Session, act: str, kind: str, reason: str, *, allow_unknown: bool = False) -> None:
    """Pause, drain or resume a kind, and show its new state."""
    body = {"reason": reason, **({"allow_unknown_kind": True} if allow_unknown else {})}
    answer = session.act("POST", f"/api/job-kinds/{quote(kind, safe='')}/{act}", body)
    if not answer["changed"]:
        session.out.say(f"{kind} was neither paused nor drained.")
    session.rows(kinds.SHAPE, [one for one in session.get("/api/job-kinds") if one["kind"] == kind])


def _drain(session: Session, enabled: bool, reason: str, sentence: str) -> None:
    """Refuse all new jobs, or accept them again."""
    answer = session.act("PUT", "/api/ops/drain", {"enabled": enabled, "reason": reason})
    session.out.value("draining", sentence if session.out.for_people else answer["enabled"])
