"""The contract of a runtime: it starts, finds, resizes and removes the graph server of an instance.

Callers are the jobs and loops of graphs. One job per instance runs at a time (a lock of the kernel), but a job that lost its
claim may still be inside a call. So every object of a runtime carries three marks:

- `instance_id`: to which instance it belongs. There is at most one graph server per instance.
- `start_token`: to which start of the instance. A resume, a retry after a failure and a restart have new tokens.
- `fence_token`: which attempt of which start made it. It grows with each start of the instance and each attempt of its job.

A runtime keeps no state of its own that matters: the database says what should exist, and the runtime what does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from holdfast.services.graphs.plan import LoadPlan

Phase = Literal["starting", "running", "failed", "stopping"]

ErrorCode = Literal[
    "STARTUP_FAILED",
    "MAPPING_FETCH_ERROR",
    "SCHEMA_CREATE_ERROR",
    "DATA_LOAD_ERROR",
    "DATABASE_ERROR",
    "OOM_KILLED",
    "UNEXPECTED_TERMINATION",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """What should run. `secret` is the bearer secret of this start's graph server."""

    instance_id: int
    start_token: str
    fence_token: int
    owner: str
    engine: str
    memory_mb: int  # the limit; a runtime that has requests uses the same value
    cpu: float  # cores
    plan: LoadPlan
    secret: str = field(repr=False)
    callback_url: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a runtime has for one instance.

    `phase` is of the graph server: "starting" until its /ready answers 200, then "running"; "failed" if it has ended, or says
    that its load failed; "stopping" while it is removed. `reason` is given with "failed" if the runtime knows one.
    """

    instance_id: int
    start_token: str
    fence_token: int
    phase: Phase
    created_at: datetime
    address: str | None = None  # http URL of the graph server, as soon as it is known
    reason: ErrorCode | None = None
    message: str | None = None  # what happened, for people
    oom: bool = False  # it was ended because it used more memory than its limit
    memory_bytes: int | None = None  # in use now, if the runtime can tell
    memory_limit_mb: int | None = None
    name: str | None = None  # of the object: the pod, or "pid 4711"


@dataclass(frozen=True, slots=True)
class Reached:
    """How to reach the graph server of one start."""

    address: str
    secret: str = field(repr=False)


class RuntimeFailed(Exception):
    """The runtime refused: the same call would be refused again (a bad image, a quota, a conflict with a foreign object)."""

    def __init__(self, message: str, reason: ErrorCode = "STARTUP_FAILED") -> None:
        super().__init__(message)
        self.reason: ErrorCode = reason


class Unknown(Exception):
    """A look-up, list or change failed or was partial. Never to be read as "there is nothing"; try again later."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds, if the runtime was told


class Runtime(Protocol):
    """A place where graph servers run. Every method may raise `Unknown`; `ensure` and `resize` also `RuntimeFailed`."""

    @property
    def name(self) -> str:
        """The name in the setting: local, kubernetes."""
        ...

    async def ensure(self, spec: InstanceSpec) -> Observed:
        """Make sure that the graph server of this start exists; return at once, without waiting until it has loaded.

        Idempotent: it adopts an object with the same instance id AND start token. An object of the instance with another start
        token and a smaller fence token is from an earlier start: it is removed first (until that is confirmed, `Unknown`). One
        with a larger fence token is from a later start, and the caller is a job that was replaced: `RuntimeFailed`. An object
        that has the same name and is not of this instance is never touched: `RuntimeFailed`.
        """
        ...

    async def observe(self) -> list[Observed]:
        """Everything of this installation, including parts whose main object is missing. Raises `Unknown` rather than
        return a partial list."""
        ...

    async def look(self, instance_id: int) -> Observed | None:
        """What there is for one instance; None if the runtime is sure that there is nothing."""
        ...

    async def reach(self, instance_id: int, start_token: str) -> Reached | None:
        """How to reach the graph server of this start; None if the runtime is sure that it does not run. Needs no database: the
        cleaners of effects have none."""
        ...

    async def resize(self, spec: InstanceSpec, *, memory_mb: int, cpu: float) -> bool:
        """Change the limits of a running graph server. True: done in place. False: it needs a restart; nothing was changed."""
        ...

    async def remove(self, instance_id: int, *, start_token: str | None = None) -> bool:
        """Remove everything of an instance; with a start token only what this start made, never a later one.

        True: confirmed that nothing of that is left (also if there was nothing). False: removal has begun; call again.
        """
        ...

    async def logs(self, instance_id: int, tail: int = 200) -> str:
        """The last lines of the graph server's log; "" if there is none."""
        ...

    async def close(self) -> None:
        """Release connections. Graph servers continue to run."""
        ...
