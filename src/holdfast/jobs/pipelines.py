"""Jobs that follow jobs: chain, fan-out, fan-in; and what a pipeline as a whole looks like.

Children are inserted in the transaction that completes their parent, under unique (parent, step). A job that waits for
parents counts them down on its own row. The status of a pipeline is never stored: it is what its jobs say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.rows import tuple_row

from holdfast.crashpoints import dies_inside
from holdfast.database.statements import Statement, Steps
from holdfast.errors import NotFound, UsageError
from holdfast.jobs.enqueue import all_or_none, enqueue, enqueue_many, enqueue_step, run_steps
from holdfast.jobs.model import CLAIM_COLUMNS, Claim, Enqueued, NewJob, holds_and_waits, refuse_no_job, uuid_text
from holdfast.jobs.payload import refuse_bad_text, to_json
from holdfast.jobs.states import ENDED, State
from holdfast.telemetry.trace import carrier

Cursor = psycopg.AsyncCursor[tuple[Any, ...]]


def as_children(claim: Claim, jobs: Sequence[NewJob]) -> list[NewJob]:
    """The jobs as children of the claimed one: they share its pipeline, and each has a step that is its own."""
    steps = [job.step or name_of_step(job, number) for number, job in enumerate(jobs)]
    if len(set(steps)) < len(steps):
        twice = next(step for step in steps if steps.count(step) > 1)
        raise UsageError(f"two jobs that follow job {claim.id} have the step {twice!r}: give each a step of its own, or none")
    return [
        replace(job, parent_id=claim.id, step=step, pipeline_id=claim.pipeline_id)
        for job, step in zip(jobs, steps, strict=True)
    ]


def name_of_step(job: NewJob, number: int = 0) -> str:
    """The name of a step that was given none."""
    return f"{number}:{job.kind}"


async def enqueue_children(
    conn: psycopg.AsyncConnection[Any], claim: Claim, children: Sequence[NewJob], join: NewJob | None
) -> None:
    """Make the children of a job that completes in this transaction, and the one that waits for all of them.

    None, if the pipeline was aborted. An abort holds the row of a running job while it asks it to stop, and our own write
    on that row came first: so whoever aborts after this look also sees what we make here.
    """
    if claim.pipeline_id is not None and await _is_aborted(conn, claim.pipeline_id):
        return
    made = await enqueue_many(conn, as_children(claim, children)) if children else []
    if join is not None:
        (join,) = as_children(claim, [replace(join, step=join.step or f"join:{join.kind}")])
        await enqueue(conn, replace(join, after=(*join.after, *(child.id for child in made))))


IS_ABORTED = "SELECT aborted_at IS NOT NULL FROM holdfast.pipelines WHERE id = %(pipeline_id)s"


async def _is_aborted(conn: psycopg.AsyncConnection[Any], pipeline_id: str) -> bool:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(IS_ABORTED, {"pipeline_id": pipeline_id})
        row = await cursor.fetchone()
    return row is not None and bool(row[0])


# One commit a step: the parent is completed, its child inserted and already claimed for this worker, all fenced by the
# parent's attempt. The child's attempt id comes from us, so that an unknown commit can be looked up by it. It is a claim,
# so a paused kind is not taken along; neither is the child of a job that was asked to stop, whose pipeline may be aborted.
COMPLETE_AND_CHAIN = f"""
    WITH ended AS (
        UPDATE holdfast.jobs j
        SET state = 'completed', attempt_id = NULL, worker_id = NULL, finished_at = clock_timestamp(), result = %(result)s,
            error = NULL, cause = NULL
        WHERE j.id = %(id)s AND j.attempt_id = %(attempt_id)s AND j.ties = 0 AND j.cancel_requested_at IS NULL
          AND NOT EXISTS (SELECT FROM holdfast.controls c WHERE c.kind IN (%(kind)s, '*') AND c.paused_at IS NOT NULL)
        RETURNING j.id, j.attempt_no, j.claimed_at, j.pipeline_id
    ), noted AS (
        INSERT INTO holdfast.history (job_id, move, state, attempt_no, attempt_id, worker_id, claimed_at)
        SELECT id, 'complete', 'completed', attempt_no, %(attempt_id)s, %(worker_id)s, claimed_at FROM ended
    )
    INSERT INTO holdfast.jobs AS j (kind, queue, priority, payload, kind_version, max_attempts, max_crashes, max_runtime,
        pipeline_id, parent_id, step, trace,
        state, attempt_id, attempt_no, fence_token, worker_id, claimed_at, begun_at, deadline_at)
    SELECT %(kind)s, %(queue)s, %(priority)s, %(payload)s, %(kind_version)s, %(max_attempts)s, %(max_crashes)s,
        %(max_runtime)s::interval, pipeline_id, id, %(step)s, %(trace)s,
        'running', %(child_attempt_id)s, 1, nextval('holdfast.fence_token'), %(worker_id)s, clock_timestamp(),
        CASE WHEN %(begins)s THEN clock_timestamp() END,
        CASE WHEN %(begins)s THEN clock_timestamp() + %(max_runtime)s::interval END
    FROM ended
    RETURNING {CLAIM_COLUMNS}
"""


@dies_inside("complete.in_tx_after_child")
async def complete_and_chain(
    conn: psycopg.AsyncConnection[Any], claim: Claim, result: str | None, child: NewJob, *, begins: bool = True
) -> Claim | None:
    """Complete a plain job and hold its one plain child at once. `begins` as in `claim`.

    None: nothing was written, because the job is tied, paused or lost, or its child is there already.
    """
    if not child.is_plain or child.run_after is not None:
        raise UsageError(f"{child.kind} cannot be held at once: it has a lock, a slot, a key, parents or a delay; use `finish`")
    step = child.step or name_of_step(child)
    for text, what in ((child.kind, "kind"), (child.queue, "queue"), (step, "step")):
        refuse_bad_text(text, what)
    parameters = {
        "id": claim.id,
        "attempt_id": claim.attempt_id,
        "worker_id": claim.worker_id,
        "result": result,
        "kind": child.kind,
        "queue": child.queue,
        "priority": child.priority,
        "payload": to_json(child.payload),
        "kind_version": child.kind_version,
        "max_attempts": child.max_attempts,
        "max_crashes": child.max_crashes,
        "max_runtime": child.max_runtime,
        "step": step,
        "trace": carrier(),
        "child_attempt_id": str(uuid4()),
        "begins": begins,
    }
    cursor = conn.cursor(row_factory=tuple_row)
    try:
        await cursor.execute(COMPLETE_AND_CHAIN, parameters, prepare=True)
    except psycopg.errors.UniqueViolation:
        return None
    row = await cursor.fetchone()
    return None if row is None else Claim._make(row)


# ---------------------------------------------------------------------------------------------------------------------
# Building one
# ---------------------------------------------------------------------------------------------------------------------

CREATE_PIPELINE = "INSERT INTO holdfast.pipelines (id, name) VALUES (%(id)s, %(name)s) ON CONFLICT DO NOTHING RETURNING id"


@dataclass(frozen=True, slots=True)
class Step:
    """A place in a pipeline that is being built."""

    number: int


@dataclass(slots=True)
class Pipeline:
    """A graph of jobs, enqueued as one: nothing of it exists before `enqueue`, all of it after."""

    name: str
    id: str = field(default_factory=lambda: str(uuid4()))
    _jobs: list[tuple[NewJob, tuple[Step, ...]]] = field(default_factory=list)

    def add(self, job: NewJob, *, after: Step | Sequence[Step] = ()) -> Step:
        """Add a job that runs when the steps it comes after have completed: none, one (chain) or many (fan-in)."""
        refuse_no_job(job)
        parents = (after,) if isinstance(after, Step) else tuple(after)
        if any(parent.number >= len(self._jobs) for parent in parents):
            raise UsageError("`after` names a step of another pipeline; add the parents to this one first")
        if parents and job.rejects:
            raise holds_and_waits(job, "steps to wait for")
        self._jobs.append((job, parents))
        return Step(len(self._jobs) - 1)

    async def enqueue(self, tx: Any) -> Sequence[Enqueued]:
        """Make the pipeline and all of its jobs in this transaction: a psycopg connection or an SQLAlchemy session."""
        if not self._jobs:
            raise UsageError(f"pipeline {self.name!r} has no jobs; add one first")
        return await run_steps(tx, all_or_none(self._steps()), in_one=True)

    def _steps(self) -> Steps[Sequence[Enqueued]]:
        if not (yield Statement(CREATE_PIPELINE, {"id": self.id, "name": self.name})):
            raise UsageError(f"pipeline {self.name!r} ({self.id}) was enqueued before; make a new Pipeline for every run")
        made: list[Enqueued] = []
        for job, parents in self._jobs:
            ids = tuple(made[parent.number].id for parent in parents)
            made.append((yield from enqueue_step(replace(job, pipeline_id=self.id, after=(*job.after, *ids)))))
        return made


# ---------------------------------------------------------------------------------------------------------------------
# Looking at one, and stopping it
# ---------------------------------------------------------------------------------------------------------------------


class PipelineStatus(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    PARTIAL = "partial"  # everything has ended, some of it well
    FAILED = "failed"
    CANCELLED = "cancelled"


def status_of(counts: dict[State, int]) -> PipelineStatus:
    """The status that follows from how many jobs are in which state. Pure."""
    if any(counts.get(state, 0) for state in State if state not in ENDED):
        return PipelineStatus.RUNNING
    completed, failed = counts.get(State.COMPLETED, 0), counts.get(State.FAILED, 0)
    cancelled = counts.get(State.CANCELLED, 0)
    if not failed and not cancelled:
        return PipelineStatus.COMPLETED
    if completed:
        return PipelineStatus.PARTIAL
    return PipelineStatus.FAILED if failed else PipelineStatus.CANCELLED


LIST_PIPELINES = """
    SELECT p.id::text, p.name, p.created_at, p.aborted_at, p.reason FROM holdfast.pipelines p
    WHERE %(before)s::timestamptz IS NULL OR (p.created_at, p.id) < (%(before)s::timestamptz, %(before_id)s::uuid)
    ORDER BY p.created_at DESC, p.id DESC LIMIT %(limit)s
"""
COUNT_OF_PIPELINES = """
    SELECT pipeline_id::text, state, count(*) FROM holdfast.jobs WHERE pipeline_id = ANY (%(ids)s::uuid[]) GROUP BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class PipelineLine:
    """A pipeline in a list."""

    id: str
    name: str
    created_at: datetime
    aborted_at: datetime | None
    reason: str | None
    status: PipelineStatus
    counts: dict[State, int]


async def list_pipelines(
    conn: psycopg.AsyncConnection[Any], *, limit: int = 50, before: tuple[Any, str] | None = None
) -> list[PipelineLine]:
    """Pipelines, newest first; `before` is the time and the id of the last one of the page before."""
    when, last = before or (None, None)
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(LIST_PIPELINES, {"before": when, "before_id": last, "limit": limit})
        rows = await cursor.fetchall()
        await cursor.execute(COUNT_OF_PIPELINES, {"ids": [row[0] for row in rows]})
        counts: dict[str, dict[State, int]] = {row[0]: {} for row in rows}
        for pipeline_id, state, count in await cursor.fetchall():
            counts[pipeline_id][State(state)] = count
    return [PipelineLine(*(*row, status_of(counts[row[0]]), counts[row[0]])) for row in rows]


READ_PIPELINE = """
    SELECT p.name, j.state, count(j.id) FROM holdfast.pipelines p
    LEFT JOIN holdfast.jobs j ON j.pipeline_id = p.id
    WHERE p.id = %(id)s GROUP BY p.name, j.state
"""


@dataclass(frozen=True, slots=True)
class PipelineView:
    id: str
    name: str
    status: PipelineStatus
    counts: dict[State, int]


async def read_pipeline(conn: psycopg.AsyncConnection[Any], pipeline_id: str) -> PipelineView:
    """What the rows of a pipeline's jobs say about it now."""
    pipeline_id = uuid_text(pipeline_id, "pipeline_id")
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_PIPELINE, {"id": pipeline_id})
        rows = await cursor.fetchall()
    if not rows:
        raise NotFound(f"there is no pipeline {pipeline_id}")
    counts = {State(state): count for _, state, count in rows if state is not None}
    return PipelineView(pipeline_id, rows[0][0], status_of(counts), counts)
