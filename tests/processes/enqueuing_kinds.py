"""Handlers that enqueue without a transaction. Imported by the test, by executors and by processes for one job."""

from __future__ import annotations

import asyncio

from holdfast import SyncContext, job


@job("enqueuing.follow")
async def follow(note: str) -> str:
    return note


async def enqueues(note: str) -> int:
    made = await follow.enqueue(note=note)
    (also,) = await follow.enqueue_many([{"note": note}])
    return made.id + also.id


here = job("enqueuing.here")(enqueues)
alone = job("enqueuing.alone", run_in="process")(enqueues)


@job("enqueuing.in_thread")
def in_thread(ctx: SyncContext, note: str) -> int:
    return ctx.wait(enqueues(note))


@job("enqueuing.in_another_loop", max_attempts=1)
def in_another_loop(note: str) -> int:
    return asyncio.run(enqueues(note))


OURS = [follow, here, alone, in_thread, in_another_loop]
