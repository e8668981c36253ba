"""Controls: make a worker quiet; pause, drain and resume a kind; drain everything. Without a web framework: the command line
calls them without a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

import psycopg

from holdfast.api.answers import Answer
from holdfast.api.bodies import Because, Body, Flag, Reason, Rule, Text
from holdfast.api.change import Change
from holdfast.api.reserved_kinds import KINDS
from holdfast.api.routes import Routes
from holdfast.jobs import control
from holdfast.jobs.quiet import make_quiet
from holdfast.jobs.views.workers import WorkerView, require_known_kind

routes = Routes("workers")
drain_routes = Routes("ops")

Kind = Annotated[Text, Rule(min_length=1, max_length=200)]


@dataclass(frozen=True)
class QuietAsked(Because):
    """Claim no more jobs, or with `quiet: false` claim again."""

    quiet: bool = True


@routes.change(
    "POST",
    "/api/workers/{worker_id}/quiet",
    action="workers.quiet",
    answers=WorkerView,
    refuses=["not-found", "idempotency-mismatch"],
)
async def quiet_worker(change: Change, worker_id: UUID, asked: QuietAsked) -> Answer:
    """Make a worker claim no more jobs from its next heartbeat on. It finishes the jobs that it holds; a restart undoes it."""

    async def do(conn: psycopg.AsyncConnection[Any]) -> Answer:
        return Answer(200, await make_quiet(conn, str(worker_id), quiet=asked.quiet))

    return await change.perform(f"worker/{worker_id}", do, reason=asked.reason, detail={"quiet": asked.quiet})


@dataclass(frozen=True)
class KindControlled:
    """Whether a kind is paused or drained; `changed` is false if there was nothing to undo."""

    kind: str
    changed: bool


Alter = Callable[[psycopg.AsyncConnection[Any]], Awaitable[Any]]


@dataclass(frozen=True)
class KindAsked(Because):
    """Pause or drain a kind."""

    allow_unknown_kind: Annotated[bool, Rule(description="Also if no worker has published the kind.")] = False


async def _control(change: Change, kind: str, reason: str, alter: Alter, *, must_be_known: bool = False) -> Answer:
    async def do(conn: psycopg.AsyncConnection[Any]) -> Answer:
        if must_be_known and kind not in KINDS:  # kinds of services are known without a worker
            await require_known_kind(conn, kind)
        changed = await alter(conn)
        return Answer(200, {"kind": kind, "changed": changed is not False})

    return await change.perform(f"kind/{kind}", do, reason=reason, detail={"path": change.request.url.path.rpartition("/")[2]})


CONTROL: dict[str, Any] = {"action": "kinds.control", "answers": KindControlled, "refuses": ["idempotency-mismatch"]}


@routes.change("POST", "/api/job-kinds/{kind}/pause", **CONTROL)
async def pause_kind(change: Change, kind: Kind, asked: KindAsked) -> Answer:
    """Claim no more jobs of this kind until it is resumed."""

    def pause(conn: psycopg.AsyncConnection[Any]) -> Awaitable[None]:
        return control.pause(conn, kind, actor=change.actor, reason=asked.reason)

    return await _control(change, kind, asked.reason, pause, must_be_known=not asked.allow_unknown_kind)


@routes.change("POST", "/api/job-kinds/{kind}/drain", **CONTROL)
async def drain_kind(change: Change, kind: Kind, asked: KindAsked) -> Answer:
    """Accept no new jobs of this kind until it is resumed."""

    def drain(conn: psycopg.AsyncConnection[Any]) -> Awaitable[None]:
        return control.drain(conn, kind, actor=change.actor, reason=asked.reason)

    return await _control(change, kind, asked.reason, drain, must_be_known=not asked.allow_unknown_kind)


@routes.change("POST", "/api/job-kinds/{kind}/resume", **CONTROL)
async def resume_kind(change: Change, kind: Kind, asked: Because) -> Answer:
    """Undo pause and drain of this kind."""
    return await _control(change, kind, asked.reason, lambda c: control.resume(c, kind))


@dataclass(frozen=True)
class Drain:
    """Whether new jobs are refused, and which operator drained them."""

    enabled: bool
    reason: str | None
    actor: str | None


@dataclass(frozen=True)
class DrainAsked(Body):
    """Accept no new jobs, or accept them again."""

    enabled: Flag
    reason: Reason


@drain_routes.change("PUT", "/api/ops/drain", action="ops.drain", answers=Drain, refuses=["idempotency-mismatch"])
async def set_drain(change: Change, asked: DrainAsked) -> Answer:
    """Accept no new jobs until this is undone; existing jobs run to their end."""

    async def do(conn: psycopg.AsyncConnection[Any]) -> Answer:
        if asked.enabled:
            await control.drain(conn, actor=change.actor, reason=asked.reason)
        else:
            await control.undrain(conn)
        return Answer(200, await drain_of(conn))

    return await change.perform("drain", do, reason=asked.reason, detail={"enabled": asked.enabled})


async def drain_of(conn: psycopg.AsyncConnection[Any]) -> dict[str, Any]:
    """Whether new jobs are refused, and which operator drained them."""
    said = next((one for one in await control.controls(conn) if one.kind == control.EVERYTHING and one.drained), None)
    return {"enabled": said is not None, "reason": said and said.reason, "actor": said and said.actor}
