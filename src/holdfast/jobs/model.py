"""The data types of the kernel: a new job, a claim, a lock, and the result of an enqueue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, NewType, overload

from holdfast.errors import UsageError
from holdfast.jobs import given

JobId = NewType("JobId", int)
AttemptId = NewType("AttemptId", str)  # a UUID as text: it is only compared
WorkerId = NewType("WorkerId", str)  # one per process start, never the pod's name

Json = Any  # what json.loads gives back

# The bits of jobs.ties. APART: later triggers of the slot do not merge into this job. HOLDS: the job holds its locks from its
# enqueue to its end.
LOCKS, SLOT, DEPENDANTS, EFFECTS, APART, HOLDS = 1, 2, 4, 8, 16, 32
TAKEN_AT_CLAIM = LOCKS | SLOT


@dataclass(frozen=True, slots=True)
class Lock:
    """A named lock that a job needs.

    `most` is how many jobs may hold it at the same time: 1 is exclusive, n are permits, None is shared. The smallest `most`
    among the holders counts. `reject` takes the lock when the job is enqueued and keeps it until the job ends; `wait` takes it
    when an attempt starts and releases it when the attempt ends. If one lock of a job has `reject`, all locks of the job behave
    so, and the job may have neither a slot nor parents to wait for.
    """

    key: str
    most: int | None = 1
    when_busy: Literal["wait", "reject"] = "wait"

    def __post_init__(self) -> None:
        given.a_lock_key(self.key)
        if self.most is not None and (not isinstance(self.most, int) or not 1 <= self.most <= given.LARGEST_INT):
            raise UsageError(
                f"lock {self.key!r}: `most` cannot be {self.most!r}: must be between 1 and {given.LARGEST_INT}, "
                "or None for a shared lock"
            )
        if self.when_busy not in ("wait", "reject"):
            raise UsageError(f"lock {self.key!r}: when_busy must be 'wait' or 'reject', not {self.when_busy!r}")


@dataclass(slots=True)
class NewJob:
    """A job that is not yet enqueued, with all its options. Treat it as immutable: use `dataclasses.replace` for variants.

    The dataclass is not frozen because creating a frozen one takes three times as long, and bulk enqueues create many.
    """

    kind: str
    payload: Json = field(default_factory=dict)
    queue: str = "default"
    priority: int = 0
    run_after: datetime | timedelta | None = None
    max_attempts: int = 3
    max_crashes: int = 3
    max_runtime: timedelta | None = None
    kind_version: int = 1
    idempotency_key: str | None = None
    unique_key: str | None = None
    unique_while: Literal["waiting", "live"] = "waiting"
    slot_key: str | None = None
    locks: tuple[Lock, ...] = ()
    after: tuple[int, ...] = ()
    if_parent_fails: Literal["cancel", "run"] = "cancel"
    pipeline_id: str | None = None
    parent_id: int | None = None
    step: str | None = None

    def __post_init__(self) -> None:
        # Bulk enqueues create many, so a field with its default value costs only a comparison.
        if self.kind.__class__ is not str or not 0 < len(self.kind) <= 200:
            given.a_name("kind", self.kind, "must be the name of a kind of 1 to 200 characters, like 'invoice.render'")
        if self.queue.__class__ is not str or not 1 < len(self.queue) <= 200:
            given.a_queue(self.queue)
        if self.priority != 0:
            given.a_priority(self.priority)
        if self.max_attempts != 3 or self.max_crashes != 3 or self.kind_version != 1:
            for name in ("max_attempts", "max_crashes", "kind_version"):
                given.a_count(name, getattr(self, name))
        if self.run_after is not None:
            given.a_time(self.run_after)
        if self.max_runtime is not None:
            given.a_span("max_runtime", self.max_runtime)
        if (
            self.unique_key is not None
            or self.slot_key is not None
            or self.idempotency_key is not None
            or self.step is not None
        ):
            for name in ("idempotency_key", "unique_key", "slot_key", "step"):
                if getattr(self, name) is not None:
                    given.a_key(name, getattr(self, name))
        if self.unique_while != "waiting" or self.if_parent_fails != "cancel":
            given.one_of("unique_while", self.unique_while, "waiting", "live")
            given.one_of("if_parent_fails", self.if_parent_fails, "cancel", "run")
        if self.locks != ():
            self.locks = _locks(self.locks)
        if self.after != ():
            self.after = tuple(given.an_id("after", one) for one in given.listed("after", self.after, "<the id of a job>"))
        if self.parent_id is not None:
            self.parent_id = given.an_id("parent_id", self.parent_id)
            if self.step is None:
                raise UsageError("a job with parent_id needs a step: a name that is unique among the children of its parent")
        if self.pipeline_id is not None:
            self.pipeline_id = uuid_text(self.pipeline_id, "pipeline_id")
        if self.locks and self.rejects and (self.slot_key is not None or self.after):
            raise holds_and_waits(self, "a slot" if self.slot_key is not None else "parents to wait for")

    @property
    def rejects(self) -> bool:
        """Whether it takes its locks at enqueue and keeps them to its end; the enqueue is refused if one is busy."""
        return any(lock.when_busy == "reject" for lock in self.locks)

    @property
    def is_plain(self) -> bool:
        """Whether it can be inserted without any query before it."""
        return not (self.locks or self.after or self.slot_key or self.unique_key or self.idempotency_key)

    @property
    def is_copyable(self) -> bool:
        """Whether it can be inserted with COPY: a plain job, perhaps with locks for which it waits when it is claimed."""
        asks = self.after or self.slot_key or self.unique_key or self.idempotency_key
        return not asks and not (self.locks and self.rejects)


def holds_and_waits(job: NewJob, waits_for: str) -> UsageError:
    """The error for a job that would hold its locks while it waits, which can deadlock."""
    key = next(lock.key for lock in job.locks if lock.when_busy == "reject")
    return UsageError(
        f"{job.kind} cannot have {waits_for} and lock {key!r} with when_busy='reject': it would hold the lock while it waits, "
        f"and what it waits for may need that lock; use locks=[Lock({key!r}, when_busy='wait')]"
    )


def refuse_no_job(made: object) -> None:
    """Check that this is a `NewJob`, and not the kind itself."""
    if not isinstance(made, NewJob):
        named = getattr(made, "__name__", "render") if callable(made) else "render"
        raise given.wrong("a job", made, f"must be the result of .new(…); use {named}.new(…) with its arguments")


def _locks(wanted: object) -> tuple[Lock, ...]:
    if isinstance(wanted, Lock):
        raise given.wrong("locks", wanted, "must be a list; use locks=[Lock(…)]")
    locks = given.listed("locks", wanted, "Lock('…')")
    for lock in locks:
        if not isinstance(lock, Lock):
            raise given.wrong("locks", locks, f"each item must be a Lock; use Lock({lock!r})")
    keys = [lock.key for lock in locks]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise UsageError(f"lock {twice[0]!r} is listed twice for one job; list it once, with the smaller `most`")
    return locks


def uuid_text(value: object, what: str) -> str:
    """A UUID in the form in which Postgres prints it, or `UsageError`."""
    return given.a_uuid(what, value)


class Enqueued(NamedTuple):
    """The result of an enqueue: the job's id, and whether this call created it or found an existing one."""

    id: JobId
    created: bool


class AllNew(Sequence[Enqueued]):
    """The results of a bulk enqueue. Items are created on access, because most callers read few or none."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, at: int) -> Enqueued: ...
    @overload
    def __getitem__(self, at: slice) -> AllNew: ...
    def __getitem__(self, at: int | slice) -> Enqueued | AllNew:
        if isinstance(at, slice):
            return AllNew(self._ids[at])
        return Enqueued(JobId(self._ids[at]), created=True)


class Claim(NamedTuple):
    """An attempt that holds a job, with everything that is needed to run it. Every later write requires it."""

    id: JobId
    kind: str
    payload: Json
    attempt_id: AttemptId
    attempt_no: int
    fence_token: int
    queue: str
    priority: int
    ties: int
    kind_version: int
    errors: int
    max_attempts: int
    crashes: int
    pipeline_id: str | None
    parent_id: int | None
    step: str | None
    handle: Json
    poll_count: int
    max_runtime: timedelta | None
    worker_id: WorkerId
    max_crashes: int = 3
    alone: bool = False  # a process that ran it together with other jobs died: it now runs alone in a process
    poll_errors: int = 0  # consecutive polls that failed
    trace: str | None = None  # the W3C trace context of its enqueue (telemetry/trace.py)
    waited: float | None = None  # seconds from its enqueue to this claim
    confirm_start: bool = False  # a worker died and it is unknown whether it had begun: its start is written before it runs

    @property
    def is_poll(self) -> bool:
        """Whether an external engine has the work, and this attempt only polls it."""
        return self.handle is not None


CLAIM_COLUMNS = """j.id, j.kind, j.payload, j.attempt_id::text, j.attempt_no, j.fence_token, j.queue, j.priority, j.ties,
    j.kind_version, j.errors, j.max_attempts, j.crashes, j.pipeline_id::text, j.parent_id, j.step, j.handle, j.poll_count,
    j.max_runtime, j.worker_id::text, j.max_crashes, j.alone, j.poll_errors, j.trace,
    date_part('epoch', j.claimed_at - j.created_at), j.confirm_start"""
