"""The errors that Holdfast raises.

    HoldfastError
    ├── UsageError                 the call is wrong: the message names the fix
    │   ├── PayloadInvalid         the payload cannot be stored
    │   │   └── ArgumentsInvalid   the arguments do not match the published schema of the kind
    │   ├── UnknownKind            no handler is registered for this kind
    │   │   └── KindNotPublished   no worker has published this kind
    │   ├── KeyNotGiven            a function in the worker computes this key, so the request must contain it
    │   ├── NotFound               there is no such row
    │   └── InvalidSetting         an environment variable has a value that is not allowed
    ├── Refused                    the call conflicts with the current state (HTTP 409 and 503)
    │   ├── LockBusy               another job holds the lock, and the job has when_busy='reject'
    │   ├── IdempotencyConflict    the idempotency key was used before with another payload
    │   ├── NotStale               only a job whose worker's lease has expired can be recovered
    │   ├── IllegalMove            the move is not allowed in this state
    │   ├── Draining               the kind is drained and accepts no new jobs
    │   └── TriggeredTooOften      a loop can be triggered once a minute (HTTP 429)
    ├── ServiceInvalid             the description of a service is incomplete or contradicts another one
    ├── NotOwnWorker               this worker was registered by another principal (HTTP 403)
    ├── ClaimLost                  the attempt does not hold its job any more: stop, and write nothing
    ├── TermLost                   another process runs this loop now: stop, and write nothing
    ├── CancelRequested            the job has a cancel request; raised by checkpoints
    ├── JobFailed                  a job that was waited for has failed or was cancelled
    ├── WaitTimedOut               a job that was waited for has not ended in time
    ├── WorkerBroken               the worker cannot continue and must be restarted
    ├── PublishFailed              `Done(publish=…)` failed: nothing was committed
    ├── Unreachable                the API of a remote worker did not answer; the result of a write is unknown
    ├── ShutdownRequested          the worker stops and the kind has on_shutdown='fail'; raised by checkpoints
    └── DatabaseProblem            the database is missing or cannot be used
        ├── NoPostgres             no address, no wheel and no system binaries
        ├── WrongMajorVersion      the data folder belongs to another major version
        ├── DataFolderInUse        another process owns this data folder
        ├── TransactionPooler      a pooler changes the backend between transactions
        └── NotMigrated            the schema is missing, or of another version of this code

Every message says what happened and how to fix it; the attributes have the values that a program needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple


class HoldfastError(Exception):
    """The base class of all errors of Holdfast."""

    slug: ClassVar[str | None] = None  # the problem type of the HTTP API, for errors that are not in the API's table

    def members(self) -> dict[str, Any]:
        """The extension members of the problem response of the HTTP API."""
        return {}


class UsageError(HoldfastError):
    """The call is wrong: the message names the fix."""


class InvalidSetting(UsageError):
    """An environment variable has a value that is not allowed. The message has the variable, the value and the rule."""


class ServiceInvalid(HoldfastError):
    """The description of a service is incomplete or contradicts another one. The message names service, part and fix."""

    def __init__(self, service: str, part: str, problem: str, fix: str) -> None:
        super().__init__(f"service {service!r}, {part}: {problem}; {fix}")
        self.service, self.part = service, part


class WorkerBroken(HoldfastError):
    """The worker cannot continue and must be restarted."""


class PublishFailed(HoldfastError):
    """`Done(publish=…)` raised an error that looks like a lost connection, but the connection works, or it broke the
    transaction. Nothing was committed, and the cause is in the handler's code."""


class PayloadInvalid(UsageError):
    """The payload cannot be stored."""


class ArgumentProblem(NamedTuple):
    """One invalid argument: its JSON pointer in the payload, and a message with the value and what is expected."""

    pointer: str
    message: str


class ArgumentsInvalid(PayloadInvalid):
    """The arguments do not match the published schema of the kind."""

    def __init__(self, kind: str, problems: Sequence[ArgumentProblem]) -> None:
        super().__init__(f"invalid arguments for {kind}: {'; '.join(one.message for one in problems)}")
        self.kind, self.problems = kind, list(problems)

    def members(self) -> dict[str, Any]:
        return {"errors": [{"pointer": f"/body/payload{one.pointer}", "message": one.message} for one in self.problems]}


class KeyNotGiven(UsageError):
    """A function in the worker computes this key, so the request must contain it."""

    slug = "key-not-given"

    def __init__(self, kind: str, option: str, field: str) -> None:
        super().__init__(
            f"{kind} declares {option} as a Python function, which only code with that function can call: give {field} in the "
            f"request, or declare {option} as a template such as 'invoice:{{invoice_id}}' and restart its workers"
        )
        self.kind, self.field = kind, field

    def members(self) -> dict[str, Any]:
        return {"kind": self.kind, "field": self.field}


class UnknownKind(UsageError):
    """No handler is registered for this kind."""

    def __init__(self, kind: str, registered: list[str]) -> None:
        known = ", ".join(sorted(registered)) or "none"
        super().__init__(f"no handler for {kind}; registered: {known}; was the module imported?")
        self.kind, self.registered = kind, registered


class KindNotPublished(UnknownKind):
    """No worker has published this kind."""

    def __init__(self, kind: str, near: Sequence[str]) -> None:
        meant = f"; did you mean {' or '.join(near)}? Start" if near else "; start"
        message = (
            f"no worker has published the kind {kind}{meant} a worker that has it, or allow it explicitly with "
            "allow_unknown_kind: true (HTTP), --allow-unknown (command line) or allow_unknown=True (Python)"
        )
        UsageError.__init__(self, message)
        self.kind, self.registered, self.near = kind, [], list(near)

    def members(self) -> dict[str, Any]:
        return {"kind": self.kind, "near": self.near}


class NotFound(UsageError):
    """There is no such row."""


class NotOwnWorker(HoldfastError):
    """This worker was registered by another principal, or directly in the database. Only its owner may act for it."""

    slug = "not-own-worker"

    def __init__(self, worker_id: str) -> None:
        super().__init__(
            f"worker {worker_id} was registered by another principal; act with a token of the same name, or register a new id"
        )


class Refused(HoldfastError):
    """The call is valid, but conflicts with the current state."""


class LockBusy(Refused):
    """Another job holds the lock or waits for it, and the job has `when_busy='reject'`."""

    def __init__(self, key: str, holder: int | None, *, waits: bool = False) -> None:
        other = f"job {holder}" if holder is not None else "another job"
        held = f"is reserved for {other}, which waits for it" if waits else f"is held by {other}"
        super().__init__(f"lock {key!r} {held}; wait for that job to end, or enqueue with when_busy='wait' for all locks")
        self.key, self.holder = key, holder


class IdempotencyConflict(Refused):
    """The idempotency key was used before with another payload."""

    def __init__(self, key: str, job_id: int) -> None:
        super().__init__(f"idempotency key {key!r} was used for job {job_id} with another kind or payload; use a new key")
        self.key, self.job_id = key, job_id


class NotStale(Refused):
    """Only a job whose worker's lease has expired can be recovered."""


class IllegalMove(Refused):
    """The move is not allowed in this state."""


class Draining(Refused):
    """The kind is drained and accepts no new jobs."""

    def __init__(self, kind: str, reason: str | None) -> None:
        because = f": {reason}" if reason else ""
        super().__init__(f"{kind} is drained and accepts no new jobs{because}; try again after it is resumed")
        self.kind, self.reason = kind, reason


class TriggeredTooOften(Refused):
    """A loop can be triggered once a minute."""

    def __init__(self, loop: str, retry_after: int) -> None:
        super().__init__(f"{loop} was triggered less than a minute ago; wait {retry_after} s before triggering it again")
        self.loop, self.retry_after = loop, retry_after


class ClaimLost(HoldfastError):
    """The attempt does not hold its job any more: stop, and write nothing."""

    def __init__(self, job_id: int, attempt_id: str, operation: str = "write") -> None:
        super().__init__(f"{operation} refused: job {job_id} is no longer held under attempt {attempt_id}")
        self.job_id, self.attempt_id, self.operation = job_id, attempt_id, operation


class TermLost(HoldfastError):
    """Another process runs this loop now: stop, and write nothing."""

    def __init__(self, loop: str, term: int) -> None:
        super().__init__(f"write refused: term {term} of loop {loop} is over")
        self.loop, self.term = loop, term


class CancelRequested(HoldfastError):
    """The job has a cancel request. Raised by checkpoints."""

    def __init__(self, job_id: int, reason: str | None = None) -> None:
        super().__init__(f"job {job_id} was asked to stop" + (f": {reason}" if reason else ""))
        self.job_id, self.reason = job_id, reason


class JobFailed(HoldfastError):
    """A job that was waited for has failed or was cancelled. `job` is the job."""

    def __init__(self, job: Any) -> None:
        super().__init__(f"job {job.id} ({job.kind}) {job.state}: {job.error or job.cause or 'no reason was given'}")
        self.job = job


class WaitTimedOut(HoldfastError, TimeoutError):
    """A job that was waited for has not ended in time. It continues."""

    def __init__(self, job_id: int, timeout: float | None, explanation: str) -> None:
        super().__init__(f"job {job_id} has not ended after {timeout:g} s: {explanation}")
        self.job_id, self.explanation = job_id, explanation


class Unreachable(HoldfastError, ConnectionError):
    """The API of a remote worker did not answer. The result of a write is unknown.

    `is_fault`: the API failed because of this request, and may fail again.
    """

    is_fault = False


class ShutdownRequested(HoldfastError):
    """The worker stops and the kind has `on_shutdown="fail"`. Raised by checkpoints."""

    def __init__(self, job_id: int) -> None:
        super().__init__(f"the worker of job {job_id} is stopping")
        self.job_id = job_id


class DatabaseProblem(HoldfastError):
    """The database is missing or cannot be used."""


class NoPostgres(DatabaseProblem):
    """There is no address, no wheel and no system binaries."""


class WrongMajorVersion(DatabaseProblem):
    """The data folder belongs to another major version."""


class DataFolderInUse(DatabaseProblem):
    """Another process owns this data folder."""


MIXED_UP = (
    "a pooler in transaction mode mixes up prepared statements (SQLSTATE 42P05, 26000): open this connection with "
    "prepare_threshold=None, or connect to Postgres itself"
)


class TransactionPooler(DatabaseProblem):
    """A pooler in front of Postgres changes the backend between transactions."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"{place} is a pooler in transaction mode (such as PgBouncer with pool_mode = transaction): a connection uses "
            "several backends, so LISTEN, session settings and prepared statements (SQLSTATE 42P05, 26000) break; connect to "
            "Postgres directly, or set pool_mode = session"
        )


class NotMigrated(DatabaseProblem):
    """The schema is missing or older than this code."""
