"""Pipelines: jobs that follow other jobs as a chain, fan-out or fan-in, and the status of a pipeline.

Children are inserted in the transaction that completes their parent, with a unique (parent, step). A job that waits for parents
has the number of open parents on its row. The status of a pipeline is computed from the states of its jobs.
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
from holdfast.jobs.current import current_client
from holdfast.jobs.enqueue import all_or_none, enqueue, enqueue_many, enqueue_step, run_steps
from holdfast.jobs.model import CLAIM_COLUMNS, Claim, Enqueued, NewJob, holds_and_waits, refuse_no_job, uuid_text
from holdfast.jobs.payload import refuse_bad_text, to_json
from holdfast.jobs.states import ENDED, State
from holdfast.telemetry.trace import carrier

Cursor = psycopg.AsyncCursor[tuple[Any, ...]]


def as_children(claim: Claim, jobs: Sequence[NewJob]) -> list[NewJob]:
    """The jobs as children of the claimed one: they share its pipeline, and each has a unique step."""
    steps = [job.step or name_of_step(job, number) for number, job in enumerate(jobs)]
    if len(set(steps)) < len(steps):
        twice = next(step for step in steps if steps.count(step) > 1)
        raise UsageError(f"two children of job {claim.id} have the step {twice!r}; use different steps, or none")
    return [
        replace(job, parent_id=claim.id, step=step, pipeline_id=claim.pipeline_id)
        for job, step in zip(jobs, steps, strict=True)
    ]


def name_of_step(job: NewJob, number: int = 0) -> str:
    """The default name of a step."""
    return f"{number}:{job.kind}"


async def enqueue_children(
    conn: psycopg.AsyncConnection[Any], claim: Claim, children: Sequence[NewJob], join: NewJob | None
) -> None:
    """Enqueue the children of a job that completes in this transaction, and the join that waits for all of them.

    A fan-out of a job without a pipeline starts one, so that lists show it and an operator can abort it.
    If the pipeline was aborted, no children are made. An abort locks the rows of running jobs, and this transaction has written
    to the row of the claimed job before, so a later abort also sees the children.
    """
    if claim.pipeline_id is not None and await _is_aborted(conn, claim.pipeline_id):
        return
    if claim.pipeline_id is None and (len(children) > 1 or join is not None):
        claim = claim._replace(pipeline_id=await _start_pipeline(conn, claim))
    made = await enqueue_many(conn, as_children(claim, children)) if children else []
    if join is not None:
        (join,) = as_children(claim, [replace(join, step=join.step or f"join:{join.kind}")])
        await enqueue(conn, replace(join, after=(*join.after, *(child.id for child in made))))


START_PIPELINE = """
    WITH started AS (INSERT INTO holdfast.pipelines (id, name) VALUES (gen_random_uuid(), %(name)s) RETURNING id)
    UPDATE holdfast.jobs j SET pipeline_id = started.id FROM started WHERE j.id = %(id)s RETURNING started.id::text
"""


async def _start_pipeline(conn: psycopg.AsyncConnection[Any], claim: Claim) -> str:
    """Create a pipeline named after the job's kind, with the job as its first. The caller has locked the job's row."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(START_PIPELINE, {"id": claim.id, "name": claim.kind})
        ((pipeline_id,),) = await cursor.fetchall()
    return str(pipeline_id)


IS_ABORTED = "SELECT aborted_at IS NOT NULL FROM holdfast.pipelines WHERE id = %(pipeline_id)s"


async def _is_aborted(conn: psycopg.AsyncConnection[Any], pipeline_id: str) -> bool:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(IS_ABORTED, {"pipeline_id": pipeline_id})
        row = await cursor.fetchone()
    return row is not None and bool(row[0])


# One commit for each step: the parent is completed, its child is inserted and claimed for this worker, fenced by the parent's
# attempt. The client generates the child's attempt id, so that the outcome of a lost commit can be read. As this is a claim, it
# does not apply to paused kinds, nor to a job with a cancel request, whose pipeline may be aborted.
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
    """Complete a plain job, and enqueue and claim its one plain child in the same statement. `begins` as in `claim`.

    None: nothing was written, because the job is tied, paused or lost, or its child exists already.
    """
    if not child.is_plain or child.run_after is not None:
        raise UsageError(
            f"{child.kind} cannot be claimed at once: it has a lock, a slot, a key, parents or a delay; use `finish`"
        )
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
    """A job in a pipeline that is being built."""

    number: int


@dataclass(slots=True)
class Pipeline:
    """A graph of jobs that is enqueued in one transaction: no job exists before `enqueue`, all exist after it."""

    name: str
    id: str = field(default_factory=lambda: str(uuid4()))
    _jobs: list[tuple[NewJob, tuple[Step, ...]]] = field(default_factory=list)

    def add(self, job: NewJob, *, after: Step | Sequence[Step] = ()) -> Step:
        """Add a job that runs when the steps in `after` have completed: none, one (chain) or many (fan-in)."""
        refuse_no_job(job)
        parents = (after,) if isinstance(after, Step) else tuple(after)
        if any(parent.number >= len(self._jobs) for parent in parents):
            raise UsageError("`after` names a step of another pipeline; add the parents to this one first")
        if parents and job.rejects:
            raise holds_and_waits(job, "steps to wait for")
        self._jobs.append((job, parents))
        return Step(len(self._jobs) - 1)

    async def enqueue(self, tx: Any = None) -> Sequence[Enqueued]:
        """Enqueue the pipeline with all its jobs in this transaction: a psycopg connection or an SQLAlchemy session.

        Without `tx`: in a transaction of the surrounding `holdfast.connect()` or worker, as every enqueue.
        """
        if not self._jobs:
            raise UsageError(f"pipeline {self.name!r} has no jobs; add one first")
        if tx is None:
            return await current_client().enqueue_pipeline(self)
        return await run_steps(tx, all_or_none(self._steps()), in_one=True)

    def _steps(self) -> Steps[Sequence[Enqueued]]:
        if not (yield Statement(CREATE_PIPELINE, {"id": self.id, "name": self.name})):
            raise UsageError(f"pipeline {self.name!r} ({self.id}) was already enqueued; create a new Pipeline for every run")
        made: list[Enqueued] = []
        for job, parents in self._jobs:
            ids = tuple(made[parent.number].id for parent in parents)
            made.append((yield from enqueue_step(replace(job, pipeline_id=self.id, after=(*job.after, *ids)))))
        return made


# ---------------------------------------------------------------------------------------------------------------------
# Reading pipelines
# ---------------------------------------------------------------------------------------------------------------------


class PipelineStatus(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    PARTIAL = "partial"  # all jobs have ended, some of them completed
    FAILED = "failed"
    CANCELLED = "cancelled"


def status_of(counts: dict[State, int]) -> PipelineStatus:
    """The status for these numbers of jobs in each state. Pure."""
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
    """Pipelines, newest first; `before`: the time and the id of the last one of the previous page."""
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
    """A pipeline with its current status and jobs."""
    pipeline_id = uuid_text(pipeline_id, "pipeline_id")
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_PIPELINE, {"id": pipeline_id})
        rows = await cursor.fetchall()
    if not rows:
        raise NotFound(f"there is no pipeline {pipeline_id}")
    counts = {State(state): count for _, state, count in rows if state is not None}
    return PipelineView(pipeline_id, rows[0][0], status_of(counts), counts)
