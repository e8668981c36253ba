"""`holdfast table list | show | maintain | history | run | savings | policy`"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from holdfast.errors import UsageError
from holdfast.services.maintenance.cli import policy
from holdfast.services.maintenance.cli.shapes import ACTIONS, PARTS, RUN, RUNS, SAVINGS, TABLE, TABLES, full_name
from holdfast.services.maintenance.client.tables import address_of
from holdfast.toolkit.cli.arguments import number_of
from holdfast.toolkit.cli.output import Row
from holdfast.toolkit.cli.times import length
from holdfast.toolkit.cli.verb import All, Limit, OptionalReason, Session, Since, verb
from holdfast.toolkit.cli.waiting import Timeout, end_with, wait_for
from holdfast.toolkit.client.problems import ApiError

app = typer.Typer(help="Iceberg tables: health, maintenance, policies, savings.", no_args_is_help=True)
app.add_typer(policy.app, name="policy")

TableArgument = Annotated[
    str, typer.Argument(help="The table as DATABASE.TABLE; the database may have dots.", metavar="TABLE", show_default=False)
]
Catalog = Annotated[str | None, typer.Option("--catalog", help="The catalog; default: the first configured one.")]


@verb(app, "list")
def list_command(
    session: Session,
    catalog: Annotated[str | None, typer.Option("--catalog", help="Only tables of this catalog.")] = None,
    database: Annotated[str | None, typer.Option("--database", help="Only tables of this database.")] = None,
    search: Annotated[str | None, typer.Option("--search", help="Only tables with this text in their name.")] = None,
    health_below: Annotated[
        int | None, typer.Option("--health-below", min=1, max=101, help="Only tables with a lower health score.")
    ] = None,
    limit: Limit = 50,
    all: All = False,
) -> None:
    """List tables by name, with their health."""
    rows = session.listed(
        "/api/tables",
        most=None if all else limit,
        catalog=catalog,
        database=database,
        search=search,
        health_below=health_below,
    )
    session.rows(TABLES, [{**row, "full_name": full_name(row)} for row in rows])


@verb(app, "show")
def show_command(
    session: Session,
    table: TableArgument,
    catalog: Catalog = None,
    health: Annotated[bool, typer.Option("--health", help="Only the parts of the health score.")] = False,
) -> None:
    """Show a table: its figures, the parts of its health score, and what would help."""
    found = session.get(address_of(table), catalog=catalog)
    row = {**found["table"], "full_name": full_name(found["table"])}
    if health:
        session.rows(PARTS, found["parts"])
    elif session.out.for_people:
        now = session.transport.now()
        parts = session.out.table(PARTS, found["parts"], now) if found["parts"] else Text("Its health was not measured yet.")
        session.out.screen(Group(session.out.card(TABLE, row, now), Text(""), parts), found)
    else:
        session.one(TABLE, {**row, "parts": found["parts"], "would_help": found["would_help"]})
    if found["would_help"]:
        actions = dict.fromkeys(part["action"] for part in found["parts"] if part["action"])
        session.out.hint(f"holdfast table maintain {table} --actions {','.join(actions)} --dry-run")


@verb(app, "maintain")
def maintain_command(
    session: Session,
    table: TableArgument,
    actions: Annotated[
        str,
        typer.Option(
            "--actions",
            "-a",
            help="Comma separated: rewrite_data_files, rewrite_manifests, expire_snapshots, remove_orphan_files, "
            "compute_statistics. They run in this order.",
            show_default=False,
        ),
    ],
    parameter: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter, as in expire_snapshots.older_than=7d; may be repeated.")
    ] = None,
    catalog: Catalog = None,
    engine: Annotated[str | None, typer.Option("--engine", help="pyiceberg, trino or spark; default: as configured.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Plan every action, print the numbers, change nothing.")] = False,
    queue: Annotated[
        bool, typer.Option("--queue", help="If another job maintains the table, wait for it instead of failing.")
    ] = False,
    reason: OptionalReason = None,
    key: Annotated[str | None, typer.Option("--key", help="Idempotency key: repeating the call returns the same job.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended, and print the result of each action.")] = False,
    timeout: Timeout = None,
) -> None:
    """Maintain a table. With --dry-run, wait for the plan and print it."""
    body = {
        "actions": actions_of(actions, parameter or []),
        "engine": engine,
        "dry_run": dry_run or None,
        "wait": queue or None,
        "reason": reason,
    }
    try:
        made = session.act("POST", f"{address_of(table)}/maintenance", body, key=key, catalog=catalog)
    except ApiError as error:
        if not error.errors:
            raise
        for one in error.errors:
            session.out.mistake(f"{one['pointer'].removeprefix('/body/')}: {one['message']}")
        raise UsageError("the request was refused; nothing was changed") from None
    if not (wait or dry_run):
        session.one(RUN, made["run"])
        session.out.hint(f"holdfast table run {made['id']}")
        return
    (job,) = wait_for(session, [made["id"]], timeout)
    _show_run(session, session.get(f"/api/maintenance-runs/{made['id']}"))
    end_with([job])


def actions_of(names: str, parameters: list[str]) -> list[dict[str, Any]]:
    """The actions of a request from the options of the command. Pure; the API checks names and values."""
    found: dict[str, dict[str, Any]] = {name.strip(): {} for name in names.split(",") if name.strip()}
    for given in parameters:
        place, equals, value = given.partition("=")
        action, dot, name = place.partition(".")
        if not equals or not dot or not name:
            raise UsageError(f"--set {given!r} is not a parameter; use ACTION.NAME=VALUE, as in expire_snapshots.older_than=7d")
        if action not in found:
            raise UsageError(f"--set {given!r}: {action!r} is not among the --actions {names}")
        found[action][name] = _value(value)
    return [{"action": action, **given} for action, given in found.items()]


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isascii() and text.isdecimal() else text


@verb(app, "run")
def run_command(session: Session, job: Annotated[str, typer.Argument(help="The job's id.", metavar="JOB")]) -> None:
    """Show one maintenance run with the result of each action."""
    _show_run(session, session.get(f"/api/maintenance-runs/{number_of(job, 'job')}"))


@verb(app, "history")
def history_command(
    session: Session, table: TableArgument, catalog: Catalog = None, limit: Limit = 20, all: All = False
) -> None:
    """List the maintenance runs of a table, newest first."""
    rows = session.listed(f"{address_of(table)}/maintenance", most=None if all else limit, catalog=catalog)
    session.rows(RUNS, rows)


@verb(app, "savings")
def savings_command(
    session: Session,
    since: Since = None,
    catalog: Annotated[str | None, typer.Option("--catalog", help="Only tables of this catalog.")] = None,
) -> None:
    """Show what maintenance saved and cost, by month. Money only if a price is configured; it is an estimate."""
    begin = None if since is None else (session.transport.now() - length(since)).isoformat()
    session.rows(SAVINGS, session.get("/api/savings", since=begin, catalog=catalog))


def _show_run(session: Session, run: Row) -> None:
    if session.out.for_people:
        now = session.transport.now()
        screen = Group(session.out.card(RUN, run, now), Text(""), session.out.table(ACTIONS, run["actions"], now))
        session.out.screen(screen, run)
    else:
        session.one(RUN, run)
