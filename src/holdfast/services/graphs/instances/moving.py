"""Instances page by page, with the state of the job that moves each. Called by: the loops."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row, tuple_row

from holdfast.services.graphs.instances.rows import COLUMNS, Instance
from holdfast.services.graphs.states import InstanceState

Conn = psycopg.AsyncConnection[Any]
PAGE: Final = 100
LIVE: Final = ("blocked", "pending", "running", "submitted")


@dataclass(frozen=True, slots=True)
class Moved:
    """An instance, the state of its job, and the database's time when it was read."""

    instance: Instance
    job_state: str | None  # None: the job was pruned
    now: datetime

    @property
    def id(self) -> int:
        return self.instance.id

    @property
    def job_is_live(self) -> bool:
        return self.job_state in LIVE


READ = f"""
    SELECT {COLUMNS}, (SELECT j.state FROM holdfast.jobs j WHERE j.id = g.job_id) AS job_state, clock_timestamp() AS now
    FROM holdfast.graph_instances g WHERE g.id > %(after)s AND g.state = ANY (%(states)s)
    ORDER BY g.id LIMIT %(limit)s
"""
READ_ONE = READ.replace("g.id > %(after)s", "g.id = %(after)s")


async def read_page(conn: Conn, *, after: int, states: Collection[InstanceState]) -> list[Moved]:
    """The next instances in these states, by id; fewer than a page if there are no more."""
    return await _read(conn, READ, after, states)


async def one(conn: Conn, instance_id: int, states: Collection[InstanceState]) -> Moved | None:
    """This instance, if it is in one of these states."""
    return next(iter(await _read(conn, READ_ONE, instance_id, states)), None)


async def now(conn: Conn) -> datetime:
    """The database's time."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute("SELECT clock_timestamp()")
        ((time,),) = await cursor.fetchall()
    assert isinstance(time, datetime)
    return time


async def _read(conn: Conn, statement: str, after: int, states: Collection[InstanceState]) -> list[Moved]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(statement, {"after": after, "states": list(states), "limit": PAGE})
        found = await cursor.fetchall()
    return [Moved(job_state=row.pop("job_state"), now=row.pop("now"), instance=Instance(**row)) for row in found]
