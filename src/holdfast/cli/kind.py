"""`holdfast kind list | show`"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from holdfast.cli.output import Column, Kind, Row, Shape
from holdfast.cli.verb import Session, verb
from holdfast.cli.waiting import Every, Watch, watch_rows

app = typer.Typer(help="Kinds of jobs: who can run them, and what waits.", no_args_is_help=True)


def control_of(kind: Row) -> str | None:
    """What operators have said about a kind, in a word or two. Pure."""
    said = [word for word in ("paused", "drained") if kind[word]]
    return " and ".join(said) or None


SHAPE = Shape(
    "kind",
    [
        Column("KIND", "kind"),
        Column("WORKERS", "workers", Kind.NUMBER),
        Column("WAITING", "waiting", Kind.NUMBER),
        Column("VERSION", "version", Kind.NUMBER),
        Column("CONTROL", control_of, Kind.WORD),
        Column("BY", "actor"),
        Column("REASON", "reason", long=True),
        Column("PUBLIC", "public", wide=True),
    ],
    key="kind",
    empty="No worker has published a kind, nothing waits, and nothing is paused.",
)


def declared(name: str) -> Any:
    """One field of the declaration of a kind. Pure."""
    return lambda kind: kind["declaration"].get(name)


def key_of(name: str) -> Any:
    """The same for a key, which a function may make. Pure."""

    def shown(kind: Row) -> Any:
        said = kind["declaration"].get(name)
        return "a function of its worker; give it with the request" if isinstance(said, dict) else said

    return shown


CARD = Shape(
    "kind",
    [
        Column("KIND", "kind"),
        Column("VERSION", "version", Kind.NUMBER),
        Column("PUBLIC", declared("public")),
        Column("QUEUE", declared("queue")),
        Column("PRIORITY", declared("priority"), Kind.NUMBER),
        Column("MAX ATTEMPTS", declared("max_attempts"), Kind.NUMBER),
        Column("MAX CRASHES", declared("max_crashes"), Kind.NUMBER),
        Column("MAX RUNTIME", declared("max_runtime_seconds"), Kind.SECONDS),
        Column("LOCKS", key_of("locks")),
        Column("SLOT", key_of("slot")),
        Column("UNIQUE", key_of("unique")),
        Column("ARGUMENTS", declared("arguments")),
    ],
    key="kind",
)

VERSIONS = Shape(
    "version",
    [
        Column("VERSION", "version", Kind.NUMBER),
        Column("WORKERS", "workers", Kind.NUMBER),
        Column("PUBLISHED", "published_at", Kind.TIME),
        Column("BY", "published_by"),
        Column("DIGEST", lambda version: version["digest"][:12]),
        Column("REPLACED", "replaced_at", Kind.TIME),
    ],
    key="version",
)


@app.callback()
def _kinds() -> None:
    """Kinds of jobs: who can run them, and what waits."""


@verb(app, "list")
def list_command(session: Session, watch: Watch = False, interval: Every = 2.0) -> None:
    """List the kinds that a worker can run or has published, that wait, or that are paused or drained."""
    if watch:
        watch_rows(session, SHAPE, lambda: session.get("/api/kinds"), interval)
    session.rows(SHAPE, session.get("/api/kinds"))


@verb(app, "show")
def show_command(
    session: Session, kind: Annotated[str, typer.Argument(help="The kind.", metavar="KIND", show_default=False)]
) -> None:
    """Show what a kind declares: its options, its keys and the schema of its arguments."""
    found = session.get(f"/api/kinds/{quote(kind, safe='')}")
    session.one(CARD, found)
    if session.out.for_people:
        session.out.console.print()
        session.rows(VERSIONS, found["versions"])
