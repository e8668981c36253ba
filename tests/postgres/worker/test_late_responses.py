"""A response that is read late is not trusted: the process was frozen, and its lease expired and was renewed meanwhile (F-11).

The freeze is stepped: between the kernel's answer and the handler that waits for it, the lease ends, somebody else takes
the job, and the heartbeat thread, which woke up first, makes the lease good again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from tests.factories import hold, lose

from holdfast.errors import ClaimLost
from holdfast.jobs.model import Claim
from holdfast.worker.context import Context, Lease
from holdfast.worker.transports.direct import Direct

QUESTIONS = ("checkpoint", "progress", "effect")


class Frozen(Direct):
    """A line to the kernel whose first answer is only read after a freeze."""

    def __init__(self, url: str, lease: Lease, conn: psycopg.AsyncConnection[Any], *, rescued: bool) -> None:
        super().__init__(url)
        self._lease, self._conn, self._rescued = lease, conn, rescued
        self.freezes, self.questions = 1, 0

    async def _freeze(self, claim: Claim) -> None:
        self.questions += 1
        if self.freezes:
            self.freezes -= 1
            self._lease.until = time.monotonic() - 1
            if self._rescued:
                await lose(self._conn, claim)
            self._lease.extend(time.monotonic() + 60)

    async def checkpoint(self, claim: Claim) -> None:
        await super().checkpoint(claim)
        await self._freeze(claim)

    async def progress(self, claim: Claim, done: float | None, message: str | None) -> None:
        await super().progress(claim, done, message)
        await self._freeze(claim)

    async def plan(self, claim: Claim, *arguments: Any, **more: Any) -> Any:
        planned = await super().plan(claim, *arguments, **more)
        await self._freeze(claim)
        return planned


@pytest.fixture(params=[True, False], ids=["rescued", "not rescued"])
async def frozen(request: pytest.FixtureRequest, database: str, conn: Any) -> AsyncIterator[tuple[Frozen, Context]]:
    lease = Lease(60)
    transport = Frozen(database, lease, conn, rescued=request.param)
    await transport.open()
    yield transport, Context(await hold(conn), transport, lease)
    await transport.close()


async def ask(context: Context, question: str) -> None:
    if question == "checkpoint":
        await context.checkpoint()
    elif question == "progress":
        await context.progress(0.5)
    else:
        async with context.effect("query"):
            pass


@pytest.mark.parametrize("question", QUESTIONS)
async def test_worker_rescued_before_it_read_the_response_may_not_act(frozen: tuple[Frozen, Context], question: str) -> None:
    transport, context = frozen
    if transport._rescued:
        with pytest.raises(ClaimLost):
            await ask(context, question)
    else:  # nobody took the job meanwhile: it is asked once more, and goes on
        await ask(context, question)
        assert transport.questions == 2


async def test_response_read_in_time_is_valid(frozen: tuple[Frozen, Context]) -> None:
    transport, context = frozen
    transport.freezes = 0

    await context.checkpoint()

    assert transport.questions == 1


def test_witness_records_the_deadline_of_the_check() -> None:
    """Not the one by the time of the act: after a freeze it may have been renewed, and the act would seem to be in time."""
    lease = Lease(60)
    context = Context(None, None, lease)  # type: ignore[arg-type]

    context._raise_if_known()
    looked_until = lease.until
    lease.extend(time.monotonic() + 3600)

    assert context.allowed_until == looked_until
    assert context.allowed_at < looked_until
