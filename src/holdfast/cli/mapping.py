"""`holdfast mapping apply | list | show | diff | tree | copy | delete`"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from holdfast.cli.exits import Told
from holdfast.cli.output import Column, Kind, Row, Shape
from holdfast.cli.times import counted
from holdfast.cli.verb import All, Limit, Session, Yes, verb
from holdfast.client.mapping_file import Applied, apply_mapping, read_mapping
from holdfast.errors import UsageError

app = typer.Typer(help="Mappings: which nodes and edges a graph has, and the SQL of each.", no_args_is_help=True)

MappingName = Annotated[str, typer.Argument(help="The mapping's number or name.", metavar="MAPPING", show_default=False)]
UseCase = Annotated[str | None, typer.Option("--use-case", help="In whose name the engine is asked: X-Use-Case-Id.")]

SHAPE = Shape(
    "mapping",
    [
        Column("ID", "id"),
        Column("NAME", "name"),
        Column("VERSION", "current_version", Kind.NUMBER),
        Column("ENGINE", "engine"),
        Column("OWNER", "owner"),
        Column("UPDATED", "updated_at", Kind.TIME),
        Column("DESCRIPTION", "description", long=True),
        Column("TTL", "ttl", wide=True),
        Column("INACTIVITY", "inactivity_timeout", wide=True),
        Column("EXPIRES", "expires_at", Kind.TIME, wide=True),
        Column("INACTIVE", "inactive_at", Kind.TIME, wide=True),
        Column("CREATED", "created_at", Kind.TIME, wide=True),
    ],
    empty="There are no mappings: holdfast mapping apply -f map.yaml",
)
PARTS = Shape(
    "part",
    [
        Column("KIND", "kind"),
        Column("NAME", "name"),
        Column("KEYS", "keys"),
        Column("PROPERTIES", "properties"),
        Column("SQL", "sql", long=True),
    ],
    key="name",
)
CHANGES = Shape(
    "change",
    [
        Column("KIND", "kind"),
        Column("NAME", "name"),
        Column("CHANGE", "change", Kind.WORD),
        Column("FIELDS", lambda one: ", ".join(one["fields_changed"])),
    ],
    key="name",
    empty="Nothing changed.",
)
BRANCHES = Shape(
    "version",
    [
        Column("VERSION", "version", Kind.NUMBER),
        Column("CREATED", "created_at", Kind.TIME),
        Column("BY", "created_by"),
        Column("NODES", "nodes", Kind.NUMBER),
        Column("EDGES", "edges", Kind.NUMBER),
        Column("SNAPSHOTS", lambda one: ", ".join(f"{s['id']} {s['state']}" for s in one["snapshots"]), long=True),
        Column("CHANGE", "change_description", wide=True),
    ],
    key="version",
)


@verb(app, "apply")
def apply_command(
    session: Session,
    file: Annotated[Path, typer.Option("--file", "-f", help="The mapping as YAML or JSON.", show_default=False)],
    message: Annotated[str | None, typer.Option("--message", "-m", help="What changed; stands with the new version.")] = None,
    use_case: UseCase = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is wrong with it.")] = False,
) -> None:
    """Make the mapping that a file describes, or bring it up to date; everything that is wrong with it is said at once."""
    asked = read_mapping(file)
    try:
        if dry_run:
            session.act("POST", "/api/mappings/check", asked, use_case=use_case)
            session.out.say(f"{asked['name']} is valid.", "green")
            return
        session.one(SHAPE, _applied(session, asked, message or f"applied from {file.name}", use_case))
    except Told as told:
        mistakes = told.problem.get("errors")
        if not mistakes:
            raise
        for one in mistakes:  # what the server calls its body is the file here
            session.out.mistake(f"{file}{one['pointer'].removeprefix('/body')}: {one['message']}")
        raise UsageError(f"{counted(len(mistakes), 'mistake')} in {file}; nothing was changed") from None


def _applied(session: Session, asked: dict[str, Any], message: str, use_case: str | None) -> Row:
    applied = apply_mapping(session.get, partial(session.act, use_case=use_case), asked, message)
    session.out.say(told_of(applied))
    return applied.mapping


def told_of(applied: Applied) -> str:
    """What was done, in a sentence. Pure."""
    number = applied.mapping["id"]
    if applied.is_new:
        return f"Made mapping {number}."
    if not applied.changed:
        return "Nothing changed."
    return f"Mapping {number} is at version {applied.mapping['version']}; changed: {', '.join(applied.changed)}."


@verb(app, "list")
def list_command(
    session: Session,
    search: Annotated[str | None, typer.Option("--search", help="Only those with this in name or description.")] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only those of this owner.")] = None,
    limit: Limit = 50,
    all: All = False,
) -> None:
    """List mappings, newest first."""
    session.rows(SHAPE, session.listed("/api/mappings", most=None if all else limit, search=search, owner=owner))


@verb(app, "show")
def show_command(
    session: Session,
    mapping: MappingName,
    version: Annotated[int | None, typer.Option("--version", help="Which version; default: the current one.")] = None,
) -> None:
    """Show a mapping with its nodes and edges."""
    found = session.get(f"/api/mappings/{id_of(session, mapping)}")
    if version is not None:
        found = {**found, **session.get(f"/api/mappings/{found['id']}/versions/{version}")}
    if session.out.for_people:
        now = session.way.now()
        screen = Group(session.out.card(SHAPE, found, now), Text(""), session.out.table(PARTS, parts_of(found), now))
        session.out.screen(screen, found)
    else:
        session.one(SHAPE, found)


@verb(app, "diff")
def diff_command(
    session: Session,
    mapping: MappingName,
    before: Annotated[int, typer.Argument(help="The older version.")],
    after: Annotated[int, typer.Argument(help="The newer version.")],
) -> None:
    """Say what changed from one version to another."""
    found = session.get(f"/api/mappings/{id_of(session, mapping)}/versions/{before}/diff/{after}")
    nodes = [{"kind": "node", "name": one["label"], **one} for one in found["nodes"]]
    session.rows(CHANGES, [*nodes, *({"kind": "edge", "name": one["type"], **one} for one in found["edges"])])


@verb(app, "tree")
def tree_command(session: Session, mapping: MappingName) -> None:
    """Show the versions of a mapping with the snapshots of each."""
    session.rows(BRANCHES, session.get(f"/api/mappings/{id_of(session, mapping)}/tree")["versions"])


@verb(app, "copy")
def copy_command(
    session: Session, mapping: MappingName, name: Annotated[str, typer.Argument(help="What the copy is called.")]
) -> None:
    """Make a mapping of one's own that begins as another's current version."""
    session.one(SHAPE, session.act("POST", f"/api/mappings/{id_of(session, mapping)}/copy", {"name": name}))


@verb(app, "delete")
def delete_command(session: Session, mapping: MappingName, yes: Yes = False) -> None:
    """Delete a mapping with its versions; refused while it has snapshots."""
    number = id_of(session, mapping)
    session.confirm(f"Delete mapping {mapping}?", yes)
    session.act("DELETE", f"/api/mappings/{number}")
    session.out.say(f"Mapping {number} is gone.")


def id_of(session: Session, mapping: str) -> int:
    """The number of a mapping that somebody named by number or name."""
    word = mapping.removeprefix("mapping/")
    if word.isascii() and word.isdecimal():  # int() takes other digits, too, and ² is none for it
        return int(word)
    found = session.get("/api/mappings", name=word, limit=2)
    if len(found) != 1:
        many = "there is no mapping" if not found else "more than one owner has a mapping"
        raise UsageError(f"{many} {word!r}; use its number, from `holdfast mapping list`")
    return int(found[0]["id"])


def parts_of(mapping: Row) -> list[Row]:
    """Nodes and edges in one table. Pure."""
    nodes = [
        {"kind": "node", "name": one["label"], "keys": one["primary_key"]["name"], **_rest(one)} for one in mapping["nodes"]
    ]
    edges = [
        {
            "kind": "edge",
            "name": f"({one['from_node']})-{one['type']}->({one['to_node']})",
            "keys": f"{one['from_key']}, {one['to_key']}",
            **_rest(one),
        }
        for one in mapping["edges"]
    ]
    return [*nodes, *edges]


def _rest(one: Row) -> dict[str, Any]:
    return {"properties": ", ".join(f"{p['name']} {p['type']}" for p in one["properties"]), "sql": one["sql"]}
