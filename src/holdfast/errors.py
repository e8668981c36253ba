"""Every error that Holdfast raises on purpose.

    HoldfastError
    ├── UsageError                 the call is wrong: the message names the fix
    │   ├── PayloadInvalid         the payload cannot be stored as it is
    │   │   └── ArgumentsInvalid   the arguments do not fit what the kind has published
    │   ├── UnknownKind            nobody registered a handler for this kind
    │   │   └── KindNotPublished   no worker has published this kind
    │   ├── KeyNotGiven            a function of the worker makes this key, so the request has to give it
    │   └── NotFound               there is no such row
    ├── Refused                    the call is right, the moment is not (HTTP 409 and 503)
    │   ├── LockBusy               another job has the lock, and the job said `reject`
    │   ├── IdempotencyConflict    the key was used before, for something else
    │   ├── NotStale               only a job whose holder went silent can be recovered
    │   ├── IllegalMove            this state does not lead there
    │   ├── Draining               new jobs of this kind are refused for now
    │   └── TriggeredTooOften      a loop is run on request once a minute (HTTP 429)
    ├── NotOwnWorker               this worker was registered by another principal (HTTP 403)
    ├── ClaimLost                  someone else owns this job now: stop, and write nothing
    ├── TermLost                   someone else runs this loop now: stop, and write nothing
    ├── CancelRequested            somebody asked this job to stop; a checkpoint says so
    ├── Unreachable                the API of a remote worker did not answer; what became of a write is unknown
    ├── ShutdownRequested          the worker ends, and this kind does not go on then; a checkpoint says so
    └── DatabaseProblem            no database, or not one that we can use
        ├── NoPostgres             neither an address, nor the wheel, nor system binaries
        ├── WrongMajorVersion      the data folder belongs to another major version
        ├── DataFolderInUse        another process owns this data folder
        ├── TransactionPooler      a pooler changes the backend between transactions
        └── NotMigrated            the schema is missing, or of another version of this code

An error carries what its reader will ask for: the message says what happened and what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple


class HoldfastError(Exception):
    """Anything that Holdfast raises on purpose."""

    slug: ClassVar[str | None] = None  # which problem of the HTTP API it is, where the API's own table does not know it

    def members(self) -> dict[str, Any]:
        """What else it says to a program."""
        return {}


class UsageError(HoldfastError):
    """The call is wrong: the message names the fix."""


class WorkerBroken(HoldfastError):
    """A worker cannot go on; whoever runs it starts another."""


class PublishFailed(HoldfastError):
    """What a handler wanted to commit with the end of its job raised what a lost database raises, and the database is there:
    nothing was committed, and its cause is the handler's own."""


class PayloadInvalid(UsageError):
    """The payload cannot be stored as it is."""


class ArgumentProblem(NamedTuple):
    """One argument that does not fit: where it is in the payload, and a sentence with the value and what is expected."""

    pointer: str
    message: str


class ArgumentsInvalid(PayloadInvalid):
    """The arguments do not fit what the kind has published."""

    def __init__(self, kind: str, problems: Sequence[ArgumentProblem]) -> None:
        super().__init__(f"the arguments do not fit {kind}: {'; '.join(one.message for one in problems)}")
        self.kind, self.problems = kind, list(problems)

    def members(self) -> dict[str, Any]:
        return {"errors": [{"pointer": f"/body/payload{one.pointer}", "message": one.message} for one in self.problems]}


class KeyNotGiven(UsageError):
    """A function of the worker makes this key, so the request has to give it."""

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
    """Nobody registered a handler for this kind."""

    def __init__(self, kind: str, registered: list[str]) -> None:
        known = ", ".join(sorted(registered)) or "none"
        super().__init__(f"no handler for {kind}; registered: {known}; was the module imported?")
        self.kind, self.registered = kind, registered


class KindNotPublished(UnknownKind):
    """No worker has published this kind."""

    def __init__(self, kind: str, near: Sequence[str]) -> None:
        meant = f"; did you mean {' or '.join(near)}?" if near else ";"
        message = (
            f"no worker has published the kind {kind}{meant} Start a worker that has it, or allow it explicitly with "
            "allow_unknown_kind: true (HTTP), --allow-unknown (command line) or allow_unknown=True (Python)"
        )
        UsageError.__init__(self, message)
        self.kind, self.registered, self.near = kind, [], list(near)

    def members(self) -> dict[str, Any]:
        return {"kind": self.kind, "near": self.near}


class NotFound(UsageError):
    """There is no such row."""


class NotOwnWorker(HoldfastError):
    """This worker was registered by another principal, or in the database; only that one may act for it."""

    slug = "not-own-worker"

    def __init__(self, worker_id: str) -> None:
        super().__init__(
            f"worker {worker_id} was registered by another principal; act with a token of the same name, or register a new id"
        )


class Refused(HoldfastError):
    """The call is right, the moment is not."""


class LockBusy(Refused):
    """Another job holds the lock or is next to get it, and the job said `reject`."""

    def __init__(self, key: str, holder: int | None, *, waits: bool = False) -> None:
        other = f"job {holder}" if holder is not None else "another job"
        held = f"is next for {other}, which waits for it" if waits else f"is held by {other}"
        super().__init__(f"lock {key!r} {held}; wait for it to end, or enqueue with when_busy='wait' for all of its locks")
        self.key, self.holder = key, holder


class IdempotencyConflict(Refused):
    """The key was used before, for something else."""

    def __init__(self, key: str, job_id: int) -> None:
        super().__init__(f"idempotency key {key!r} already made job {job_id} with another kind or payload; use a new key")
        self.key, self.job_id = key, job_id


class NotStale(Refused):
    """Only a job whose holder went silent can be recovered."""


class IllegalMove(Refused):
    """This state does not lead there."""


class Draining(Refused):
    """New jobs of this kind are refused for now."""

    def __init__(self, kind: str, reason: str | None) -> None:
        because = f": {reason}" if reason else ""
        super().__init__(f"{kind} is being drained and takes no new jobs{because}; try again after it is resumed")
        self.kind, self.reason = kind, reason


class TriggeredTooOften(Refused):
    """A loop is run on request once a minute."""

    def __init__(self, loop: str, retry_after: int) -> None:
        super().__init__(f"{loop} was triggered less than a minute ago; wait {retry_after} s before triggering it again")
        self.loop, self.retry_after = loop, retry_after


class ClaimLost(HoldfastError):
    """Someone else owns this job now: stop, and write nothing."""

    def __init__(self, job_id: int, attempt_id: str, operation: str = "write") -> None:
        super().__init__(f"{operation} refused: job {job_id} is no longer held under attempt {attempt_id}")
        self.job_id, self.attempt_id, self.operation = job_id, attempt_id, operation


class TermLost(HoldfastError):
    """Someone else runs this loop now: stop, and write nothing."""

    def __init__(self, loop: str, term: int) -> None:
        super().__init__(f"write refused: term {term} of loop {loop} is over")
        self.loop, self.term = loop, term


class CancelRequested(HoldfastError):
    """Somebody asked this job to stop; a checkpoint says so."""

    def __init__(self, job_id: int, reason: str | None = None) -> None:
        super().__init__(f"job {job_id} was asked to stop" + (f": {reason}" if reason else ""))
        self.job_id, self.reason = job_id, reason


class Unreachable(HoldfastError, ConnectionError):
    """The API of a remote worker did not answer; what became of a write is unknown.

    `is_fault`: it broke on this very request, and may do so again.
    """

    is_fault = False


class ShutdownRequested(HoldfastError):
    """The worker was told to stop, and this kind does not go on then; a checkpoint says so."""

    def __init__(self, job_id: int) -> None:
        super().__init__(f"the worker of job {job_id} was told to stop")
        self.job_id = job_id


class DatabaseProblem(HoldfastError):
    """No database, or not one that we can use."""


class NoPostgres(DatabaseProblem):
    """Neither an address, nor the wheel, nor system binaries."""


class WrongMajorVersion(DatabaseProblem):
    """The data folder belongs to another major version."""


class DataFolderInUse(DatabaseProblem):
    """Another process owns this data folder."""


MIXED_UP = (
    "a pooler in transaction mode mixes up prepared statements (SQLSTATE 42P05, 26000): open this connection with "
    "prepare_threshold=None, or connect to Postgres itself"
)


class TransactionPooler(DatabaseProblem):
    """A pooler stands between us and Postgres that changes the backend between transactions."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"{place} is a pooler in transaction mode (such as PgBouncer with pool_mode = transaction): it gives a connection "
            "several backends, so LISTEN, session settings and prepared statements (SQLSTATE 42P05, 26000) break; connect to "
            "Postgres itself, or set pool_mode = session"
        )


class NotMigrated(DatabaseProblem):
    """The schema is missing or older than this code."""
