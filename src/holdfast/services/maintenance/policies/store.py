"""Store policies. Called by: the API and the loop `maintenance_policies`. The caller owns the transaction."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from holdfast.errors import NotFound
from holdfast.services.maintenance.policies.definition import Policy, parse_policy
from holdfast.services.maintenance.policies.due import next_run

Conn = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """A policy as it is stored."""

    name: str
    definition: dict[str, Any]
    version: int
    created_by: str
    created_at: datetime
    updated_by: str
    updated_at: datetime
    next_due_at: datetime | None
    last_due_at: datetime | None

    @property
    def policy(self) -> Policy:
        """The policy that the definition describes."""
        return parse_policy(self.definition, name=self.name)


COLUMNS = (
    "p.name, p.definition, p.version, p.created_by, p.created_at, p.updated_by, p.updated_at, p.next_due_at, p.last_due_at"
)
GET = f"SELECT {COLUMNS} FROM holdfast.maintenance_policies p WHERE p.name = %(name)s"
LIST = f"SELECT {COLUMNS} FROM holdfast.maintenance_policies p WHERE p.name > %(after)s ORDER BY p.name LIMIT %(limit)s"


async def get(conn: Conn, name: str) -> StoredPolicy:
    """One policy."""
    async with conn.cursor(row_factory=class_row(StoredPolicy)) as cursor:
        await cursor.execute(GET, {"name": name})
        found = await cursor.fetchone()
    if found is None:
        raise NotFound(f"there is no maintenance policy {name!r}; `holdfast table policy list` has all")
    return found


async def listed(conn: Conn, *, limit: int, after: str = "") -> list[StoredPolicy]:
    """Policies by name."""
    async with conn.cursor(row_factory=class_row(StoredPolicy)) as cursor:
        await cursor.execute(LIST, {"after": after, "limit": limit})
        return await cursor.fetchall()


NOW = "SELECT clock_timestamp() AS now"
# An unchanged definition keeps its version and its due times.
PUT = """
    INSERT INTO holdfast.maintenance_policies AS p (name, definition, created_by, updated_by, next_due_at)
    VALUES (%(name)s, %(definition)s, %(actor)s, %(actor)s, %(next_due_at)s)
    ON CONFLICT (name) DO UPDATE
    SET definition = excluded.definition, version = p.version + 1, updated_by = excluded.updated_by,
        updated_at = clock_timestamp(), next_due_at = excluded.next_due_at
    WHERE p.definition <> excluded.definition
    RETURNING p.version
"""


async def put(conn: Conn, policy: Policy, definition: dict[str, Any], *, actor: str) -> bool:
    """Create or replace a policy; False if nothing changed."""
    due = next_run(policy, await clock(conn)) if policy.is_scheduled and policy.enabled else None
    parameters = {"name": policy.name, "definition": Jsonb(definition), "actor": actor, "next_due_at": due}
    return (await conn.execute(PUT, parameters)).rowcount > 0


DELETE = "DELETE FROM holdfast.maintenance_policies WHERE name = %(name)s"


async def delete(conn: Conn, name: str) -> None:
    """Delete a policy. Jobs that it has enqueued continue."""
    if (await conn.execute(DELETE, {"name": name})).rowcount == 0:
        raise NotFound(f"there is no maintenance policy {name!r}")


async def clock(conn: Conn) -> datetime:
    """The database's clock: no other decides when something is due."""
    async with conn.cursor(row_factory=class_row(Now)) as cursor:
        await cursor.execute(NOW)
        row = await cursor.fetchone()
    assert row is not None
    return row.now


@dataclass(frozen=True, slots=True)
class Now:
    """The time at the database."""

    now: datetime


HOLD = f"SELECT {COLUMNS} FROM holdfast.maintenance_policies p WHERE p.name = %(name)s FOR UPDATE"
ADVANCE = """
    UPDATE holdfast.maintenance_policies SET last_due_at = coalesce(%(last)s, last_due_at), next_due_at = %(next)s
    WHERE name = %(name)s
"""


async def hold(conn: Conn, name: str) -> StoredPolicy | None:
    """The policy, locked until the transaction ends; None if it was deleted."""
    async with conn.cursor(row_factory=class_row(StoredPolicy)) as cursor:
        await cursor.execute(HOLD, {"name": name})
        return await cursor.fetchone()


async def advance(conn: Conn, name: str, *, last: datetime | None, following: datetime | None) -> None:
    """A due time was acted on, and this is the next."""
    await conn.execute(ADVANCE, {"name": name, "last": last, "next": following})
