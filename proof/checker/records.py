"""The system's log, read once after the schedule has ended, and joined with the witness's log. Called by: the checker.

`Execution` has both logs and computes once what most invariants need.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

import psycopg
from proof.checker.witness import OK, Event, Witness
from psycopg.rows import class_row

ENDED = frozenset({"completed", "failed", "cancelled"})
WRITES = frozenset({"begin", "progress", "checkpoint", "plan", "confirm", "adopt"})
TAKEN = frozenset({"rescue", "recover", "cancel", "release"})  # what others do to an attempt


@dataclass(frozen=True, slots=True)
class JobRow:
    """A row of `holdfast.jobs`."""

    id: int
    state: str = "completed"
    token: int | None = None
    attempt_no: int = 0
    errors: int = 0
    max_attempts: int = 3
    crashes: int = 0
    max_crashes: int = 3
    created_xid: str = "0"
    slot_key: str | None = None
    parent_id: int | None = None
    step: str | None = None
    if_parent_fails: str = "cancel"
    generation: int = 0
    kind: str = "k"
    priority: int = 0

    @property
    def turn(self) -> tuple[int, int]:
        """Its place in a line."""
        return self.priority, self.id


@dataclass(frozen=True, slots=True)
class MoveRow:
    """A row of `holdfast.history`."""

    id: int
    job_id: int
    move: str
    state: str
    at: datetime
    xid: str = "0"
    attempt_no: int | None = None
    attempt_id: str | None = None
    worker_id: str | None = None
    claimed_at: datetime | None = None
    actor: str | None = None
    reason: str | None = None
    detail: dict[str, Any] | None = None

    @property
    def is_crash(self) -> bool:
        """Whether it cost a crash: one that happened beside others never costs the last, one before the begin costs none."""
        return self.is_taken_for_a_cause and (self.detail or {}).get("counted", True)

    @property
    def is_taken_for_a_cause(self) -> bool:
        return self.attempt_id is not None and self.detail is not None and "cause" in self.detail

    @property
    def is_end(self) -> bool:
        """Whether it ended the job, not just an attempt."""
        return self.state in ENDED and self.move != "act"


@dataclass(frozen=True, slots=True)
class WantRow:
    job_id: int
    key: str
    most: int | None
    when_busy: str


@dataclass(frozen=True, slots=True)
class EffectRow:
    job_id: int
    attempt_id: str
    tag: str
    state: str
    temporary: bool


@dataclass(slots=True)
class Records:
    """Every row of the system that belongs to one schedule."""

    jobs: list[JobRow] = field(default_factory=list)
    moves: list[MoveRow] = field(default_factory=list)
    wants: list[WantRow] = field(default_factory=list)
    holders: list[tuple[Any, ...]] = field(default_factory=list)  # key, job
    dependencies: list[tuple[Any, ...]] = field(default_factory=list)  # parent, job
    effects: list[EffectRow] = field(default_factory=list)
    published: list[tuple[Any, ...]] = field(default_factory=list)  # job, attempt


JOBS = """
    SELECT id, state, (payload->>'n')::int AS token, attempt_no, errors, max_attempts, crashes, max_crashes,
           created_xid::text, slot_key, parent_id, step, if_parent_fails, generation, kind, priority
    FROM holdfast.jobs WHERE id > %(base)s ORDER BY id
"""
MOVES = """
    SELECT id, job_id, move, state, at, xid::text, attempt_no, attempt_id::text, worker_id::text, claimed_at, actor, reason,
           detail
    FROM holdfast.history WHERE job_id > %(base)s ORDER BY id
"""
WANTS = "SELECT job_id, key, most, when_busy FROM holdfast.lock_wants WHERE job_id > %(base)s"
HOLDERS = "SELECT key, job_id FROM holdfast.lock_holders WHERE job_id > %(base)s"
DEPENDENCIES = "SELECT parent_id, job_id FROM holdfast.dependencies WHERE job_id > %(base)s ORDER BY 1, 2"
EFFECTS = "SELECT job_id, attempt_id::text, tag, state, temporary FROM holdfast.effects WHERE job_id > %(base)s"
PUBLISHED = "SELECT job_id, attempt_id::text FROM proof.published WHERE job_id > %(base)s"


async def read_records(conn: psycopg.AsyncConnection[Any], base: int) -> Records:
    """Everything above `base`."""
    where = {"base": base}

    async def rows(row: type[Any], statement: str) -> list[Any]:
        async with conn.cursor(row_factory=class_row(row)) as cursor:
            await cursor.execute(statement, where, prepare=True)
            return await cursor.fetchall()

    async def tuples(statement: str) -> list[tuple[Any, ...]]:
        return await (await conn.execute(statement, where, prepare=True)).fetchall()

    return Records(
        await rows(JobRow, JOBS),
        await rows(MoveRow, MOVES),
        await rows(WantRow, WANTS),
        await tuples(HOLDERS),
        await tuples(DEPENDENCIES),
        await rows(EffectRow, EFFECTS),
        await tuples(PUBLISHED),
    )


class Execution:
    """Both logs of one schedule."""

    def __init__(self, records: Records, witness: Witness, outside: frozenset[str] = frozenset()) -> None:
        self.records, self.witness, self.outside = records, witness, outside

    @cached_property
    def jobs(self) -> dict[int, JobRow]:
        return {job.id: job for job in self.records.jobs}

    @cached_property
    def moves(self) -> dict[int, list[MoveRow]]:
        """The history of each job, oldest first."""
        grouped: dict[int, list[MoveRow]] = defaultdict(list)
        for move in sorted(self.records.moves, key=lambda move: move.id):
            grouped[move.job_id].append(move)
        return grouped

    @cached_property
    def ends(self) -> dict[str, list[MoveRow]]:
        """How each attempt ended, by the system's account: one row, if all is well."""
        grouped: dict[str, list[MoveRow]] = defaultdict(list)
        for move in self.records.moves:
            if move.attempt_id is not None and move.move != "act":
                grouped[move.attempt_id].append(move)
        return grouped

    @cached_property
    def claims(self) -> dict[str, Event]:
        """Each attempt that somebody was given."""
        return {event.attempt: event for event in self.witness.of("claim") if event.attempt}

    @cached_property
    def claims_of(self) -> dict[int, list[Event]]:
        """The attempts of each job, in the order of their numbers."""
        grouped: dict[int, list[Event]] = defaultdict(list)
        for event in self.claims.values():
            grouped[event.job or 0].append(event)
        for listed in grouped.values():
            listed.sort(key=lambda event: event.detail["claim"].attempt_no)
        return grouped

    @cached_property
    def taken(self) -> dict[int, list[Event]]:
        """What others did to a job that may have ended an attempt of it."""
        grouped: dict[int, list[Event]] = defaultdict(list)
        for event in self.witness.of(*TAKEN):
            if event.outcome == OK:
                grouped[event.job or 0].append(event)
        return grouped

    @cached_property
    def finished(self) -> dict[str, Event]:
        """The accepted end of each attempt that its own worker ended."""
        return {event.attempt: event for event in self.witness.of("end") if event.outcome == OK and event.attempt}

    @cached_property
    def enders(self) -> dict[str, list[Event]]:
        """Everything that may have ended an attempt, by the witness's account."""
        found = {}
        for attempt, claim in self.claims.items():
            others = [event for event in self.taken.get(claim.job or 0, ()) if event.acked > claim.begun]
            own = self.finished.get(attempt)
            found[attempt] = [*others, own] if own else others
        return found

    def surely_ended_before(self, attempt: str, event: Event) -> bool:
        """Whether the attempt was over, beyond doubt, when the event began."""
        if attempt in self.finished and self.finished[attempt].before(event):
            return True
        claim = self.claims.get(attempt)
        if claim is None:
            return False
        taken = [other for other in self.taken.get(claim.job or 0, ()) if claim.before(other) and other.before(event)]
        return bool(taken)

    def surely_alive_after(self, attempt: str, event: Event) -> bool:
        """Whether the attempt still held its job, beyond doubt, when the event was acknowledged."""
        return all(ender.begun > event.acked for ender in self.enders.get(attempt, ()))
