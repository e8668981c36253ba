"""The numbers of the overview, in a few statements that read a bounded number of rows each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row, tuple_row

from holdfast.jobs.states import State
from holdfast.jobs.views.filters import CONDITIONS, FIRST_SINCE, STATE_FILTERS, Condition

CAP: Final = 1_000
SAMPLES: Final = 600  # jobs that a chart reads at most
BUCKETS: Final = 60

SHOWN_STATES: Final = (State.PENDING, State.BLOCKED, State.RUNNING, State.SUBMITTED, State.FAILED, State.CANCELLED)
CLAIMABLE = "j.state = 'pending' AND j.run_after IS NULL"
DELAYED = "j.state = 'pending' AND j.run_after IS NOT NULL"
COUNTED: Final = {
    "pending": CLAIMABLE,
    "delayed": DELAYED,
    **{str(state): STATE_FILTERS[state] for state in SHOWN_STATES if state is not State.PENDING},
    "stale": CONDITIONS[Condition.STALE],
    "retrying": f"{DELAYED} AND j.errors > 0",
    "waiting_lock": CONDITIONS[Condition.WAITING_LOCK],
    "cancelling": CONDITIONS[Condition.CANCELLING],
}
# Each branch reads at most CAP + 1 entries of an index. A condition is counted among the first rows of its state.
COUNT = "\nUNION ALL\n".join(
    f"SELECT '{name}', count(*) FROM (SELECT FROM holdfast.jobs j WHERE {condition} LIMIT {CAP} + 1) AS few"
    for name, condition in COUNTED.items()
)


@dataclass(frozen=True, slots=True)
class Tile:
    """A count of the overview; `capped`: there are more."""

    count: int
    capped: bool

    def __str__(self) -> str:
        return f"{self.count:,}{'+' if self.capped else ''}"


async def read_tiles(conn: psycopg.AsyncConnection[Any]) -> dict[str, Tile]:
    """How many jobs are in each state and condition, exact up to the cap."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT)
        return {name: Tile(min(count, CAP), count > CAP) for name, count in await cursor.fetchall()}


# The jobs of a time window are the ids from the first one on, because ids rise with the time. At most SAMPLES of them are read,
# at equal distances: each stands for `step` jobs. Below that, every job is read.
SAMPLE = f"""
    WITH bounds AS MATERIALIZED (
        SELECT {FIRST_SINCE.format(time="clock_timestamp() - %(window)s::interval")} AS low,
               (SELECT max(id) FROM holdfast.jobs) AS high
    ), steps AS MATERIALIZED (
        SELECT low, high, greatest(1, ceil((high - low + 1)::numeric / {SAMPLES}))::bigint AS step FROM bounds WHERE low <= high
    )
    SELECT s.step, j.kind, j.state,
           floor(extract(epoch FROM clock_timestamp() - coalesce(j.finished_at, j.created_at))
                 / extract(epoch FROM %(window)s::interval) * {BUCKETS})::int AS bucket,
           CASE WHEN j.attempt_no = 1 THEN extract(epoch FROM j.claimed_at - j.created_at)::float END AS wait,
           extract(epoch FROM j.finished_at - j.claimed_at)::float AS run
    FROM steps s CROSS JOIN LATERAL generate_series(s.low, s.high, s.step) AS one(id) JOIN holdfast.jobs j ON j.id = one.id
"""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One job of the sample; `step`: how many jobs it stands for."""

    step: int
    kind: str
    state: str
    bucket: int  # 0 is the newest
    wait: float | None
    run: float | None


async def sample(conn: psycopg.AsyncConnection[Any], window: timedelta) -> list[Sampled]:
    """Jobs of this window, evenly spread."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(SAMPLE, {"window": window})
        return [Sampled(*row) for row in await cursor.fetchall()]


HELD = "SELECT kind, count(*) AS running FROM holdfast.jobs WHERE worker_id IS NOT NULL GROUP BY kind LIMIT 200"
# Failed jobs are few or all alike: the newest of them are counted by kind.
FAILING = """
    SELECT kind, count(*) AS failed FROM (
        SELECT kind, finished_at FROM holdfast.jobs WHERE state = 'failed' ORDER BY id DESC LIMIT 500) AS newest
    WHERE finished_at > clock_timestamp() - interval '1 day' GROUP BY kind LIMIT 200
"""
FACTS = """
    SELECT (SELECT count(*) FROM (SELECT FROM holdfast.lock_holders LIMIT 1001) AS few) AS locks_held,
           (SELECT count(*) FROM (SELECT FROM holdfast.lock_wants WHERE waiting LIMIT 1001) AS few) AS lock_waiters,
           (SELECT count(*) FROM holdfast.lock_holders h JOIN holdfast.jobs j ON j.id = h.job_id
            WHERE j.state IN ('completed', 'failed', 'cancelled')) AS left_locks,
           (SELECT count(*) FROM (SELECT crashes, max_crashes FROM holdfast.jobs WHERE state = 'failed'
                                  ORDER BY id DESC LIMIT 500) AS newest WHERE crashes >= max_crashes) AS quarantined,
           (SELECT coalesce(extract(epoch FROM max(clock_timestamp() - next_poll_at)), 0)::float FROM (
                SELECT next_poll_at FROM holdfast.jobs WHERE state = 'submitted' ORDER BY next_poll_at LIMIT 1) AS first
            WHERE next_poll_at < clock_timestamp()) AS poll_lag
"""
WORKERS = """
    SELECT w.name, w.version, w.git_sha, w.concurrency, w.lease_until > clock_timestamp() AS alive,
           w.quiet_at IS NOT NULL AS quiet,
           extract(epoch FROM clock_timestamp() - w.beat_at)::float AS silent_for,
           (SELECT count(*) FROM holdfast.jobs j WHERE j.worker_id = w.id) AS holds
    FROM holdfast.workers w WHERE w.stopped_at IS NULL ORDER BY w.lease_until DESC LIMIT 200
"""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Everything else that the overview shows."""

    running: dict[str, int]  # by kind
    failed: dict[str, int]  # by kind, within a day
    facts: dict[str, Any]
    workers: list[dict[str, Any]]


async def read_numbers(conn: psycopg.AsyncConnection[Any]) -> Numbers:
    """Held jobs and recent failures by kind, locks, and workers."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(HELD)
        running = {row["kind"]: row["running"] for row in await cursor.fetchall()}
        await cursor.execute(FAILING)
        failed = {row["kind"]: row["failed"] for row in await cursor.fetchall()}
        await cursor.execute(FACTS)
        facts = await cursor.fetchone() or {}
        await cursor.execute(WORKERS)
        return Numbers(running, failed, facts, await cursor.fetchall())
