"""Memory that graph servers use, as the loop `resource_monitor` samples it, and what that loop has done before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import class_row, tuple_row

Conn = psycopg.AsyncConnection[Any]


class Used(NamedTuple):
    """What one graph server uses now."""

    instance_id: int
    start_token: str
    memory_bytes: int
    limit_mb: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory in use at one time."""

    at: datetime
    memory_bytes: int
    limit_mb: int


@dataclass(frozen=True, slots=True)
class History:
    """What the resource monitor has done to an instance so far, from its events."""

    steps: int
    last_at: datetime | None


# Every table is read by the ids of the page alone: a plan without statistics would read all of it for each page.
STORE = """
    WITH seen AS (
        SELECT * FROM unnest(%(ids)s::bigint[], %(tokens)s::uuid[], %(bytes)s::bigint[], %(limits)s::int[])
            AS seen (id, start_token, memory_bytes, limit_mb)
    ), kept AS (
        INSERT INTO holdfast.graph_samples (instance_id, start_token, memory_bytes, limit_mb)
        SELECT g.id, g.start_token, seen.memory_bytes, seen.limit_mb
        FROM holdfast.graph_instances g JOIN seen ON seen.id = g.id AND seen.start_token = g.start_token
        WHERE g.id = ANY (%(ids)s::bigint[]) AND g.state = 'running'
    ), pruned AS (
        DELETE FROM holdfast.graph_samples s
        WHERE s.instance_id = ANY (%(ids)s::bigint[])
          AND (s.at < clock_timestamp() - interval '10 minutes'
               OR NOT EXISTS (SELECT FROM seen WHERE seen.id = s.instance_id AND seen.start_token = s.start_token))
    )
    UPDATE holdfast.graph_instances g SET memory_bytes = seen.memory_bytes FROM seen
    WHERE g.id = ANY (%(ids)s::bigint[]) AND g.id = seen.id AND g.start_token = seen.start_token AND g.state = 'running'
"""


async def store(conn: Conn, used: Sequence[Used]) -> None:
    """Store samples of running instances, and forget old ones."""
    if used:
        names = ("ids", "tokens", "bytes", "limits")
        await conn.execute(STORE, dict(zip(names, map(list, zip(*used, strict=True)), strict=True)))


SAMPLES = """
    SELECT s.instance_id, s.at, s.memory_bytes, s.limit_mb FROM holdfast.graph_samples s
    JOIN holdfast.graph_instances g ON g.id = s.instance_id AND g.start_token = s.start_token
    WHERE s.instance_id = ANY (%(ids)s) AND g.id = ANY (%(ids)s) AND s.limit_mb = g.memory_mb
"""


async def samples_of(conn: Conn, instance_ids: Sequence[int]) -> dict[int, list[Sample]]:
    """The samples of the current start and size of these instances. A resize makes earlier samples count no more."""
    found: dict[int, list[Sample]] = {}
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(SAMPLES, {"ids": list(instance_ids)})
        for instance_id, *sample in await cursor.fetchall():
            found.setdefault(instance_id, []).append(Sample(*sample))
    return found


HISTORY = """
    SELECT count(*) FILTER (WHERE event_type <> 'resize_failed')::int AS steps, max(created_at) AS last_at
    FROM holdfast.graph_events
    WHERE instance_id = %(id)s AND event_type IN ('memory_upgraded', 'oom_recovered', 'resize_failed')
      AND (details ->> 'because' LIKE 'automatic%%' OR event_type = 'resize_failed')
"""


async def history_of(conn: Conn, instance_id: int) -> History:
    """The automatic steps of an instance."""
    async with conn.cursor(row_factory=class_row(History)) as cursor:
        await cursor.execute(HISTORY, {"id": instance_id})
        found = await cursor.fetchone()
    assert found is not None
    return found
