"""The rows of mappings and their versions. Versions are immutable; a mapping refers to its newest one."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row, dict_row, tuple_row
from psycopg.types.json import Jsonb

from holdfast.errors import NotFound, Refused
from holdfast.services.exports.durations import end_of
from holdfast.services.exports.mappings.definitions import Graph

Conn = psycopg.AsyncConnection[Any]


class HasDependencies(Refused):
    """Other resources depend on it, so it cannot be deleted."""

    slug = "resource-has-dependencies"

    def __init__(self, message: str, **counts: int) -> None:
        super().__init__(message)
        self.counts = counts

    def members(self) -> dict[str, Any]:
        return {"dependencies": self.counts}


class AlreadyExists(Refused):
    """The owner already has a mapping with this name."""

    slug = "already-exists"


@dataclass(frozen=True, slots=True)
class MappingHead:
    """A mapping in a list."""

    id: int
    owner: str
    name: str
    description: str | None
    engine: str
    current_version: int
    ttl: str | None
    inactivity_timeout: str | None
    created_at: datetime
    updated_at: datetime
    last_used_at: datetime | None  # when a snapshot of it was created or deleted
    expires_at: datetime | None = field(default=None, kw_only=True)  # by its TTL, if it has no snapshots then
    inactive_at: datetime | None = field(default=None, kw_only=True)  # by its inactivity timeout, if it is not used before

    def __post_init__(self) -> None:
        used_at = max(self.updated_at, self.last_used_at or self.updated_at)
        object.__setattr__(self, "expires_at", end_of(self.created_at, self.ttl))
        object.__setattr__(self, "inactive_at", end_of(used_at, self.inactivity_timeout))


@dataclass(frozen=True, slots=True)
class MappingVersion:
    """One version. It never changes."""

    mapping_id: int
    version: int
    change_description: str | None
    nodes: list[Any]
    edges: list[Any]
    created_by: str
    created_at: datetime

    @property
    def graph(self) -> Graph:
        return Graph.of(self.nodes, self.edges)


HEAD = "id, owner, name, description, engine, current_version, ttl, inactivity_timeout, created_at, updated_at, last_used_at"
VERSION = "mapping_id, version, change_description, nodes, edges, created_by, created_at"


@dataclass(frozen=True, slots=True)
class NewMapping:
    """A mapping to create."""

    name: str
    engine: str
    graph: Graph
    description: str | None = None
    ttl: str | None = None
    inactivity_timeout: str | None = None


CREATE = f"""
    INSERT INTO holdfast.mappings (owner, name, description, engine, ttl, inactivity_timeout)
    VALUES (%(owner)s, %(name)s, %(description)s, %(engine)s, %(ttl)s, %(inactivity_timeout)s) RETURNING {HEAD}
"""
ADD_VERSION = f"""
    INSERT INTO holdfast.mapping_versions (mapping_id, version, change_description, nodes, edges, created_by)
    VALUES (%(id)s, %(version)s, %(change)s, %(nodes)s, %(edges)s, %(by)s) RETURNING {VERSION}
"""


async def create(conn: Conn, new: NewMapping, *, owner: str) -> tuple[MappingHead, MappingVersion]:
    """Create a mapping with its first version. Call it in a transaction."""
    fields = {"name": new.name, "description": new.description, "engine": new.engine}
    try:
        async with conn.transaction():
            head = await _head(
                conn, CREATE, {**fields, "owner": owner, "ttl": new.ttl, "inactivity_timeout": new.inactivity_timeout}
            )
    except psycopg.errors.UniqueViolation:
        raise AlreadyExists(f"{owner} already has a mapping {new.name!r}; update it, or choose another name") from None
    assert head is not None
    return head, await _add_version(conn, head.id, 1, None, new.graph, owner)


async def _add_version(conn: Conn, mapping_id: int, number: int, change: str | None, graph: Graph, by: str) -> MappingVersion:
    nodes, edges = graph.stored()
    parameters = {"id": mapping_id, "version": number, "change": change, "by": by}
    async with conn.cursor(row_factory=class_row(MappingVersion)) as cursor:
        await cursor.execute(ADD_VERSION, {**parameters, "nodes": Jsonb(nodes), "edges": Jsonb(edges)})
        made = await cursor.fetchone()
    assert made is not None
    return made


READ = f"SELECT {HEAD} FROM holdfast.mappings WHERE id = %(id)s"
HOLD = f"{READ} FOR UPDATE"
READ_VERSION = f"SELECT {VERSION} FROM holdfast.mapping_versions WHERE mapping_id = %(id)s AND version = %(version)s"
READ_VERSIONS = f"SELECT {VERSION} FROM holdfast.mapping_versions WHERE mapping_id = %(id)s ORDER BY version DESC LIMIT 1000"


async def get(conn: Conn, mapping_id: int, *, hold: bool = False) -> MappingHead:
    """One mapping; `hold` locks its row until the transaction ends."""
    found = await _head(conn, HOLD if hold else READ, {"id": mapping_id})
    if found is None:
        raise NotFound(f"there is no mapping {mapping_id}")
    return found


READ_OWNER = "SELECT owner FROM holdfast.mappings WHERE id = %(id)s"


async def owner_of(conn: Conn, mapping_id: int) -> str | None:
    """The owner of a mapping; None if it does not exist."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_OWNER, {"id": mapping_id})
        row = await cursor.fetchone()
    return None if row is None else row[0]


async def get_version(conn: Conn, mapping_id: int, version: int) -> MappingVersion:
    """One version of a mapping."""
    async with conn.cursor(row_factory=class_row(MappingVersion)) as cursor:
        await cursor.execute(READ_VERSION, {"id": mapping_id, "version": version})
        found = await cursor.fetchone()
    if found is None:
        raise NotFound(f"there is no version {version} of mapping {mapping_id}")
    return found


async def versions(conn: Conn, mapping_id: int) -> list[MappingVersion]:
    """All versions, newest first."""
    await get(conn, mapping_id)
    async with conn.cursor(row_factory=class_row(MappingVersion)) as cursor:
        await cursor.execute(READ_VERSIONS, {"id": mapping_id})
        return await cursor.fetchall()


# Newest first. The statement has only the filters that are given.
LIST = "SELECT {columns} FROM holdfast.mappings WHERE {filters} ORDER BY id DESC LIMIT %(limit)s"
FILTERS = {
    "before": "id < %(before)s",
    "owner": "owner = %(owner)s",
    "name": "name = %(name)s",
    "search": "strpos(lower(name || ' ' || coalesce(description, '')), lower(%(search)s)) > 0",
}


async def listed(conn: Conn, *, limit: int, **filters: Any) -> list[MappingHead]:
    """Mappings, newest first; one more than `limit` if there are more."""
    given = {name: value for name, value in filters.items() if value is not None}
    statement = LIST.format(columns=HEAD, filters=" AND ".join(FILTERS[name] for name in given) or "true")
    async with conn.cursor(row_factory=class_row(MappingHead)) as cursor:
        await cursor.execute(statement, given | {"limit": limit + 1})
        return await cursor.fetchall()


@dataclass(frozen=True, slots=True)
class Change:
    """The fields to change. None keeps the current value."""

    change_description: str
    name: str | None = None
    description: str | None = None
    graph: Graph | None = None


UPDATE_HEAD = f"""
    UPDATE holdfast.mappings
    SET name = coalesce(%(name)s, name), description = coalesce(%(description)s, description),
        current_version = %(version)s, updated_at = clock_timestamp()
    WHERE id = %(id)s RETURNING {HEAD}
"""


async def update(conn: Conn, mapping_id: int, change: Change, *, by: str) -> tuple[MappingHead, MappingVersion]:
    """Change a mapping. A new version is created only if the definitions change."""
    head = await get(conn, mapping_id, hold=True)
    current = await get_version(conn, mapping_id, head.current_version)
    if change.graph is not None and change.graph != current.graph:
        number = head.current_version + 1
        current = await _add_version(conn, mapping_id, number, change.change_description, change.graph, by)
    parameters = {"id": mapping_id, "name": change.name, "description": change.description, "version": current.version}
    try:
        async with conn.transaction():
            updated = await _head(conn, UPDATE_HEAD, parameters)
    except psycopg.errors.UniqueViolation:
        raise AlreadyExists(f"{head.owner} already has a mapping {change.name!r}; choose another name") from None
    assert updated is not None
    return updated, current


SET_LIFECYCLE = f"""
    UPDATE holdfast.mappings SET ttl = %(ttl)s, inactivity_timeout = %(inactivity_timeout)s, updated_at = clock_timestamp()
    WHERE id = %(id)s RETURNING {HEAD}
"""


async def set_lifecycle(conn: Conn, mapping_id: int, ttl: str | None, inactivity_timeout: str | None) -> MappingHead:
    """Set the TTL and the inactivity timeout; None: no limit."""
    head = await _head(conn, SET_LIFECYCLE, {"id": mapping_id, "ttl": ttl, "inactivity_timeout": inactivity_timeout})
    if head is None:
        raise NotFound(f"there is no mapping {mapping_id}")
    return head


NOTE_USE = f"UPDATE holdfast.mappings SET last_used_at = clock_timestamp() WHERE id = %(id)s RETURNING {HEAD}"


async def note_use(conn: Conn, mapping_id: int) -> MappingHead:
    """Restart the inactivity timeout because a snapshot is created or deleted. Locks the row until the transaction ends."""
    head = await _head(conn, NOTE_USE, {"id": mapping_id})
    if head is None:
        raise NotFound(f"there is no mapping {mapping_id}")
    return head


async def copy(conn: Conn, mapping_id: int, name: str, *, owner: str) -> tuple[MappingHead, MappingVersion]:
    """Create a mapping with the definitions of the current version of another."""
    head = await get(conn, mapping_id)
    current = await get_version(conn, mapping_id, head.current_version)
    lives = {"ttl": head.ttl, "inactivity_timeout": head.inactivity_timeout}
    return await create(conn, NewMapping(name, head.engine, current.graph, head.description, **lives), owner=owner)


COUNT_SNAPSHOTS = "SELECT count(*) FROM holdfast.snapshots WHERE mapping_id = %(id)s"
DELETE = "DELETE FROM holdfast.mappings WHERE id = %(id)s"


async def delete(conn: Conn, mapping_id: int) -> None:
    """Delete a mapping with its versions. Refused while it has snapshots; the foreign key refuses it, too."""
    await get(conn, mapping_id, hold=True)
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT_SNAPSHOTS, {"id": mapping_id})
        ((count,),) = await cursor.fetchall()
    if count:
        raise HasDependencies(f"mapping {mapping_id} has {count} snapshots; delete them first", snapshots=count)
    await conn.execute(DELETE, {"id": mapping_id})


TREE = """
    SELECT v.version, v.change_description, v.created_at, v.created_by,
           jsonb_array_length(v.nodes) AS nodes, jsonb_array_length(v.edges) AS edges,
           coalesce((SELECT jsonb_agg(to_jsonb(s) ORDER BY s.id DESC) FROM (
               SELECT id, name, owner, state, size_bytes, created_at, finished_at FROM holdfast.snapshots s
               WHERE s.mapping_id = v.mapping_id AND s.mapping_version = v.version
                 AND (%(state)s::text IS NULL OR s.state = %(state)s)
               ORDER BY id DESC LIMIT 100) AS s), '[]') AS snapshots
    FROM holdfast.mapping_versions v WHERE v.mapping_id = %(id)s ORDER BY v.version DESC LIMIT 1000
"""


async def tree(conn: Conn, mapping_id: int, *, state: str | None = None) -> dict[str, Any]:
    """The versions of a mapping with their snapshots, newest first, and the totals."""
    head = await get(conn, mapping_id)
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(TREE, {"id": mapping_id, "state": state})
        found = await cursor.fetchall()
    return {
        "id": head.id,
        "name": head.name,
        "current_version": head.current_version,
        "versions": found,
        "totals": {"versions": len(found), "snapshots": sum(len(one["snapshots"]) for one in found)},
    }


async def _head(conn: Conn, statement: str, parameters: dict[str, Any]) -> MappingHead | None:
    async with conn.cursor(row_factory=class_row(MappingHead)) as cursor:
        await cursor.execute(statement, parameters)
        return await cursor.fetchone()
