"""`holdfast graph create | list | show | query | shell | algo | extend | suspend | resume | delete | logs`"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.errors import UsageError
from holdfast.services.graphs.cli.algo import algo_command
from holdfast.services.graphs.cli.query import query_command
from holdfast.services.graphs.cli.shell import shell_command
from holdfast.toolkit.cli.exit_codes import Exit
from holdfast.toolkit.cli.output import Column, Kind, Row, Shape
from holdfast.toolkit.cli.verb import All, Limit, Session, Yes, verb
from holdfast.toolkit.cli.waiting import Every, Timeout, Watch, end_with_code, follow

app = typer.Typer(help="Graph instances: create, query, suspend, delete.", no_args_is_help=True)
verb(app, "query")(query_command)
verb(app, "shell")(shell_command)
verb(app, "algo")(algo_command)

WaitReady = Annotated[
    bool, typer.Option("--wait", help="Wait until it answers queries; exit with 0 if it runs, with 1 if it failed.")
]
GraphName = Annotated[str, typer.Argument(help="The instance's id or name.", metavar="GRAPH", show_default=False)]
ENDS = {"running": Exit.OK, "failed": Exit.FAILED, "suspended": Exit.OK}

SHAPE = Shape(
    "graph",
    [
        Column("ID", "id"),
        Column("NAME", "name"),
        Column("STATUS", "status", Kind.WORD),
        Column("MAPPING", lambda one: f"{one['mapping_id']} v{one['mapping_version']}"),
        Column("MEMORY GB", "memory_gb", Kind.NUMBER),
        Column("EXPIRES", "expires_at", Kind.TIME),
        Column("ERROR", "error_message", long=True),
        Column("OWNER", "owner", wide=True),
        Column("ENGINE", "wrapper_type", wide=True),
        Column("SNAPSHOT", "snapshot_id", wide=True),
        Column("SERVER", "pod_name", wide=True),
        Column("CREATED", "created_at", Kind.TIME, wide=True),
    ],
    empty="No graph instances. Create one: holdfast graph create NAME --mapping MAPPING",
)
CARD = Shape(
    "graph",
    [
        Column("GRAPH", "id"),
        Column("NAME", "name"),
        Column("STATUS", "status", Kind.WORD),
        Column("DONE", "share", Kind.PERCENT),
        Column("MAPPING", lambda one: f"{one['mapping_id']} v{one['mapping_version']}"),
        Column("SNAPSHOT", "snapshot_id"),
        Column("ENGINE", "wrapper_type"),
        Column("MEMORY GB", "memory_gb", Kind.NUMBER),
        Column("MEMORY USED", "memory_usage_bytes", Kind.NUMBER),
        Column("CPU", "cpu_cores", Kind.NUMBER),
        Column("SERVER", "pod_name"),
        Column("ERROR CODE", "error_code"),
        Column("ERROR", "error_message"),
        Column("QUERIES", "query_count", Kind.NUMBER),
        Column("LAST USED", "last_activity_at", Kind.TIME),
        Column("EXPIRES", "expires_at", Kind.TIME),
        Column("INACTIVE", "inactive_at", Kind.TIME),
        Column("CREATED", "created_at", Kind.TIME),
    ],
)
TABLES = Shape(
    "table",
    [
        Column("TYPE", "type"),
        Column("NAME", "name"),
        Column("STATE", "state", Kind.WORD),
        Column("LOADED", "loaded", Kind.NUMBER),
        Column("ROWS", "rows", Kind.NUMBER),
    ],
    key="name",
)


@verb(app, "create")
def create_command(
    session: Session,
    name: Annotated[str, typer.Argument(help="Name of the instance.", metavar="NAME", show_default=False)],
    mapping: Annotated[str | None, typer.Option("--mapping", help="Id or name of the mapping to load.")] = None,
    version: Annotated[int | None, typer.Option("--version", help="Version of the mapping; default: the current one.")] = None,
    snapshot: Annotated[int | None, typer.Option("--snapshot", help="Id of a ready snapshot, instead of a mapping.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="Graph database: ladybug, kuzu or ryugraph.")] = None,
    memory: Annotated[float | None, typer.Option("--memory", help="Memory in GiB; default: what the snapshot needs.")] = None,
    cpu: Annotated[float | None, typer.Option("--cpu", help="CPU cores; default: 1.")] = None,
    ttl: Annotated[str | None, typer.Option("--ttl", help="Delete it after this ISO 8601 duration, such as PT24H.")] = None,
    role: Annotated[str | None, typer.Option("--role", help="The role under which the engine runs SQL.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: repeating the call returns the same instance.")
    ] = None,
    wait: WaitReady = False,
    timeout: Timeout = None,
) -> None:
    """Create a graph instance from a mapping, with a new snapshot, or from a ready snapshot."""
    if (mapping is None) == (snapshot is None):
        raise UsageError("pass either --mapping or --snapshot")
    body = {
        "name": name,
        "mapping_id": None if mapping is None else mapping_id_of(session, mapping),
        "mapping_version": version,
        "snapshot_id": snapshot,
        "wrapper_type": engine,
        "memory_gb": memory,
        "cpu_cores": cpu,
        "ttl": ttl,
    }
    made = session.act("POST", "/api/instances", body, key=key, role=role)
    if wait:
        _follow(session, made["id"], timeout, 1.0)
        return
    session.one(CARD, made)
    session.out.hint(f"holdfast graph show {made['id']} --watch")


@verb(app, "list")
def list_command(
    session: Session,
    status: Annotated[str | None, typer.Option("--status", help="Only this status, such as running.")] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only instances of this owner.")] = None,
    search: Annotated[
        str | None, typer.Option("--search", help="Only instances with this text in the name or description.")
    ] = None,
    limit: Limit = 50,
    all: All = False,
) -> None:
    """List graph instances, newest first."""
    most = None if all else limit
    session.rows(SHAPE, session.listed("/api/instances", most=most, status=status, owner=owner, search=search))


@verb(app, "show")
def show_command(session: Session, graph: GraphName, watch: Watch = False, interval: Every = 1.0) -> None:
    """Show a graph instance and the progress of its load."""
    number = id_of(session, graph)
    if watch:
        _follow(session, number, None, interval)
        return
    _show(session, _fetch(session, number))


@verb(app, "extend")
def extend_command(
    session: Session,
    graph: GraphName,
    by: Annotated[str, typer.Option("--by", help="ISO 8601 duration to add to its TTL, such as PT4H.", show_default=False)],
) -> None:
    """Extend the TTL of a graph instance."""
    session.one(CARD, session.act("POST", f"/api/instances/{id_of(session, graph)}/extend", {"by": by}))


@verb(app, "suspend")
def suspend_command(session: Session, graph: GraphName) -> None:
    """Stop the graph server of an instance, and keep its snapshot."""
    number = id_of(session, graph)
    session.one(CARD, session.act("POST", f"/api/instances/{number}/suspend"))
    session.out.hint(f"holdfast graph resume {number}")


@verb(app, "resume")
def resume_command(session: Session, graph: GraphName, wait: WaitReady = False, timeout: Timeout = None) -> None:
    """Start a suspended or failed graph instance again."""
    number = id_of(session, graph)
    started = session.act("POST", f"/api/instances/{number}/resume")
    if wait:
        _follow(session, number, timeout, 1.0)
        return
    session.one(CARD, started)


@verb(app, "delete")
def delete_command(session: Session, graph: GraphName, yes: Yes = False) -> None:
    """Delete a graph instance: its graph server first, then its row."""
    number = id_of(session, graph)
    session.confirm(f"Delete graph instance {number}?", yes)
    left = session.act("DELETE", f"/api/instances/{number}")
    if left:
        session.out.say(f"Graph instance {number} is being deleted by job {left['job_id']}.")
    else:
        session.out.say(f"Graph instance {number} is deleted.")


@verb(app, "logs")
def logs_command(
    session: Session,
    graph: GraphName,
    tail: Annotated[int, typer.Option("--tail", "-n", min=1, max=5000, help="Print this many lines from the end.")] = 200,
) -> None:
    """Show the log of a graph server."""
    found = session.get(f"/api/instances/{id_of(session, graph)}/logs", tail=tail)
    for line in found["lines"]:
        typer.echo(line)


# ---------------------------------------------------------------------------------------------------------------------
# Shared
# ---------------------------------------------------------------------------------------------------------------------


def id_of(session: Session, graph: str) -> int:
    """The id of an instance that is given by id or name."""
    word = graph.removeprefix("graph/")
    if word.isascii() and word.isdecimal():
        return int(word)
    found = [one for one in session.listed("/api/instances", most=None, search=word) if one["name"] == word]
    if len(found) != 1:
        many = "there is no graph instance" if not found else "more than one graph instance is called"
        raise UsageError(f"{many} {word!r}; pass an id from `holdfast graph list`")
    return int(found[0]["id"])


def mapping_id_of(session: Session, mapping: str) -> int:
    """The id of a mapping that is given by id or name."""
    word = mapping.removeprefix("mapping/")
    if word.isascii() and word.isdecimal():
        return int(word)
    found = session.get("/api/mappings", name=word, limit=2)
    if len(found) != 1:
        many = "there is no mapping" if not found else "more than one owner has a mapping"
        raise UsageError(f"{many} {word!r}; pass an id from `holdfast mapping list`")
    return int(found[0]["id"])


def _fetch(session: Session, number: int) -> dict[str, Any]:
    found: dict[str, Any] = session.get(f"/api/instances/{number}")
    progress = session.get(f"/api/instances/{number}/progress")
    return {**found, "share": progress["share"], "steps": (progress["steps"] or {}).get("tables") or []}


def _screen(session: Session, found: Row) -> RenderableType:
    now = session.transport.now()
    tables = [session.out.table(TABLES, found["steps"], now)] if found["steps"] else []
    return Group(session.out.card(CARD, found, now), Text(""), *tables)


def _show(session: Session, found: Row) -> None:
    if session.out.for_people:
        session.out.screen(_screen(session, found), found)
    else:
        session.one(CARD, found)


def _follow(session: Session, number: int, timeout: str | None, interval: float) -> None:
    """Wait until it runs or has failed, show it, and exit with the code of its status."""
    found = follow(
        session, partial(_fetch, session, number), partial(_screen, session), name=f"graph instance {number}", ends=ENDS,
        timeout=timeout, interval=interval,
    )  # fmt: skip
    _show(session, found)
    end_with_code(ENDS[found["status"]])
