"""A transport that records the responses to its worker, for the history checker (`proof/checker/check.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proof.checker.witness import LOST, OK, Witness

from holdfast.errors import ClaimLost
from holdfast.jobs.claim import Found
from holdfast.jobs.model import Claim, JobId, NewJob, WorkerId
from holdfast.jobs.outcome import End
from holdfast.worker.transports.interface import Takes, Transport


class Witnessed:
    """The transport itself, with a witness who listens."""

    def __init__(self, transport: Transport, witness: Witness) -> None:
        self._transport, self._witness = transport, witness

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    async def claim(self, worker_id: WorkerId, takes: Takes, limit: int) -> Found:
        begun = self._witness.tick()
        claims, tied, contended = await self._transport.claim(worker_id, takes, limit)
        self._witness.note("claims", begun, worker=worker_id, limit=limit, got=len(claims) + len(tied))
        return Found([self._claimed(begun, one, "batch") for one in claims], tied, contended)

    async def claim_tied(self, worker_id: WorkerId, ids: list[JobId]) -> list[Claim]:
        begun = self._witness.tick()
        return [self._claimed(begun, one, "batch") for one in await self._transport.claim_tied(worker_id, ids)]

    async def claim_by_id(self, worker_id: WorkerId, takes: Takes, job_id: JobId) -> Claim | None:
        begun = self._witness.tick()
        one = await self._transport.claim_by_id(worker_id, takes, job_id)
        return None if one is None else self._claimed(begun, one, "by id")

    async def claim_to_poll(self, worker_id: WorkerId, takes: Takes, limit: int) -> list[Claim]:
        begun = self._witness.tick()
        return [self._claimed(begun, one, "poll") for one in await self._transport.claim_to_poll(worker_id, takes, limit)]

    async def complete(self, claims: Sequence[Claim], results: Sequence[str | None]) -> set[JobId]:
        begun = self._witness.tick()
        written = await self._transport.complete(claims, results)
        for one in claims:
            if one.id in written:
                self._ended(begun, one, OK, "complete", "completed", "plain")
        return written

    async def complete_and_chain(self, claim: Claim, result: str | None, child: NewJob) -> Claim | None:
        begun = self._witness.tick()
        following = await self._transport.complete_and_chain(claim, result, child)
        if following is None:
            return None
        self._ended(begun, claim, OK, "complete", "completed", "chain", [child])
        return self._claimed(begun, following, "chain")

    async def finish(self, claim: Claim, end: End) -> None:
        begun, outcome = self._witness.tick(), OK
        try:
            await self._transport.finish(claim, end)
        except ClaimLost:
            outcome = LOST
            raise
        finally:
            self._ended(begun, claim, outcome, str(end.move), str(end.state), "finish", list(end.then))

    def _claimed(self, begun: int, one: Claim, how: str) -> Claim:
        self._witness.note("claim", begun, job=one.id, attempt=one.attempt_id, worker=one.worker_id, claim=one, how=how)
        return one

    def _ended(
        self, begun: int, one: Claim, outcome: str, move: str, state: str, via: str, children: Sequence[NewJob] = ()
    ) -> None:
        told = {"move": move, "state": state, "via": via, "children": list(children), "published": False}
        who = {"job": one.id, "attempt": one.attempt_id, "worker": one.worker_id}
        self._witness.note("end", begun, outcome, **who, **told)
