"""`holdfast audit list`"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.toolkit.cli.output import Column, Kind, Shape
from holdfast.toolkit.cli.verb import All, Limit, Session, Since, verb
from holdfast.toolkit.cli.waiting import Every, Watch, watch_rows

app = typer.Typer(help="The audit log: who did what, when and why.", no_args_is_help=True)

SHAPE = Shape(
    "audit",
    [
        Column("AT", "at", Kind.TIME),
        Column("ACTOR", "actor"),
        Column("ACTION", "action"),
        Column("OBJECT", "object"),
        Column("OUTCOME", "outcome", Kind.WORD),
        Column("REASON", "reason", long=True),
        Column("ID", "id", wide=True),
        Column("METHOD", "method", wide=True),
        Column("ROLE", "role", wide=True),
        Column("CLIENT", "client", wide=True),
        Column("REQUEST", "request_id", wide=True),
        Column("DETAIL", "detail", wide=True),
    ],
    empty="The audit log has no matching entries.",
)


@app.callback()
def _audit() -> None:
    """The audit log: who did what, when and why."""


@verb(app, "list")
def list_command(
    session: Session,
    actor: Annotated[str | None, typer.Option(help="Only actions of this actor, such as token:ada.")] = None,
    action: Annotated[str | None, typer.Option(help="Only this action, such as jobs.cancel.")] = None,
    object: Annotated[str | None, typer.Option(help="Only actions on this object, such as job/7.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Only this outcome: done or denied.")] = None,
    since: Since = None,
    limit: Limit = 50,
    all: All = False,
    watch: Watch = False,
    interval: Every = 2.0,
) -> None:
    """List actions and denied attempts, newest first."""
    filters = {"actor": actor, "action": action, "object": object, "outcome": outcome}

    def fetch() -> list[dict[str, Any]]:
        return session.since("/api/audit", since, "at", most=None if all else limit, **filters)

    if watch:
        watch_rows(session, SHAPE, fetch, interval)
    session.rows(SHAPE, fetch())
