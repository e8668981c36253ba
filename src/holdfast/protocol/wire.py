"""Jobs as JSON, for workers that are not beside the database. Used by: `worker/transports/remote.py` and the HTTP API.

A time span is a number of seconds; nothing of a database driver is on the wire. A reader of an answer takes the fields
that it knows, so that a newer server can say more to an older worker. What a worker sends is checked field by field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from holdfast.errors import UsageError
from holdfast.jobs.declare import from_json
from holdfast.jobs.effects import Effect
from holdfast.jobs.logs import Level, Numbered
from holdfast.jobs.model import Claim, Json, Lock, NewJob
from holdfast.jobs.outcome import End
from holdfast.jobs.parents import Parent
from holdfast.jobs.payload import storable
from holdfast.jobs.promote import Promoted
from holdfast.jobs.renew import Beat
from holdfast.jobs.states import Move, State, is_legal

CENTURY = 3_200_000_000.0  # seconds
Seconds = Annotated[float, Field(ge=-CENTURY, le=CENTURY, allow_inf_nan=False)]
JobNumber = Annotated[int, Field(ge=1, le=2**63 - 1)]
SmallInt = Annotated[int, Field(ge=-32768, le=32767)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Text = Annotated[str, StringConstraints(max_length=100_000)]


def seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()


def span(given: float | None) -> timedelta | None:
    return None if given is None else timedelta(seconds=given)


# ---------------------------------------------------------------------------------------------------------------------
# From the kernel to a worker
# ---------------------------------------------------------------------------------------------------------------------


def of_claim(claim: Claim) -> dict[str, Json]:
    return claim._asdict() | {"max_runtime": seconds(claim.max_runtime)}


def to_claim(said: Mapping[str, Any]) -> Claim:
    known = {name: said[name] for name in Claim._fields if name in said}
    return Claim(**known | {"max_runtime": span(said["max_runtime"])})


SPANS_OF_A_BEAT = frozenset(one.name for one in fields(Beat) if "timedelta" in str(one.type))


def of_beat(beat: Beat) -> dict[str, Json]:
    plain = {one.name: getattr(beat, one.name) for one in fields(Beat)}
    return {name: seconds(value) if name in SPANS_OF_A_BEAT else value for name, value in plain.items()}


def to_beat(said: Mapping[str, Any]) -> Beat:
    known: dict[str, Any] = {one.name: said[one.name] for one in fields(Beat) if one.name in said}
    spans = {name: span(known[name]) for name in SPANS_OF_A_BEAT if name in known}
    return Beat(**known | spans)


def to_promoted(said: Mapping[str, Any]) -> Promoted:
    return Promoted(int(said["promoted"]), span(said.get("next_due")))  # an older API does not say when the next one is due


def of_effect(effect: Effect) -> dict[str, Json]:
    return effect._asdict()


def to_effect(said: Mapping[str, Any]) -> Effect:
    return Effect(**{name: said[name] for name in Effect._fields})


def of_parent(parent: Parent[Any]) -> dict[str, Json]:
    return parent._asdict()


def to_parent(said: Mapping[str, Any]) -> Parent[Any]:
    return Parent(*(said[name] for name in Parent._fields))


# ---------------------------------------------------------------------------------------------------------------------
# From a worker to the kernel
# ---------------------------------------------------------------------------------------------------------------------


class Said(BaseModel):
    """Something that a worker says: every field is checked, and there are no others."""

    model_config = ConfigDict(extra="forbid", strict=False)


class SaidLock(Said):
    key: Name
    most: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = 1
    when_busy: Literal["wait", "reject"] = "wait"


class SaidJob(Said):
    """A child. Whose child it is, and of which pipeline, is not the worker's to say: it follows from the attempt."""

    kind: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    payload: Json = Field(default_factory=dict)
    queue: Annotated[str, StringConstraints(min_length=1, max_length=200)] = "default"
    priority: SmallInt = 0
    run_after: datetime | None = None
    run_after_seconds: Seconds | None = None
    max_attempts: Annotated[int, Field(ge=1, le=2**31 - 1)] = 3
    max_crashes: Annotated[int, Field(ge=1, le=2**31 - 1)] = 3
    max_runtime: Annotated[float, Field(gt=0, le=CENTURY)] | None = None
    kind_version: Count = 1
    idempotency_key: Name | None = None
    unique_key: Name | None = None
    unique_while: Literal["waiting", "live"] = "waiting"
    slot_key: Name | None = None
    locks: Annotated[list[SaidLock], Field(max_length=100)] = []
    after: Annotated[list[JobNumber], Field(max_length=1000)] = []
    if_parent_fails: Literal["cancel", "run"] = "cancel"
    step: Name | None = None

    def job(self) -> NewJob:
        given = self.model_dump(exclude={"run_after", "run_after_seconds", "locks", "after", "max_runtime"})
        return NewJob(
            **given,
            run_after=self.run_after or span(self.run_after_seconds),
            max_runtime=span(self.max_runtime),
            locks=tuple(Lock(lock.key, lock.most, lock.when_busy) for lock in self.locks),
            after=tuple(self.after),
        )


def of_job(job: NewJob) -> dict[str, Json]:
    later = job.run_after
    return {
        "kind": job.kind,
        "payload": job.payload,
        "queue": job.queue,
        "priority": job.priority,
        "run_after": later.isoformat() if isinstance(later, datetime) else None,
        "run_after_seconds": seconds(later) if isinstance(later, timedelta) else None,
        "max_attempts": job.max_attempts,
        "max_crashes": job.max_crashes,
        "max_runtime": seconds(job.max_runtime),
        "kind_version": job.kind_version,
        "idempotency_key": job.idempotency_key,
        "unique_key": job.unique_key,
        "unique_while": job.unique_while,
        "slot_key": job.slot_key,
        "locks": [{"key": lock.key, "most": lock.most, "when_busy": lock.when_busy} for lock in job.locks],
        "after": list(job.after),
        "if_parent_fails": job.if_parent_fails,
        "step": job.step,
    }


# The other moves are those of processes that take a job from a worker.
MOVES_OF_A_WORKER = {Move.COMPLETE, Move.SUBMIT, Move.SNOOZE, Move.RETRY, Move.FAIL, Move.CANCEL, Move.RELEASE}


class SaidEnd(Said):
    """How an attempt ends. It may lead only where an attempt can lead."""

    move: Move
    state: State
    delay: Seconds | None = None
    result: Json = None
    error: Text | None = None
    cause: Name | None = None
    errors: Annotated[int, Field(ge=0, le=1)] = 0
    handle: Json = None
    poll_count: Count = 0
    poll_errors: Count = 0
    then: Annotated[list[SaidJob], Field(max_length=10_000)] = []
    join: SaidJob | None = None
    detail: dict[Name, Text] | None = None

    @model_validator(mode="after")
    def _leads_somewhere(self) -> SaidEnd:
        if self.move not in MOVES_OF_A_WORKER or not is_legal(self.move, State.RUNNING, self.state):
            raise ValueError(f"{self.move} does not lead a worker from running to {self.state}")
        if self.state is State.SUBMITTED and self.delay is None:
            raise ValueError("what is submitted needs a delay until the next look")
        if (self.then or self.join) and self.move is not Move.COMPLETE:
            raise ValueError("only a job that completes has children")
        return self

    def end(self) -> End:
        return End(
            self.move,
            self.state,
            delay=span(self.delay),
            result=self.result,
            error=self.error,
            cause=self.cause,
            errors=self.errors,
            handle=self.handle,
            poll_count=self.poll_count,
            poll_errors=self.poll_errors,
            then=[child.job() for child in self.then],
            join=None if self.join is None else self.join.job(),
            detail=self.detail,
        )


def of_end(end: End) -> dict[str, Json]:
    if end.writes_rows:
        name = "prepare" if end.publish is None else "publish"
        raise UsageError(
            f"Done({name}=…) needs the database, and a remote worker has none: put the data into the result or a child's "
            "payload, or run this kind on a worker with a database address"
        )
    return {
        "move": str(end.move),
        "state": str(end.state),
        "delay": seconds(end.delay),
        "result": end.result,
        "error": None if end.error is None else storable(end.error),
        "cause": end.cause,
        "errors": end.errors,
        "handle": end.handle,
        "poll_count": end.poll_count,
        "poll_errors": end.poll_errors,
        "then": [of_job(child) for child in end.then],
        "join": None if end.join is None else of_job(end.join),
        "detail": None if end.detail is None else {key: storable(text) for key, text in end.detail.items()},
    }


class SaidComputed(Said):
    """A key that a function of the worker makes."""

    computed: Literal[True]


class SaidSchedule(Said):
    """When a periodic kind is due. `from_json` checks the values together. A newer worker may say more: that is ignored."""

    model_config = ConfigDict(extra="ignore")

    every_seconds: Annotated[float, Field(gt=0, le=CENTURY)] | None = None
    cron: Annotated[str, StringConstraints(max_length=200)] | None = None
    timezone: Annotated[str, StringConstraints(min_length=1, max_length=100)] = "UTC"
    catch_up: Literal["skip", "last", "all"] = "last"
    payload: dict[str, Json] = Field(default_factory=dict)
    gives_due_at: bool = False


class SaidDeclaration(Said):
    """What a kind declares. A newer worker may say more: that is ignored."""

    model_config = ConfigDict(extra="ignore")

    kind: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    version: Annotated[int, Field(ge=1, le=2**31 - 1)] = 1
    queue: Annotated[str, StringConstraints(min_length=1, max_length=200)] = "default"
    priority: SmallInt = 0
    max_attempts: Annotated[int, Field(ge=1, le=2**31 - 1)] = 3
    max_crashes: Annotated[int, Field(ge=1, le=2**31 - 1)] = 3
    max_runtime_seconds: Annotated[float, Field(gt=0, le=CENTURY)] | None = None
    public: bool = True
    locks: Annotated[list[SaidLock], Field(max_length=100)] | SaidComputed | None = None
    slot: Name | SaidComputed | None = None
    unique: Name | SaidComputed | None = None
    arguments: dict[str, Json] | None = None
    periodic: SaidSchedule | None = None
    about: dict[str, Json] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _can_be_applied(self) -> SaidDeclaration:
        try:
            from_json(self.model_dump())
        except UsageError as error:
            raise ValueError(str(error)) from None
        return self


class SaidAttempt(Said):
    """A job, and the attempt under which it is held."""

    id: JobNumber
    attempt_id: UUID


class SaidRunning(SaidAttempt):
    """An attempt whose handler runs, and for how long."""

    seconds: Annotated[float, Field(ge=0, le=CENTURY, allow_inf_nan=False)]


class SaidCompletion(SaidAttempt):
    """A plain completion in a batch, fenced by its own attempt."""

    result: Json = None


class SaidLine(Said):
    """A line that a handler has written. It is tidied again where it arrives."""

    number: Annotated[int, Field(ge=1, le=2**31 - 1)]
    said_at: AwareDatetime
    level: Level
    message: Text
    fields: dict[str, Json] = Field(default_factory=dict)


def of_line(one: Numbered) -> dict[str, Json]:
    return {"number": one.number, **one.line._asdict()}
