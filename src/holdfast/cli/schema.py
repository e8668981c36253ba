"""`holdfast schema browse | search | refresh | stats`"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.output import Column, Kind, Row, Shape
from holdfast.cli.verb import Reason, Session, verb
from holdfast.errors import UsageError

app = typer.Typer(help="What the engines' catalogs hold: browse and search.", no_args_is_help=True)


def path_of(entry: Row) -> str:
    """The whole name of an entry. Pure."""
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
    empty="Nothing is known; `holdfast schema stats` says how the last refresh went.",
)
CATALOGS = Shape(
    "catalog",
    [
        Column("CATALOG", "catalog"),
        Column("ENGINE", "engine"),
        Column("REFRESHED", "refreshed_at", Kind.TIME),
        Column("TRIED", "tried_at", Kind.TIME),
        Column("STATE", lambda one: "stale" if one["is_stale"] else "ok", Kind.WORD),
        Column("ERROR", "error", long=True),
    ],
    key="catalog",
    empty="No catalog was read yet; `holdfast schema refresh --reason first`.",
)


@verb(app, "browse")
def browse_command(
    session: Session,
    path: Annotated[str, typer.Argument(help="Nothing, or catalog[.schema[.table]].", metavar="PATH")] = "",
) -> None:
    """List catalogs, the schemas of one, the tables of a schema, or the columns of a table."""
    parts = [part for part in path.split(".") if part]
    if len(parts) > 3:
        raise UsageError(f"{path} has too many parts; it is catalog.schema.table")
    nouns = ("catalogs", "schemas", "tables", "columns")
    steps = "".join(f"{noun}/{part}/" for noun, part in zip(nouns, parts, strict=False))
    session.rows(SHAPE, session.get(f"/api/schema/{steps}{nouns[len(parts)]}"))


@verb(app, "search")
def search_command(
    session: Session,
    prefix: Annotated[str, typer.Argument(help="How the name begins.", metavar="PREFIX", show_default=False)],
    columns: Annotated[bool, typer.Option("--columns", help="Look for columns and not for tables.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="At most so many.")] = 100,
) -> None:
    """Find tables or columns by the beginning of their name, in every catalog."""
    session.rows(SHAPE, session.get(f"/api/schema/search/{'columns' if columns else 'tables'}", q=prefix, limit=limit))


@verb(app, "refresh")
def refresh_command(session: Session, reason: Reason) -> None:
    """Have the catalogs read anew, in the background."""
    asked = session.act("POST", "/api/schema/admin/refresh", {"reason": reason})
    session.out.say(f"Asked for at {asked['triggered_at']}: holdfast periodic list")


@verb(app, "stats")
def stats_command(session: Session) -> None:
    """Say how much is known, and how the last refresh of each catalog went."""
    found = session.get("/api/schema/stats")
    known = ", ".join(f"{count} {entity}s" for entity, count in found["entries"].items())
    session.out.say(known)
    session.rows(CATALOGS, found["catalogs"])
