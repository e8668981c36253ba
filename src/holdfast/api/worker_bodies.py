"""The request bodies of the worker protocol, with the limits of each field. Used by: `worker_protocol.py`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from holdfast.jobs import logs
from holdfast.jobs.model import Json
from holdfast.protocol.wire import (
    Name,
    Said,
    SaidAttempt,
    SaidCompletion,
    SaidDeclaration,
    SaidJob,
    SaidLine,
    SaidRunning,
    Text,
)

MOST_CLAIMS = 20  # in one response: each may have a payload of a megabyte
LONGEST_WAIT = 30.0  # seconds that a worker may wait for something to claim

Lease = Annotated[float, Field(ge=1, le=3600)]
Kinds = Annotated[dict[Name, Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(max_length=1000)]
Queues = Annotated[list[Name], Field(max_length=100)]


class Registration(Said):
    name: Name
    host: Name
    pid: Annotated[int, Field(ge=0, le=2**31 - 1)]
    version: Name
    git_sha: Name | None = None
    pod: Name | None = None
    kinds: Kinds
    queues: Queues | None = None
    concurrency: Annotated[int, Field(ge=1, le=100_000)] = 1
    lease: Lease


class Looking(Said):
    """The kinds that a worker can run, with the newest known version of each."""

    kinds: Kinds
    queues: Queues


class Beating(Looking):
    name: Name
    lease: Lease
    held: Annotated[list[SaidAttempt], Field(max_length=100_000)]
    running: Annotated[list[SaidRunning], Field(max_length=100_000, default_factory=list)]


class Claiming(Looking):
    """`begins`: all claimed jobs start at once. Otherwise heartbeats report which have started."""

    limit: Annotated[int, Field(ge=1)] = MOST_CLAIMS
    begins: bool = True


class Waiting(Looking):
    seconds: Annotated[float, Field(ge=0, le=LONGEST_WAIT)]


class Publication(Said):
    name: Name
    kinds: Annotated[list[SaidDeclaration], Field(max_length=1000)]


class Completions(Said):
    """Plain completions, each fenced by its own attempt."""

    completions: Annotated[list[SaidCompletion], Field(min_length=1, max_length=1000)]


class Chain(Said):
    result: Json = None
    child: SaidJob


class Progress(Said):
    progress: Annotated[float, Field(ge=0, le=1)] | None = None
    message: Text | None = None


class Plan(Said):
    kind: Name
    tag: Name | None = None
    detail: dict[str, Json] | None = None
    temporary: bool = False
    adoptable: bool = False


class Lines(Said):
    lines: Annotated[list[SaidLine], Field(min_length=1, max_length=logs.MOST_LINES)]


class Handle(Said):
    handle: Json = None
