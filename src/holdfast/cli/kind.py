"""`holdfast kind list | show`"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from holdfast.toolkit.cli.output import Column, Kind, Row, Shape
from holdfast.toolkit.cli.verb import Session, verb
from holdfast.toolkit.cli.waiting import Every, Watch, watch_rows

app = typer.Typer(help="Kinds of jobs: their options and their workers.", no_args_is_help=True)


def control_of(kind: Row) -> str | None:
    """Whether operators paused or drained a kind. Pure."""
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
    empty="No kinds: no worker has published one, no job waits, and none is paused or drained.",
)


def declared(name: str) -> Any:
    """One field of the declaration of a kind. Pure."""
    return lambda kind: kind["declaration"].get(name)


def key_of(name: str) -> Any:
    """The same for a key, which may be a function. Pure."""

    def shown(kind: Row) -> Any:
        said = kind["declaration"].get(name)
        return "a function in the worker; pass the key when you enqueue" if isinstance(said, dict) else said

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
    """Kinds of jobs: their options and their workers."""


@verb(app, "list")
def list_command(session: Session, watch: Watch = False, interval: Every = 2.0) -> None:
    """List kinds that a worker can run or has published, that have waiting jobs, or that are paused or drained."""
    if watch:
        watch_rows(session, SHAPE, lambda: session.get("/api/kinds"), interval)
    session.rows(SHAPE, session.get("/api/kinds"))


@verb(app, "show")
def show_command(
    session: Session, kind: Annotated[str, typer.Argument(help="The kind.", metavar="KIND", show_default=False)]
) -> None:
    """Show the options, keys and arguments that a kind declares."""
    found = session.get(f"/api/kinds/{quote(kind, safe='')}")
    session.one(CARD, found)
    if session.out.for_people:
        session.out.console.print()
        session.rows(VERSIONS, found["versions"])
