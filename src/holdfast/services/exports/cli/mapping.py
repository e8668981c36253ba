"""`holdfast mapping apply | list | show | diff | tree | copy | delete`"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from holdfast.errors import UsageError
from holdfast.services.exports.client.mapping_file import Applied, apply_mapping, read_mapping
from holdfast.toolkit.cli.output import Column, Kind, Row, Shape
from holdfast.toolkit.cli.times import counted
from holdfast.toolkit.cli.verb import All, Limit, Session, Yes, verb
from holdfast.toolkit.client.problems import ApiError

app = typer.Typer(help="Mappings: nodes and edges of a graph, and the SQL of each.", no_args_is_help=True)

MappingName = Annotated[str, typer.Argument(help="The mapping's id or name.", metavar="MAPPING", show_default=False)]
EngineRole = Annotated[str | None, typer.Option("--role", help="The role under which the engine runs SQL.")]

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
    empty="No mappings. Create one: holdfast mapping apply -f map.yaml",
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
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Description of the change, stored with the new version.")
    ] = None,
    role: EngineRole = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate the mapping, and change nothing.")] = False,
) -> None:
    """Create the mapping that a file describes, or update it. Reports all errors at once."""
    mapping = read_mapping(file)
    try:
        if dry_run:
            session.act("POST", "/api/mappings/check", mapping, role=role)
            session.out.say(f"{mapping['name']} is valid.", "green")
            return
        session.one(SHAPE, _applied(session, mapping, message or f"applied from {file.name}", role))
    except ApiError as error:
        if not error.errors:
            raise
        for one in error.errors:  # the body of the request is the file
            session.out.mistake(f"{file}{one['pointer'].removeprefix('/body')}: {one['message']}")
        raise UsageError(f"{counted(len(error.errors), 'error')} in {file}; nothing was changed") from None


def _applied(session: Session, mapping: dict[str, Any], message: str, role: str | None) -> Row:
    applied = apply_mapping(session.get, partial(session.act, role=role), mapping, message)
    session.out.say(sentence_of(applied))
    return applied.mapping


def sentence_of(applied: Applied) -> str:
    """What `apply` did, in a sentence. Pure."""
    number = applied.mapping["id"]
    if applied.is_new:
        return f"Mapping {number} is created."
    if not applied.changed:
        return "Nothing changed."
    return f"Mapping {number} is at version {applied.mapping['version']}; changed: {', '.join(applied.changed)}."


@verb(app, "list")
def list_command(
    session: Session,
    search: Annotated[
        str | None, typer.Option("--search", help="Only mappings with this text in their name or description.")
    ] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only mappings of this owner.")] = None,
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
        now = session.transport.now()
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
    """Show what changed between two versions."""
    found = session.get(f"/api/mappings/{id_of(session, mapping)}/versions/{before}/diff/{after}")
    nodes = [{"kind": "node", "name": one["label"], **one} for one in found["nodes"]]
    session.rows(CHANGES, [*nodes, *({"kind": "edge", "name": one["type"], **one} for one in found["edges"])])


@verb(app, "tree")
def tree_command(session: Session, mapping: MappingName) -> None:
    """Show the versions of a mapping with the snapshots of each."""
    session.rows(BRANCHES, session.get(f"/api/mappings/{id_of(session, mapping)}/tree")["versions"])


@verb(app, "copy")
def copy_command(
    session: Session, mapping: MappingName, name: Annotated[str, typer.Argument(help="Name of the copy.")]
) -> None:
    """Copy the current version of a mapping to a new one that you own."""
    session.one(SHAPE, session.act("POST", f"/api/mappings/{id_of(session, mapping)}/copy", {"name": name}))


@verb(app, "delete")
def delete_command(session: Session, mapping: MappingName, yes: Yes = False) -> None:
    """Delete a mapping with its versions; refused while it has snapshots."""
    number = id_of(session, mapping)
    session.confirm(f"Delete mapping {mapping}?", yes)
    session.act("DELETE", f"/api/mappings/{number}")
    session.out.say(f"Mapping {number} is deleted.")


def id_of(session: Session, mapping: str) -> int:
    """The id of a mapping that is given by id or name."""
    word = mapping.removeprefix("mapping/")
    if word.isascii() and word.isdecimal():  # int() also takes other digits
        return int(word)
    found = session.get("/api/mappings", name=word, limit=2)
    if len(found) != 1:
        many = "there is no mapping" if not found else "more than one owner has a mapping"
        raise UsageError(f"{many} {word!r}; pass an id from `holdfast mapping list`")
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
