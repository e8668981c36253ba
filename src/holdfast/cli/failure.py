"""`holdfast failure list | show | retry`"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli.traceback import print_traceback
from holdfast.errors import UsageError
from holdfast.telemetry.error_text import one_line
from holdfast.toolkit.cli.bulk import act_in_bulk
from holdfast.toolkit.cli.output import Column, Kind, Shape
from holdfast.toolkit.cli.verb import Limit, Reason, Session, Since, Yes, verb
from holdfast.toolkit.cli.waiting import Every, Watch, watch_rows

app = typer.Typer(help="Failed jobs, grouped by their error.", no_args_is_help=True)

Fingerprint = Annotated[str, typer.Argument(help="The group, as `failure list` shows it.", show_default=False)]

SHAPE = Shape(
    "failure",
    [
        Column("FINGERPRINT", "fingerprint"),
        Column("KIND", "kind"),
        Column("JOBS", "jobs", Kind.NUMBER),
        Column("LAST", "last_at", Kind.TIME),
        Column("CAUSE", "cause"),
        Column("ERROR", lambda failure: one_line(failure["error"]), long=True),
        Column("FIRST", "first_at", Kind.TIME, wide=True),
        Column("NEWEST", lambda failure: ", ".join(map(str, failure["newest"])), wide=True),
    ],
    key="fingerprint",
    empty="No failed jobs.",
)


HEX = frozenset("0123456789abcdef")


def fingerprint_of(text: str) -> str:
    """The fingerprint of a group: 16 hexadecimal digits. Pure."""
    if len(text) != 16 or not HEX.issuperset(text):
        raise UsageError(f"{text!r} is not a fingerprint; `holdfast failure list` shows them")
    return text


@verb(app, "list")
def list_command(session: Session, since: Since = None, limit: Limit = 50, watch: Watch = False, interval: Every = 2.0) -> None:
    """List groups of failed jobs, newest first."""

    def fetch() -> list[dict[str, Any]]:
        return session.since("/api/failures", since, "last_at", most=min(limit, 200))

    if watch:
        watch_rows(session, SHAPE, fetch, interval)
    found = fetch()
    session.rows(SHAPE, found)
    if found:
        session.out.hint(f"holdfast failure show {found[0]['fingerprint']}")


@verb(app, "show")
def show_command(session: Session, fingerprint: Fingerprint) -> None:
    """Show one failure group, its latest jobs, and the traceback of the newest."""
    found = session.get(f"/api/failures/{fingerprint_of(fingerprint)}")
    session.one(SHAPE, found)
    if session.out.for_people:
        print_traceback(session, found)
    session.out.hint(f"holdfast job show {found['newest'][0]}, or: holdfast failure retry {fingerprint} --reason …")


@verb(app, "retry")
def retry_command(
    session: Session,
    fingerprint: Fingerprint,
    reason: Reason,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be retried, and change nothing.")] = False,
    yes: Yes = False,
) -> None:
    """Retry all jobs of a failure group."""
    act_in_bulk(
        session, f"/api/failures/{fingerprint_of(fingerprint)}/retry", {"reason": reason}, "retry", dry_run=dry_run, yes=yes
    )
