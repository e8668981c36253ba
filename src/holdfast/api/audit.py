"""The audit log: each action, and each denied one, with its actor. An entry is written in the transaction of its action.

The table is append-only; a trigger refuses updates and deletes. No decision depends on it: owners are columns of the owned
rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Json as AsJson

from holdfast.api.asked import Asked
from holdfast.api.plane import Principal
from holdfast.jobs.payload import storable

WRITE = """
    INSERT INTO holdfast.audit
        (actor, method, role, action, object, outcome, reason, request_id, idempotency_key, client, detail)
    VALUES (%(actor)s, %(method)s, %(role)s, %(action)s, %(object)s, %(outcome)s, %(reason)s, %(request_id)s,
            %(idempotency_key)s, %(client)s, %(detail)s)
"""


async def write(
    conn: psycopg.AsyncConnection[Any],
    caller: Principal,
    action: str,
    thing: str,
    *,
    request: Asked | None = None,
    outcome: str = "done",
    reason: str | None = None,
    detail: dict[str, Any] | None = None,
) -> None:
    """Add an entry. Call it in the transaction of the action."""
    key = None if request is None else request.headers.get("idempotency-key")
    parameters = {
        "actor": caller.actor,
        "method": caller.method,
        "role": caller.role,
        "action": action,
        "object": storable(thing, 500),
        "outcome": outcome,
        "reason": None if reason is None else storable(reason, 2000),
        "request_id": None if request is None else request.state.request_id,
        "idempotency_key": None if key is None else storable(key, 255),
        "client": None if request is None or request.client is None else request.client.host,
        "detail": AsJson(detail or {}),
    }
    await conn.execute(WRITE, parameters)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry of the audit log."""

    id: int
    at: datetime
    actor: str
    method: str
    role: str | None
    action: str
    object: str
    outcome: str
    reason: str | None
    request_id: str | None
    idempotency_key: str | None
    client: str | None
    detail: dict[str, Any]


# Newest first. A filter is part of the statement only if it is used, so that its index can be used.
READ = "SELECT {columns} FROM holdfast.audit WHERE {filters} ORDER BY id DESC LIMIT %(limit)s"
FILTERS = {
    "before": "id < %(before)s",
    "actor": "actor = %(actor)s",
    "object": "object = %(object)s",
    "action": "action = %(action)s",
    "outcome": "outcome = %(outcome)s",
}


async def read(conn: psycopg.AsyncConnection[Any], *, limit: int, **filters: Any) -> list[AuditEntry]:
    """Audit entries, newest first; `limit` + 1 entries if there are more."""
    given = {name: value for name, value in filters.items() if value is not None}
    where = " AND ".join(FILTERS[name] for name in given) or "true"
    statement = READ.format(columns=", ".join(field.name for field in fields(AuditEntry)), filters=where)
    async with conn.cursor(row_factory=class_row(AuditEntry)) as cursor:
        await cursor.execute(statement, given | {"limit": limit + 1})
        return await cursor.fetchall()
