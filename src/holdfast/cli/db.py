"""`holdfast db migrate | status | sql`"""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from holdfast.apps.database import database
from holdfast.apps.migrate import bring_up_to_date
from holdfast.crashpoints import arm_from_settings
from holdfast.database import migrate
from holdfast.settings import Settings, settings

app = typer.Typer(help="The schema: bring it up to date, look at it, print it.", no_args_is_help=True)
Url = Annotated[str | None, typer.Option("--url", help="Which database; default: HOLDFAST_DATABASE_URL, or the embedded one.")]


@app.command("migrate")
def migrate_command(
    revision: Annotated[str, typer.Argument(help="`head`, `base`, or a revision; an older one goes back.")] = "head",
    to: Annotated[str | None, typer.Option("--to", help="The same as the argument.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    url: Url = None,
) -> None:
    """Bring the schema to a revision, forward or back."""
    arm_from_settings(settings().crash_at)
    revision = to or revision
    with database(_with(url), Console(stderr=True)) as address:
        if dry_run:
            typer.echo(migrate.would(address, revision))
            return
        typer.echo(bring_up_to_date(address, revision))


@app.command("status")
def status_command(url: Url = None, as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False) -> None:
    """Show the revision of the schema and what is pending; exits 1 unless it is current."""
    with database(_with(url), Console(stderr=True)) as address:
        found = migrate.status(address)
    if as_json:
        typer.echo(json.dumps({"current": found.current, "wanted": found.wanted, "pending": found.pending}))
    else:
        typer.echo(
            f"current  {found.current or 'none'}\nwanted   {found.wanted}\npending  {', '.join(found.pending) or 'none'}"
        )
    raise typer.Exit(0 if found.is_current else 1)


@app.command("sql")
def sql_command(revision: Annotated[str, typer.Argument(help="Up to which revision.")] = "head") -> None:
    """Print the statements instead of running them."""
    typer.echo(migrate.sql(revision))


def _with(url: str | None) -> Settings:
    return settings().model_copy(update={"database_url": url}) if url else settings()
