"""Limits on instances: count and memory, per owner and in all. Exact under concurrency.

Whoever adds to what is counted takes one advisory lock until its transaction ends, and counts after it has the lock. So two
creates never both see the last free place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import Refused
from holdfast.jobs.config import value_of
from holdfast.services.graphs import limits
from holdfast.services.graphs.states import ACTIVE

Conn = psycopg.AsyncConnection[Any]
MB_PER_GB = 1024


class LimitExceeded(Refused):
    """An instance would exceed a limit. The message names the limit and the current value."""

    slug = "limit-exceeded"

    def __init__(self, limit_type: str, current: int, added: int, allowed: int) -> None:
        unit = " GiB" if limit_type.endswith("_gb") else ""
        super().__init__(
            f"the limit {limit_type} is {allowed}{unit}, {current}{unit} are in use, and this needs {added}{unit} more; "
            "delete or suspend an instance, or ask an operator to raise the limit"
        )
        self.limit_type, self.current, self.allowed = limit_type, current, allowed

    def members(self) -> dict[str, Any]:
        return {"limit_type": self.limit_type, "current_count": self.current, "max_allowed": self.allowed}


@dataclass(frozen=True, slots=True)
class Usage:
    """What is in use now, and what is allowed. Memory is in MiB."""

    owner_count: int
    total_count: int
    owner_memory: int
    total_memory: int
    per_owner: int
    cluster_total: int
    per_owner_memory: int
    cluster_memory: int

    def first_exceeded(self, *, count: int, memory_mb: int) -> LimitExceeded | None:
        """The first limit that so much more would exceed. Pure."""
        checks = (
            (limits.PER_OWNER, self.owner_count, count, self.per_owner, 1),
            (limits.TOTAL, self.total_count, count, self.cluster_total, 1),
            (limits.OWNER_MEMORY, self.owner_memory, memory_mb, self.per_owner_memory, MB_PER_GB),
            (limits.TOTAL_MEMORY, self.total_memory, memory_mb, self.cluster_memory, MB_PER_GB),
        )
        for name, current, added, allowed, unit in checks:
            if added > 0 and current + added > allowed:
                return LimitExceeded(name, -(-current // unit), -(-added // unit), allowed // unit)
        return None


COUNT = """
    SELECT count(*) FILTER (WHERE owner = %(owner)s), count(*),
           coalesce(sum(greatest(memory_mb, wanted_memory_mb)) FILTER (WHERE owner = %(owner)s), 0)::bigint,
           coalesce(sum(greatest(memory_mb, wanted_memory_mb)), 0)::bigint
    FROM holdfast.graph_instances WHERE state = ANY (%(active)s)
"""


async def usage(conn: Conn, owner: str) -> Usage:
    """What this owner and all owners use now."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT, {"owner": owner, "active": list(ACTIVE)})
        ((owner_count, total_count, owner_memory, total_memory),) = await cursor.fetchall()
    return Usage(
        *(owner_count, total_count, owner_memory, total_memory),
        await value_of(conn, limits.PER_OWNER),
        await value_of(conn, limits.TOTAL),
        await value_of(conn, limits.OWNER_MEMORY) * MB_PER_GB,
        await value_of(conn, limits.TOTAL_MEMORY) * MB_PER_GB,
    )


LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('holdfast.graph_instances.limits', 0))"


async def admit(conn: Conn, owner: str, *, count: int = 0, memory_mb: int = 0) -> None:
    """Reserve so much more for this owner, or raise `LimitExceeded`. The caller writes it in the same transaction."""
    await conn.execute(LOCK)
    exceeded = (await usage(conn, owner)).first_exceeded(count=count, memory_mb=memory_mb)
    if exceeded is not None:
        raise exceeded


async def refuse_hopeless(conn: Conn, owner: str, *, count: int = 0, memory_mb: int = 0) -> None:
    """The same without the lock and without a reservation: refuses early what would be refused later."""
    exceeded = (await usage(conn, owner)).first_exceeded(count=count, memory_mb=memory_mb)
    if exceeded is not None:
        raise exceeded


async def largest_instance_mb(conn: Conn) -> int:
    """The most memory that one instance may get, in MiB."""
    return await value_of(conn, limits.INSTANCE_MEMORY) * MB_PER_GB
