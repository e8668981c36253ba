"""`holdfast db url | migrate | status | sql | roles`"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast import catalog
from holdfast.apps.database import database
from holdfast.apps.migrate import bring_up_to_date
from holdfast.crashpoints import arm_from_settings
from holdfast.database import migrate, roles
from holdfast.database.running import running_url
from holdfast.errors import UsageError
from holdfast.settings import Settings, settings
from holdfast.toolkit.cli.output import Column, NoClock, Shape
from holdfast.toolkit.cli.verb import Session, verb

app = typer.Typer(help="The database: address, schema, migrations.", no_args_is_help=True)

STATUS = Shape(
    "schema",
    [
        Column("CURRENT", lambda found: found["current"] or "none"),
        Column("WANTED", "wanted"),
        Column("PENDING", lambda found: ", ".join(found["pending"]) or "none"),
    ],
    key="wanted",
)


@verb(app, "url")
def url_command(
    session: Session,
    export: Annotated[
        bool, typer.Option("--export", help="Print a shell command that sets HOLDFAST_DATABASE_URL, for `eval`.")
    ] = False,
) -> None:
    """Print the address of the database with its password: the configured one, or the running embedded one.

    In a shell: eval "$(holdfast db url --export)"
    """
    given = _settings(session)
    address = given.database_url or running_url(given.data_dir)
    if export:
        typer.echo(f"export HOLDFAST_DATABASE_URL={shlex.quote(address)}")
    else:
        session.out.value("url", address)


@verb(app, "migrate")
def migrate_command(
    session: Session,
    revision: Annotated[str, typer.Argument(help="`head`, `base`, or a revision; an older one downgrades.")] = "head",
    to: Annotated[str | None, typer.Option("--to", help="The same as the argument.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")] = False,
) -> None:
    """Upgrade the schema to the newest revision, or to a given one."""
    arm_from_settings(settings().crash_at)
    revision = to or revision
    with database(_settings(session), Console(stderr=True)) as address:
        session.out.value("migrated", migrate.would(address, revision) if dry_run else bring_up_to_date(address, revision))


@verb(app, "status")
def status_command(session: Session) -> None:
    """Show the revision of the schema and the pending migrations. Exits with 1 unless the schema is current."""
    with database(_settings(session), Console(stderr=True)) as address:
        found = migrate.status(address)
    if session.out.is_default:
        pending = ", ".join(found.pending) or "none"
        typer.echo(f"current  {found.current or 'none'}\nwanted   {found.wanted}\npending  {pending}")
        raise typer.Exit(0 if found.is_current else 1)
    session.out.one(STATUS, {"current": found.current, "wanted": found.wanted, "pending": list(found.pending)}, NoClock())
    raise typer.Exit(0 if found.is_current else 1)


@verb(app, "sql")
def sql_command(session: Session, revision: Annotated[str, typer.Argument(help="Up to this revision.")] = "head") -> None:
    """Print the SQL of the migrations instead of running it."""
    if session.out.for_people or session.out.format == "tsv":
        typer.echo(migrate.sql(revision))
    else:
        session.out.value("sql", migrate.sql(revision))


@verb(app, "roles")
def roles_command(
    session: Session,
    prefix: Annotated[
        str, typer.Option("--prefix", help="The roles are PREFIX_api, _worker, _autoscaler, _reader.")
    ] = "holdfast",
    apply: Annotated[bool, typer.Option("--apply", help="Run the statements instead of printing them.")] = False,
    passwords: Annotated[
        Path | None,
        typer.Option(
            "--passwords",
            help="With --apply: a folder with a file per role (api, worker, …) that has its password.",
            exists=True,
        ),
    ] = None,
) -> None:
    """Print the SQL for database roles with the fewest rights for each program, or run it. Run it after each migration."""
    if passwords is not None and not apply:
        raise UsageError("--passwords needs --apply; the printed statements have no passwords")
    if not apply:
        lines = [*roles.statements(prefix, catalog.tables()), roles.STATISTICS.format(f"{prefix}_api")]
        session.out.value("sql", ";\n".join(lines) + ";")
        return
    given = {file.name: file.read_text().rstrip("\n") for file in _files(passwords)}
    with database(_settings(session), Console(stderr=True)) as address:
        missing = roles.apply(address, prefix, catalog.tables(), given)
    session.out.value("roles", ", ".join(f"{prefix}_{role}" for role in roles.ROLES))
    for statement in missing:
        session.out.say(f"Not permitted; run it as a superuser, or sessions of other roles are not measured: {statement}")


def _files(folder: Path | None) -> list[Path]:
    return [] if folder is None else sorted(file for file in folder.iterdir() if file.is_file() and file.name in roles.ROLES)


def _settings(session: Session) -> Settings:
    if session.url is not None:
        raise UsageError("`holdfast db` works on a database, not on an API: pass --dsn")
    return settings().model_copy(update={"database_url": session.dsn}) if session.dsn else settings()
