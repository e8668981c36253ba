"""`holdfast drain | undrain | pause | resume`"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from holdfast.cli import kind as kinds
from holdfast.cli.output import Column, Shape
from holdfast.cli.verb import Reason, Session, Yes, verb
from holdfast.errors import UsageError

drain, undrain, pause, resume = (typer.Typer() for _ in range(4))

OneKind = Annotated[str, typer.Argument(help="The kind.", metavar="KIND", show_default=False)]
MaybeKind = Annotated[
    str | None,
    typer.Argument(help="Only this kind, or `status`, `on`, `off`; default: all.", metavar="[KIND]", show_default=False),
]


MaybeReason = Annotated[str | None, typer.Option("--reason", help="Why; it stands in the audit.", show_default=False)]
DRAIN = Shape(
    "drain",
    [Column("DRAINING", "enabled"), Column("REASON", "reason"), Column("BY", "actor")],
    key="enabled",
)


@verb(drain)
def drain_command(session: Session, kind: MaybeKind = None, reason: MaybeReason = None, yes: Yes = False) -> None:
    """Take no new jobs, of one kind or at all; what is there runs to its end.

    `drain status` shows whether that is so, `drain on` and `drain off` are the same as `drain` and `undrain`.
    """
    if kind == "status":
        session.one(DRAIN, session.get("/api/ops/drain"))
        return
    if reason is None:
        raise UsageError("why? It stands in the audit: pass --reason")
    if kind == "off":
        undrain_command(session, reason)
        return
    if kind not in (None, "on"):
        _control(session, "drain", str(kind), reason)
        return
    session.confirm("Refuse all new jobs?", yes)
    _drain(session, True, reason, "No new jobs are taken until `holdfast undrain`; what is there runs to its end.")


@verb(undrain)
def undrain_command(session: Session, reason: Reason) -> None:
    """Take new jobs again. For one kind: `holdfast resume KIND`."""
    _drain(session, False, reason, "New jobs are taken again.")


@verb(pause)
def pause_command(session: Session, kind: OneKind, reason: Reason) -> None:
    """Start no more jobs of a kind until it is resumed; what runs, runs on."""
    _control(session, "pause", kind, reason)


@verb(resume)
def resume_command(session: Session, kind: OneKind, reason: Reason) -> None:
    """Undo pause and drain of a kind."""
    _control(session, "resume", kind, reason)


def _control(session: Session, act: str, kind: str, reason: str) -> None:
    """Say something about a kind, and show what holds for it now."""
    told = session.act("POST", f"/api/job-kinds/{quote(kind, safe='')}/{act}", {"reason": reason})
    if not told["changed"]:
        session.out.say(f"{kind} was neither paused nor drained.")
    session.rows(kinds.SHAPE, [one for one in session.get("/api/job-kinds") if one["kind"] == kind])


def _drain(session: Session, enabled: bool, reason: str, sentence: str) -> None:
    """Refuse all new jobs, or take them again."""
    told = session.act("PUT", "/api/ops/drain", {"enabled": enabled, "reason": reason})
    session.out.value("draining", sentence if session.out.for_people else told["enabled"])
