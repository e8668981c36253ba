"""`holdfast schema browse | search | refresh | stats`"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.errors import UsageError
from holdfast.toolkit.cli.output import Column, Kind, Row, Shape
from holdfast.toolkit.cli.verb import Reason, Session, verb

app = typer.Typer(help="Schema cache: browse and search the engines' catalogs.", no_args_is_help=True)


def path_of(entry: Row) -> str:
    """The full name of an entry. Pure."""
    return ".".join(part for part in (entry["catalog"], entry["schema"], entry["table"], entry["column"]) if part)


SHAPE = Shape(
    "entry",
    [
        Column("NAME", path_of),
        Column("ENTITY", "entity"),
        Column("TYPE", "type"),
        Column("REFRESHED", "refreshed_at", Kind.TIME),
        Column("ENGINE", "engine", wide=True),
        Column("POSITION", "position", Kind.NUMBER, wide=True),
    ],
    key="catalog",
    empty="No entries; `holdfast schema stats` shows the last refresh of each catalog.",
)
CATALOGS = Shape(
    "catalog",
    [
        Column("CATALOG", "catalog"),
        Column("ENGINE", "engine"),
        Column("REFRESHED", "refreshed_at", Kind.TIME),
        Column("ATTEMPTED", "tried_at", Kind.TIME),
        Column("STATE", lambda one: "stale" if one["is_stale"] else "ok", Kind.WORD),
        Column("ERROR", "error", long=True),
    ],
    key="catalog",
    empty="No catalog has been read yet; run: holdfast schema refresh --reason first",
)


@verb(app, "browse")
def browse_command(
    session: Session,
    path: Annotated[str, typer.Argument(help="catalog[.schema[.table]]; default: list the catalogs.", metavar="PATH")] = "",
) -> None:
    """List catalogs, the schemas of one, the tables of a schema, or the columns of a table."""
    parts = [part for part in path.split(".") if part]
    if len(parts) > 3:
        raise UsageError(f"{path!r} has too many parts; write catalog.schema.table")
    nouns = ("catalogs", "schemas", "tables", "columns")
    steps = "".join(f"{noun}/{part}/" for noun, part in zip(nouns, parts, strict=False))
    session.rows(SHAPE, session.get(f"/api/schema/{steps}{nouns[len(parts)]}"))


@verb(app, "search")
def search_command(
    session: Session,
    prefix: Annotated[str, typer.Argument(help="Beginning of the name.", metavar="PREFIX", show_default=False)],
    columns: Annotated[bool, typer.Option("--columns", help="Search columns instead of tables.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Show at most this many.")] = 100,
) -> None:
    """Find tables or columns in all catalogs by the beginning of their name."""
    session.rows(SHAPE, session.get(f"/api/schema/search/{'columns' if columns else 'tables'}", q=prefix, limit=limit))


@verb(app, "refresh")
def refresh_command(session: Session, reason: Reason) -> None:
    """Refresh the schema cache in the background."""
    started = session.act("POST", "/api/schema/admin/refresh", {"reason": reason})
    session.out.say(f"Refresh requested at {started['triggered_at']}; see: holdfast periodic list")


@verb(app, "stats")
def stats_command(session: Session) -> None:
    """Show how many entries are cached, and the last refresh of each catalog."""
    found = session.get("/api/schema/stats")
    known = ", ".join(f"{count} {entity}s" for entity, count in found["entries"].items())
    session.out.say(known)
    session.rows(CATALOGS, found["catalogs"])
