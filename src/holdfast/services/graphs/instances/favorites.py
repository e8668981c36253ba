"""Favourites of users: mappings, snapshots and instances. Called by: the API, the loop instance_lifecycle.

A trigger removes the favourites of an instance with its row. Mappings and snapshots belong to exports: a favourite of one that
is gone is not listed, and the loop removes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row, tuple_row

from holdfast.services.exports import offers

Conn = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class Favorite:
    """A favourite with the name and the owner of its resource."""

    resource_type: str
    resource_id: int
    created_at: datetime
    name: str | None
    owner: str | None
    exists: bool


SHOWN = """
    SELECT f.resource_type, f.resource_id, f.created_at, g.name, g.owner, g.id IS NOT NULL AS exists FROM {these} f
    LEFT JOIN holdfast.graph_instances g ON f.resource_type = 'instance' AND g.id = f.resource_id
"""
LIST = (
    SHOWN.format(these="holdfast.favorites")
    + """ WHERE f.username = %(username)s AND (%(resource_type)s::text IS NULL OR f.resource_type = %(resource_type)s)
      AND (f.resource_type, f.resource_id) > (%(after_type)s, %(after_id)s)
    ORDER BY f.resource_type, f.resource_id LIMIT %(limit)s"""
)


async def listed(
    conn: Conn, username: str, *, limit: int, after: Sequence[Any] | None = None, resource_type: str | None = None
) -> tuple[list[Favorite], Sequence[Any] | None]:
    """A page of a user's favourites that still exist, and where the next page begins; None: there is none."""
    after_type, after_id = after or ("", 0)
    parameters = {"username": username, "resource_type": resource_type, "after_type": after_type, "after_id": after_id}
    async with conn.cursor(row_factory=class_row(Favorite)) as cursor:
        await cursor.execute(LIST, parameters | {"limit": limit + 1})
        found = await cursor.fetchall()
    page = found[:limit]
    last = [page[-1].resource_type, page[-1].resource_id] if len(found) > limit else None
    return [one for one in await _named(conn, page) if one.exists], last


async def _named(conn: Conn, found: Sequence[Favorite]) -> list[Favorite]:
    """The same with the names and owners of mappings and snapshots."""
    heads = await _heads_of_exports(conn, [(one.resource_type, one.resource_id) for one in found])
    known = [(one, heads.get((one.resource_type, one.resource_id))) for one in found]
    return [one if head is None else replace(one, name=head.name, owner=head.owner, exists=True) for one, head in known]


async def _heads_of_exports(
    conn: Conn, resources: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], offers.MappingHead | offers.SnapshotHead]:
    """The mappings and snapshots among these that exist."""
    mappings = await offers.read_mapping_heads(conn, [number for kind, number in resources if kind == "mapping"])
    snapshots = await offers.read_heads(conn, [number for kind, number in resources if kind == "snapshot"])
    return {("mapping", one.id): one for one in mappings.values()} | {("snapshot", one.id): one for one in snapshots.values()}


ADD = """WITH made AS (
        INSERT INTO holdfast.favorites (username, resource_type, resource_id)
        VALUES (%(username)s, %(resource_type)s, %(resource_id)s) ON CONFLICT DO NOTHING RETURNING *
    )""" + SHOWN.format(these="made")


async def add(conn: Conn, username: str, resource_type: str, resource_id: int) -> Favorite | None:
    """Add one; None: it is one already. The caller rolls back if its resource does not exist."""
    parameters = {"username": username, "resource_type": resource_type, "resource_id": resource_id}
    async with conn.cursor(row_factory=class_row(Favorite)) as cursor:
        await cursor.execute(ADD, parameters)
        made = await cursor.fetchall()
    return next(iter(await _named(conn, made)), None)


REMOVE = """
    DELETE FROM holdfast.favorites
    WHERE username = %(username)s AND resource_type = %(resource_type)s AND resource_id = %(resource_id)s
"""


async def remove(conn: Conn, username: str, resource_type: str, resource_id: int) -> bool:
    """Remove one; False: there was none."""
    parameters = {"username": username, "resource_type": resource_type, "resource_id": resource_id}
    return (await conn.execute(REMOVE, parameters)).rowcount == 1


PAGE = 1000
RESOURCES = """
    SELECT DISTINCT resource_type, resource_id FROM holdfast.favorites
    WHERE resource_type <> 'instance' AND (resource_type, resource_id) > (%(after_type)s, %(after_id)s)
    ORDER BY resource_type, resource_id LIMIT %(limit)s
"""


async def resources_of_exports(conn: Conn, after: tuple[str, int] = ("", 0)) -> list[tuple[str, int]]:
    """A page of the mappings and snapshots that are favourites, as (type, id)."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(RESOURCES, {"after_type": after[0], "after_id": after[1], "limit": PAGE})
        return await cursor.fetchall()


async def gone_among(conn: Conn, resources: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Those of these mappings and snapshots that do not exist any more. Their ids are not used again."""
    existing = await _heads_of_exports(conn, resources)
    return [one for one in resources if one not in existing]


REMOVE_ALL_OF = "DELETE FROM holdfast.favorites WHERE resource_type = %(type)s AND resource_id = %(id)s"


async def remove_all_of(conn: Conn, resource: tuple[str, int]) -> None:
    """Remove every favourite of a resource that is gone."""
    await conn.execute(REMOVE_ALL_OF, {"type": resource[0], "id": resource[1]})
