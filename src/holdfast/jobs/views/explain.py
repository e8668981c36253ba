"""Explain in one sentence why a job is in its state, with the job or worker it waits for. Called by: the API, the command line,
the client.

Facts are read in two statements. A pure function makes the sentence, so that every case can be tested as a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import class_row, tuple_row

from holdfast.errors import NotFound
from holdfast.jobs.begin import HAS_BEGUN
from holdfast.jobs.model import JobId
from holdfast.telemetry.error_text import one_line

FACTS = f"""
    SELECT j.id, j.kind, j.queue, j.state, j.waiting_for, j.attempt_no, j.errors, j.max_attempts, j.crashes, j.max_crashes,
        j.cause, j.error, j.parents_left, j.message, j.poll_count, j.alone,
        CASE WHEN j.alone THEN (SELECT (h.detail->>'beside')::int FROM holdfast.history h
            WHERE h.job_id = j.id AND h.detail ? 'beside' ORDER BY h.id DESC LIMIT 1) END AS beside,
        CASE WHEN j.run_after IS NOT NULL THEN (SELECT h.move FROM holdfast.history h
            WHERE h.job_id = j.id AND h.attempt_id IS NOT NULL ORDER BY h.id DESC LIMIT 1) END AS came_back_by,
        j.run_after - clock_timestamp() AS due_in,
        clock_timestamp() - CASE WHEN {HAS_BEGUN} THEN j.begun_at ELSE j.claimed_at END AS running_for,
        -- It is not known to have begun, and its worker holds more jobs than it has lanes.
        j.state = 'running' AND NOT {HAS_BEGUN} AND w.concurrency <
            (SELECT count(*) FROM holdfast.jobs h WHERE h.worker_id = w.id AND h.submitted_at IS NULL) AS held_ahead,
        j.next_poll_at - clock_timestamp() AS poll_in,
        clock_timestamp() - j.finished_at AS ended_ago,
        j.cancel_requested_at IS NOT NULL AS cancelling,
        w.name AS worker, w.lease_until - clock_timestamp() AS lease_left,
        -- A placeholder row counts as stopped until its lease expires (unregistered.py).
        w.id IS NOT NULL AND (w.stopped_at IS NULL OR w.lease_until <= clock_timestamp()) AS registered,
        c.kind AS paused_as, c.reason AS pause_reason, c.actor AS pause_actor,
        (SELECT count(*) FROM (SELECT FROM holdfast.jobs a WHERE a.state = 'pending' AND a.run_after IS NULL
            AND a.queue = j.queue AND a.kind = j.kind AND (a.priority, a.id) < (j.priority, j.id) LIMIT 1001) AS few) AS ahead,
        j.kind_version, EXISTS (SELECT FROM holdfast.kinds k WHERE k.kind = j.kind) AS published, alive.*
    FROM holdfast.jobs j
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE a.quiet_at IS NULL) AS workers_alive,
            count(*) FILTER (WHERE a.quiet_at IS NOT NULL) AS workers_quiet,
            max((a.kinds->>j.kind)::int) AS known_version,
            count(*) FILTER (WHERE able) AS workers_able,
            -- Polls of an engine use no lane.
            count(*) FILTER (WHERE able AND a.concurrency <=
                (SELECT count(*) FROM holdfast.jobs h WHERE h.worker_id = a.id AND h.submitted_at IS NULL)) AS workers_busy,
            coalesce(bool_or(serves) FILTER (WHERE a.kinds ? j.kind), true) AS queue_served,
            ARRAY(SELECT DISTINCT unnest(o.queues) FROM holdfast.workers o
                WHERE o.lease_until > clock_timestamp() AND o.stopped_at IS NULL AND o.kinds ? j.kind
                ORDER BY 1 LIMIT %(named)s) AS queues_alive,
            CASE WHEN bool_and(a.kinds <> '{{}}') THEN ARRAY(SELECT DISTINCT known.kind FROM holdfast.workers o,
                jsonb_object_keys(o.kinds) AS known(kind) WHERE o.lease_until > clock_timestamp() AND o.stopped_at IS NULL
                ORDER BY known.kind LIMIT %(named)s) END AS kinds_alive
        FROM holdfast.workers a
        CROSS JOIN LATERAL (SELECT a.queues IS NULL OR j.queue = ANY (a.queues)) AS s(serves)
        CROSS JOIN LATERAL (SELECT serves AND a.quiet_at IS NULL AND (a.kinds->>j.kind)::int >= j.kind_version) AS b(able)
        WHERE a.lease_until > clock_timestamp() AND a.stopped_at IS NULL
    ) AS alive
    LEFT JOIN holdfast.workers w ON w.id = j.worker_id
    LEFT JOIN holdfast.controls c ON c.kind IN (j.kind, '*') AND c.paused_at IS NOT NULL
    WHERE j.id = %(id)s ORDER BY c.kind DESC LIMIT 1
"""
NAMED = 5
UNDO_QUIET = "`holdfast worker quiet ID --undo`, or start another."
WAITS_FOR_LOCK = """
    SELECT w.key, h.job_id, other.kind, worker.name, worker.lease_until - clock_timestamp(),
           (SELECT count(*) FROM (SELECT FROM holdfast.lock_wants o WHERE o.key = w.key AND o.waiting
              AND (o.priority, o.job_id) < (w.priority, w.job_id) LIMIT 1001) AS few),
           next.job_id, next.kind
    FROM holdfast.lock_wants w
    LEFT JOIN LATERAL (SELECT o.job_id, n.kind FROM holdfast.lock_wants o JOIN holdfast.jobs n ON n.id = o.job_id
        WHERE o.key = w.key AND o.waiting AND (o.priority, o.job_id) < (w.priority, w.job_id)
        ORDER BY o.priority, o.job_id LIMIT 1) AS next ON true
    LEFT JOIN holdfast.lock_holders h ON h.key = w.key
    LEFT JOIN holdfast.jobs other ON other.id = h.job_id
    LEFT JOIN holdfast.workers worker ON worker.id = other.worker_id
    WHERE w.job_id = %(id)s AND w.waiting ORDER BY h.taken_at LIMIT 1
"""
WAITS_FOR_SLOT = """
    SELECT other.slot_key, other.id, other.kind, worker.name, worker.lease_until - clock_timestamp(), 0, NULL, NULL
    FROM holdfast.jobs j JOIN holdfast.jobs other ON other.slot_key = j.slot_key AND other.is_current
    LEFT JOIN holdfast.workers worker ON worker.id = other.worker_id
    WHERE j.id = %(id)s
"""
WAITS_FOR_PARENTS = """
    SELECT p.id, p.kind, p.state FROM holdfast.dependencies d JOIN holdfast.jobs p ON p.id = d.parent_id
    JOIN holdfast.jobs j ON j.id = d.job_id
    -- A job that was rerun also waits for parents that have failed or were cancelled (rerun.py).
    WHERE d.job_id = %(id)s AND (p.state IN ('blocked', 'pending', 'running', 'submitted')
                                 OR (j.if_parent_fails = 'cancel' AND p.state <> 'completed'))
    ORDER BY p.state IN ('blocked', 'pending', 'running', 'submitted'), p.id LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts that the sentence may need."""

    id: int
    kind: str
    queue: str
    state: str
    waiting_for: str | None
    attempt_no: int
    errors: int
    max_attempts: int
    crashes: int
    max_crashes: int
    cause: str | None
    error: str | None
    parents_left: int
    message: str | None
    poll_count: int
    due_in: timedelta | None
    running_for: timedelta | None
    poll_in: timedelta | None
    ended_ago: timedelta | None
    cancelling: bool
    worker: str | None
    lease_left: timedelta | None
    paused_as: str | None
    pause_reason: str | None
    pause_actor: str | None
    ahead: int
    workers_alive: int  # and not quiet
    workers_quiet: int
    registered: bool = True  # whether the worker that holds it is registered
    alone: bool = False
    kind_version: int = 1
    known_version: int | None = None  # the newest version that a live worker can run; None: no live worker runs this kind
    queue_served: bool = True  # whether a live worker of this kind serves its queue, as far as known
    queues_alive: Sequence[str] = ()  # some queues that live workers of this kind serve
    workers_able: int = 0  # live workers that run this version of the kind from this queue
    workers_busy: int = 0  # those of them without a free lane
    kinds_alive: list[str] | None = None  # some kinds that live workers run; None: unknown for one of them
    beside: int | None = None  # how many other jobs ran in the process that died
    held_ahead: bool | None = False  # claimed, but perhaps not begun: its worker holds more jobs than it has lanes
    came_back_by: str | None = None  # for a delayed job: how its last attempt ended
    published: bool = True  # whether a worker has published its kind


async def explain(conn: psycopg.AsyncConnection[Any], job_id: JobId) -> str:
    """One sentence that says why the job is in its state, and what happens next."""
    async with conn.cursor(row_factory=class_row(Facts)) as cursor:
        await cursor.execute(FACTS, {"id": job_id, "named": NAMED + 1})
        facts = await cursor.fetchone()
    if facts is None:
        raise NotFound(f"there is no job {job_id}")
    holder = parent = None
    async with conn.cursor(row_factory=tuple_row) as cursor:
        if facts.waiting_for in ("lock", "slot"):
            await cursor.execute(WAITS_FOR_LOCK if facts.waiting_for == "lock" else WAITS_FOR_SLOT, {"id": job_id})
            holder = await cursor.fetchone()
        elif facts.waiting_for == "parents":
            await cursor.execute(WAITS_FOR_PARENTS, {"id": job_id})
            parent = await cursor.fetchone()
    return sentence(facts, holder, parent)


def sentence(facts: Facts, holder: tuple[Any, ...] | None = None, parent: tuple[Any, ...] | None = None) -> str:
    """The sentence for these facts. Pure."""
    match facts.state:
        case "blocked":
            return _blocked(facts, holder, parent)
        case "pending":
            return f"{_pending(facts)}{_unpublished(facts)}"
        case "running":
            return _running(facts)
        case "submitted" if _over(facts.poll_in) and _is_too_new(facts):
            return f"An external engine works on it, but no worker can poll it: {_needs(facts)}"
        case "submitted":
            when = "now" if _over(facts.poll_in) else f"in {_span(facts.poll_in)}"
            return f"An external engine works on it; the next poll is {when} (poll {facts.poll_count})."
        case "failed" if facts.crashes >= facts.max_crashes:
            return (
                f"Quarantined {_span(facts.ended_ago)} ago: its process crashed {_times(facts.crashes)}, the last time "
                f"by {facts.cause or 'an unknown cause'}; fix the cause, then rerun it."
            )
        case "failed":
            return (
                f"Failed {_span(facts.ended_ago)} ago after {_count(facts.errors, 'error')} of {facts.max_attempts} allowed: "
                f"{_short(facts.error)}"
            )
        case "cancelled":
            return f"Cancelled {_span(facts.ended_ago)} ago{_because(facts.error)}."
        case _:
            return f"Completed {_span(facts.ended_ago)} ago in attempt {facts.attempt_no}{_alone(facts, 'which ran ')}."


def _blocked(facts: Facts, holder: tuple[Any, ...] | None, parent: tuple[Any, ...] | None) -> str:
    if facts.waiting_for == "parents":
        if parent and parent[2] in ("failed", "cancelled"):
            return f"It was rerun and waits for job {parent[0]} ({parent[1]}), which is {parent[2]}: rerun that one too."
        named = f", next job {parent[0]} ({parent[1]}), which is {parent[2]}" if parent else ""
        return f"It waits for {_count(facts.parents_left, 'parent')} to end{named}."
    what = "lock" if facts.waiting_for == "lock" else "slot"
    if holder is None or holder[1] is None:
        key = f" {holder[0]!r}" if holder else ""
        if holder and holder[5] and facts.paused_as is None:
            return f"It waits for {what}{key}: {_before(holder, 'is next and waits')} before it."
        if facts.paused_as is not None:
            return f"It waits for {what}{key}, which is free, but {_paused(facts)}"
        return f"It waits for {what}{key}, which is free: the next sweep wakes it in a few seconds."
    key, job_id, kind, worker, lease_left, ahead, *_ = holder
    held = f"job {job_id} ({kind}) holds it"
    if worker is not None and _over(lease_left):
        held += f" on {worker}, whose lease has expired: the next sweep rescues it"
    elif worker is not None:
        held += f" on {worker}, whose lease runs for another {_span(lease_left)} and is renewed until the job ends"
    line = f"; {_before(holder, 'waits')} before it" if ahead else ""
    return f"It waits for {what} {key!r}: {held}{line}."


def _before(holder: tuple[Any, ...], waits: str) -> str:
    """The jobs before it in the line: the first by id, the others as a number."""
    ahead, job_id, kind = holder[5:]
    return f"job {job_id} ({kind}) {waits}" if ahead == 1 else f"job {job_id} ({kind}) and {ahead - 1:,} more wait"


def _pending(facts: Facts) -> str:
    if facts.paused_as is not None:
        return f"It could run, but {_paused(facts)}"
    if facts.due_in is not None and not _over(facts.due_in):
        return _due(facts)
    if facts.workers_alive == 0 and facts.workers_quiet:
        return f"It is ready, but every worker is quiet; {UNDO_QUIET}"
    if facts.workers_alive == 0:
        return f"It is ready, but no worker is alive; start one for queue {facts.queue!r}."
    if _is_too_new(facts):
        return f"It is ready, but no worker can run it: {_needs(facts)}"
    if facts.known_version is None and facts.kinds_alive is not None:
        named = _some(facts.kinds_alive)
        return f"It is ready, but no live worker runs {facts.kind}; they run {named}: was its module imported?"
    if not facts.queue_served:
        named = _some(facts.queues_alive)
        return (
            f"It is ready, but no live worker that runs {facts.kind} serves queue {facts.queue!r}; they serve {named}: "
            f"start one with --queue {facts.queue}."
        )
    if facts.known_version is not None and facts.workers_able == 0:
        return f"It is ready, but every worker that runs {facts.kind} is quiet; {UNDO_QUIET}"
    if facts.ahead:
        more = "more than 1,000" if facts.ahead > 1000 else f"{facts.ahead:,}"
        return f"It is ready; {more} {facts.kind} jobs in queue {facts.queue!r} are ahead of it."
    return f"It is ready and next in queue {facts.queue!r}{_alone(facts, 'and will run ')}; {_who_runs(facts)}"


def _unpublished(facts: Facts) -> str:
    """A hint that the kind is unknown, perhaps misspelt. None without workers, because then it may not be published yet."""
    if facts.published or facts.known_version is not None or facts.workers_alive == 0:
        return ""
    return f" No worker has published the kind {facts.kind}: what it declares is unknown."


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:NAMED], *(["…"] if len(names) > NAMED else [])])


def _who_runs(facts: Facts) -> str:
    """Which workers can run it."""
    if facts.workers_able == 0:
        return f"check that a worker runs {facts.kind}."
    if facts.workers_busy < facts.workers_able:
        room = _count(facts.workers_able - facts.workers_busy, "worker")
        return f"{room} with room can run {facts.kind}."
    if facts.workers_able == 1:
        return "the only worker that runs it is busy."
    return f"all {facts.workers_able} workers that run it are busy."


def _paused(facts: Facts) -> str:
    what = "everything" if facts.paused_as == "*" else facts.paused_as
    by = f" by {facts.pause_actor}" if facts.pause_actor else ""
    return f"{what} is paused{by}{_because(facts.pause_reason)}; resume it to go on."


def _due(facts: Facts) -> str:
    when = f"It runs in {_span(facts.due_in)}"
    if facts.came_back_by == "snooze":
        return f"{when}: its handler snoozed it{_because(facts.error)}."
    if facts.came_back_by == "rescue":
        often = f" {_times(facts.crashes)}" if facts.crashes > 1 else ""
        return f"{when}, because its process was lost{often} ({facts.cause}){_because(facts.error)}."
    if facts.errors:
        return f"{when} after {_count(facts.errors, 'error')}, the last: {_short(facts.error)}"
    return f"{when}."


def _is_too_new(facts: Facts) -> bool:
    return facts.known_version is not None and facts.kind_version > facts.known_version


def _needs(facts: Facts) -> str:
    return (
        f"it needs version {facts.kind_version} of {facts.kind}; workers know up to {facts.known_version}; "
        "start one with the newer code."
    )


def _running(facts: Facts) -> str:
    if not facts.registered:
        when = f"in {_span(facts.lease_left)}" if facts.lease_left is not None else "within a lease"
        return (
            f"Attempt {facts.attempt_no} is held by a worker that is not registered any more; if it does not register again, "
            f"the job is rescued {when}."
        )
    if _over(facts.lease_left):
        return f"Attempt {facts.attempt_no} ran on {facts.worker}, whose lease has expired; the next sweep rescues it."
    if facts.held_ahead:
        return (
            f"Attempt {facts.attempt_no} was claimed by {facts.worker} {_span(facts.running_for)} ago and waits there for a "
            "free lane; it is returned to the queue if that takes long."
        )
    message = f": {facts.message}" if facts.message else ""
    asked = "; it was asked to stop" if facts.cancelling else ""
    since = f"{facts.worker}{_alone(facts, '')}, for {_span(facts.running_for)}"
    return f"It runs: attempt {facts.attempt_no} on {since}{asked}{message}."


def _alone(facts: Facts, how: str) -> str:
    """Why it runs alone in a process, if it does."""
    if not facts.alone:
        return ""
    others = f" with {_count(facts.beside, 'other')}" if facts.beside else ""
    return f", {how}alone in a process because an earlier one died{others}"


def _over(left: timedelta | None) -> bool:
    return left is None or left <= timedelta(0)


def _span(length: timedelta | None) -> str:
    seconds = max(0.0, length.total_seconds()) if length is not None else 0.0
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _because(reason: str | None) -> str:
    return f": {_short(reason)}" if reason else ""


def _short(text: str | None) -> str:
    return one_line(text) or "no reason was given"
