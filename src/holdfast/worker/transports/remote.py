"""The transport without a database: the worker protocol of the HTTP API. Made by: `holdfast worker remote`.

The same fence, carried as `If-Match: "<attempt_id>"`; 412 is `ClaimLost`. A request that was not answered is like a
connection that was lost: the worker tries again, and looks an end up under its attempt id before it writes it again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, TypeVar

import psycopg

from holdfast.errors import ClaimLost, HoldfastError, NotFound, Unreachable, UsageError
from holdfast.jobs.claim import Found
from holdfast.jobs.client import Client
from holdfast.jobs.effects import Cleaner, Effect
from holdfast.jobs.logs import Numbered
from holdfast.jobs.model import AttemptId, Claim, JobId, Json, NewJob, WorkerId
from holdfast.jobs.outcome import End
from holdfast.jobs.parents import Parent
from holdfast.jobs.promote import Promoted
from holdfast.jobs.renew import Beat, WorkerInfo
from holdfast.protocol import wire
from holdfast.telemetry.log import log
from holdfast.worker.transports.http import ApiConnection, Token, TokenRefused, WorkerUnknown
from holdfast.worker.transports.interface import Running, Takes

LARGEST_BATCH = 20  # jobs in one claim
KINDS_AT_ONCE = 50  # declarations in one request
LARGEST_WRITE = 4_000_000  # bytes of results in one batch of completions
LONG_POLL = 10.0  # seconds

T = TypeVar("T")


class Remote:
    """A worker that talks to the HTTP API and has no database."""

    def __init__(self, url: str, token: Token | None = None, *, timeout: float = 15.0, plain_http: bool = False) -> None:
        self.largest_batch = LARGEST_BATCH
        self._url, self._token, self._timeout, self._plain_http = url, token, timeout, plain_http
        self._line = ApiConnection(url, token, timeout=timeout, plain_http=plain_http)
        self._looking: tuple[WorkerId, Takes] | None = None  # what the last claim asked for
        self._claimed = 0
        self._keeps_logs = True

    # ------------------------------------------------------------------------------------------------- coming and going

    async def open(self) -> None:
        """Nothing is opened before it is needed."""

    async def close(self) -> None:
        await self._line.close()

    async def register(self, worker: WorkerInfo, *, lease: timedelta) -> None:
        try:
            await _register(self._line, worker, lease)
        except (TokenRefused, WorkerUnknown) as error:  # at the start this is a mistake; later it may be a hiccup
            raise UsageError(f"{error}; is {self._url} the API, and the token one for workers?") from None

    async def publish(self, worker: WorkerInfo, declared: Sequence[Mapping[str, Json]]) -> None:
        for start in range(0, len(declared), KINDS_AT_ONCE):
            body = {"name": worker.name, "kinds": [dict(one) for one in declared[start : start + KINDS_AT_ONCE]]}
            try:
                await self._line.call("PUT", f"/{worker.id}/kinds", body)
            except WorkerUnknown as unknown:  # an API from before there were declarations: jobs run all the same
                log.warning("kinds_not_published", error=str(unknown))
                return
            except TokenRefused as error:
                raise UsageError(f"{error}; is {self._url} the API, and the token one for workers?") from None

    async def resign(self, worker_id: WorkerId) -> None:
        await self._line.call("DELETE", f"/{worker_id}")

    def connections(self) -> dict[str, int]:
        return {}

    def pulse(self) -> RemotePulse:
        return RemotePulse(self._url, self._token, self._timeout, self._plain_http)

    async def listen(self, wake: Callable[[str], None]) -> None:
        """Wait at the API until there is something to claim. If this worker then claims nothing, poll less and less often."""
        pause = 0.05
        while True:
            while self._looking is None:
                await asyncio.sleep(0.01)
            worker_id, takes = self._looking
            claimed = self._claimed
            try:
                body = _looking(takes) | {"seconds": LONG_POLL}
                ready = await self._line.ask("can_claim", "POST", f"/{worker_id}/wait", body, wait=LONG_POLL)
            except HoldfastError as error:
                log.warning("listen_lost", error=str(error))
                ready = False
                await asyncio.sleep(1.0)
            if ready:
                wake("")
                await asyncio.sleep(pause)
                pause = 0.05 if self._claimed > claimed else min(pause * 2, 2.0)

    # ------------------------------------------------------------------------------------------------- claiming

    async def claim(self, worker_id: WorkerId, takes: Takes, limit: int) -> Found:
        self._looking = (worker_id, takes)
        body = _looking(takes) | {"limit": min(limit, LARGEST_BATCH), "begins": False}
        found = _claims(await self._line.ask("claims", "POST", f"/{worker_id}/claims", body, repeat=False))
        self._claimed += len(found)
        return Found(found, [])

    async def claim_tied(self, worker_id: WorkerId, ids: list[JobId]) -> list[Claim]:
        raise AssertionError("the API names none: it claims them after the others, and answers without those that take long")

    async def claim_by_id(self, worker_id: WorkerId, takes: Takes, job_id: JobId) -> Claim | None:
        found = await self._line.ask("claim", "POST", f"/{worker_id}/claims/{job_id}", _looking(takes), repeat=False)
        return None if found is None else _understood(wire.to_claim, found)

    async def claim_to_poll(self, worker_id: WorkerId, takes: Takes, limit: int) -> list[Claim]:
        body = _looking(takes) | {"limit": min(limit, LARGEST_BATCH), "begins": False}
        return _claims(await self._line.ask("claims", "POST", f"/{worker_id}/polls", body, repeat=False))

    # ------------------------------------------------------------------------------------------------- ending

    async def complete(self, claims: Sequence[Claim], results: Sequence[str | None]) -> set[JobId]:
        written: set[JobId] = set()
        for batch in _batches(claims, results):
            completions = [
                {"id": claim.id, "attempt_id": claim.attempt_id, "result": None if result is None else json.loads(result)}
                for claim, result in batch
            ]
            path = f"/{batch[0][0].worker_id}/completions"
            written.update(await self._line.ask("completed", "POST", path, {"completions": completions}, repeat=False))
        return written

    async def complete_and_chain(self, claim: Claim, result: str | None, child: NewJob) -> Claim | None:
        body = {"result": None if result is None else json.loads(result), "child": wire.of_job(child)}
        try:
            found = await self._line.ask("claim", "POST", f"/jobs/{claim.id}/chain", body, claim=claim, repeat=False)
        except ClaimLost:
            return None
        return None if found is None else _understood(wire.to_claim, found)

    async def finish(self, claim: Claim, end: End) -> None:
        await self._line.call("POST", f"/jobs/{claim.id}/finish", wire.of_end(end), claim=claim, repeat=False)

    async def was_written(self, claim: Claim) -> bool:
        return bool(await self._line.ask("written", "GET", f"/jobs/{claim.id}/end", claim=claim))

    async def write_logs(self, lines: Sequence[Numbered]) -> set[AttemptId]:
        claims = {one.claim.attempt_id: one.claim for one in lines}
        held = set(claims)
        for attempt_id, claim in claims.items():
            if not self._keeps_logs:
                break
            body = {"lines": [wire.of_line(one) for one in lines if one.claim.attempt_id == attempt_id]}
            try:
                await self._line.call("POST", f"/jobs/{claim.id}/logs", body, claim=claim)
            except ClaimLost:
                held.discard(attempt_id)
            except NotFound as unknown:  # an API from before there were logs: jobs run all the same
                self._keeps_logs = False
                log.warning("job_logs_lost", error=str(unknown))
        return held

    # ------------------------------------------------------------------------------------------------- for handlers
    # A lost answer would fail the handler's attempt, so what may be done twice is sent again; `plan` may not.

    def connection(self) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]:
        raise UsageError(
            "ctx.connection() needs the database, and a remote worker has none: pass the data in the payload and the result, "
            "or run this kind on a worker with a database address"
        )

    def client(self) -> Client:
        raise UsageError(
            "enqueue(...) in a handler needs the database, and a remote worker has none: end with "
            "Done(then=[kind.new(...)]) or say ctx.chain(kind.new(...)), or run this kind on a worker with a database address"
        )

    async def begin(self, claim: Claim) -> None:
        await self._line.call("POST", f"/jobs/{claim.id}/begin", claim=claim)

    async def progress(self, claim: Claim, done: float | None, message: str | None) -> None:
        body = {"progress": done, "message": message}
        await self._line.call("POST", f"/jobs/{claim.id}/progress", body, claim=claim, resend=True)

    async def checkpoint(self, claim: Claim) -> None:
        await self._line.call("POST", f"/jobs/{claim.id}/checkpoint", claim=claim, resend=True)

    async def plan(
        self,
        claim: Claim,
        kind: str,
        *,
        tag: str | None,
        detail: Mapping[str, Any] | None,
        temporary: bool,
        adoptable: bool,
    ) -> Effect:
        body = {
            "kind": kind,
            "tag": tag,
            "detail": None if detail is None else dict(detail),
            "temporary": temporary,
            "adoptable": adoptable,
        }
        planned = await self._line.call("POST", f"/jobs/{claim.id}/effects", body, claim=claim, repeat=False)
        return _understood(wire.to_effect, planned)

    async def confirm(self, claim: Claim, effect: Effect, handle: Json) -> Effect:
        path = f"/jobs/{claim.id}/effects/{effect.id}"
        return _understood(wire.to_effect, await self._line.call("PUT", path, {"handle": handle}, claim=claim, resend=True))

    async def left_behind(self, claim: Claim) -> list[Effect]:
        found = await self._line.ask("effects", "GET", f"/jobs/{claim.id}/effects", claim=claim, resend=True)
        return [_understood(wire.to_effect, one) for one in found]

    async def adopt(self, claim: Claim, effect: Effect, handle: Json) -> Effect:
        path = f"/jobs/{claim.id}/effects/{effect.id}/adopt"
        return _understood(wire.to_effect, await self._line.call("POST", path, {"handle": handle}, claim=claim, resend=True))

    async def parents(self, claim: Claim) -> list[Parent[Any]]:
        found = await self._line.ask("parents", "GET", f"/jobs/{claim.id}/parents", claim=claim, resend=True)
        return [_understood(wire.to_parent, one) for one in found]

    # ------------------------------------------------------------------------------------------------- sweeping

    async def promote(self) -> Promoted:
        answer = await self._line.call("POST", "/promote")
        return _understood(wire.to_promoted, answer)

    # The API does these by itself after a beat: its answers never ask a remote worker for them.

    async def wake_forgotten(self) -> None: ...

    async def rescue(self, worker: WorkerInfo) -> list[JobId]:
        return []

    async def release_strays(self, worker: WorkerInfo, strays: Sequence[AttemptId]) -> list[JobId]:
        return []

    async def clean(self, cleaners: Mapping[str, Cleaner]) -> int:
        return 0


class RemotePulse:
    """The heartbeat's own client, in the heartbeat's own event loop."""

    def __init__(self, url: str, token: Token | None, timeout: float, plain_http: bool) -> None:
        self._line = ApiConnection(url, token, timeout=timeout, most=2, plain_http=plain_http)

    async def beat(
        self, worker: WorkerInfo, held: Sequence[Claim], takes: Takes, *, lease: timedelta, running: Sequence[Running] = ()
    ) -> Beat:
        body = _looking(takes) | {
            "name": worker.name,
            "lease": lease.total_seconds(),
            "held": [{"id": claim.id, "attempt_id": claim.attempt_id} for claim in held],
            "running": [{"id": job, "attempt_id": attempt, "seconds": seconds} for job, attempt, seconds in running],
        }
        return _understood(wire.to_beat, await self._line.call("POST", f"/{worker.id}/beat", body))

    async def register(self, worker: WorkerInfo, *, lease: timedelta) -> None:
        await _register(self._line, worker, lease)

    async def close(self) -> None:
        await self._line.close()


async def _register(line: ApiConnection, worker: WorkerInfo, lease: timedelta) -> None:
    body = {
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "git_sha": worker.git_sha,
        "pod": worker.pod,
        "kinds": dict(worker.kinds),
        "queues": None if worker.queues is None else list(worker.queues),
        "concurrency": worker.concurrency,
        "lease": lease.total_seconds(),
    }
    await line.call("PUT", f"/{worker.id}", body)


def _looking(takes: Takes) -> dict[str, Json]:
    return {"kinds": dict(takes.versions), "queues": list(takes.queues)}


def _understood(read: Callable[[Mapping[str, Any]], T], said: Any) -> T:
    """What an answer says; one that says something else did not come from the API, or from one that is too old."""
    try:
        return read(said)
    except (KeyError, TypeError) as error:
        raise Unreachable(f"the API's answer cannot be understood: {error}; are its version and ours far apart?") from None


def _claims(answer: Sequence[Mapping[str, Any]]) -> list[Claim]:
    return [_understood(wire.to_claim, one) for one in answer]


def _batches(
    claims: Sequence[Claim], results: Sequence[str | None], most: int = 200
) -> Iterator[list[tuple[Claim, str | None]]]:
    """Completions in batches that fit into one request."""
    batch: list[tuple[Claim, str | None]] = []
    size = 0
    for claim, result in zip(claims, results, strict=True):
        weight = 100 + len(result or "")
        if batch and (len(batch) >= most or size + weight > LARGEST_WRITE):
            yield batch
            batch, size = [], 0
        batch.append((claim, result))
        size += weight
    if batch:
        yield batch
