"""Locks under contention: permits are never exceeded, every waiter is woken, everything ends."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from factories import rows, start_worker, together, value
from holdfast.errors import LockBusy
from holdfast.jobs.claim import claim
from holdfast.jobs.enqueue import enqueue, enqueue_many
from holdfast.jobs.finish import finish
from holdfast.jobs.model import Claim, Lock, NewJob
from holdfast.jobs.outcome import COMPLETED
from holdfast.jobs.promote import wake_forgotten

PODS = 8
MIXES: dict[str, list[Lock]] = {
    "exclusive": [Lock("t")],
    "three permits": [Lock("t", most=3)],
    "readers and writers": [Lock("t", most=None), Lock("t", most=None), Lock("t")],
    "permits of different sizes": [Lock("t", most=4), Lock("t", most=2), Lock("t", most=1)],
}


class Witness:
    """Sees from outside who is inside: a holder enters when its claim came back and leaves before its end is written."""

    def __init__(self) -> None:
        self.inside: dict[int, Lock] = {}
        self.most = 0
        self.broken: list[str] = []

    def enter(self, claimed: Claim, lock: Lock) -> None:
        self.inside[claimed.id] = lock
        self.most = max(self.most, len(self.inside))
        limits = [lock.most for lock in self.inside.values() if lock.most is not None]
        if limits and len(self.inside) > min(limits):
            self.broken.append(f"{len(self.inside)} inside, {min(limits)} allowed")

    def leave(self, claimed: Claim) -> None:
        del self.inside[claimed.id]


@pytest.mark.more
@pytest.mark.parametrize("mix", MIXES)
async def test_permits_are_never_exceeded_and_all_jobs_end(connect: Any, mix: str) -> None:
    """P5, P6: exact, by rows under unique indexes and never by counting."""
    pods = [await connect() for _ in range(PODS)]
    locks, witness, chance = MIXES[mix], Witness(), random.Random(7)
    jobs = [NewJob("k", number, locks=(locks[number % len(locks)],), priority=number % 3) for number in range(24)]
    await enqueue_many(pods[0], jobs)

    async def take(pod: Any, worker: Any, limit: int) -> list[Claim]:
        batch = await claim(pod, worker, kinds=["k"], limit=limit)
        for found in batch:
            witness.enter(found, jobs[found.payload].locks[0])
        return batch

    async def work(pod: Any, worker: Any, batch: list[Claim]) -> None:
        while True:
            await asyncio.sleep(0)
            for found in batch:
                witness.leave(found)
                await finish(pod, found, COMPLETED)
            if not batch:
                await wake_forgotten(pod)
                if not await value(pod, "SELECT count(*) FROM holdfast.jobs WHERE state <> 'completed'"):
                    return
                await asyncio.sleep(0.02)
            batch = await take(pod, worker, chance.choice([1, 2, 5]))

    workers = [await start_worker(pod) for pod in pods]
    first = [await take(pod, worker, 1) for pod, worker in zip(pods, workers, strict=True)]  # one after the other: all who may
    await together(*map(work, pods, workers, first))

    assert witness.broken == []
    assert witness.most > 1 or mix == "exclusive", "several of the first jobs may be inside at once"
    for table in ("lock_holders", "lock_wants WHERE waiting"):
        assert await value(pods[0], f"SELECT count(*) FROM holdfast.{table}") == 0


@pytest.mark.more
async def test_jobs_with_several_locks_neither_deadlock_nor_starve(connect: Any) -> None:
    """Keys are always taken in one order, whatever the order in which they were asked for."""
    pods = [await connect() for _ in range(PODS)]
    chance = random.Random(3)
    jobs = [NewJob("k", number, locks=tuple(Lock(key) for key in chance.sample("abcde", 3))) for number in range(20)]
    await enqueue_many(pods[0], jobs)
    inside: Counter[str] = Counter()
    broken: list[str] = []

    async def work(pod: Any) -> None:
        worker = await start_worker(pod)
        while await value(pod, "SELECT count(*) FROM holdfast.jobs WHERE state <> 'completed'"):
            batch = await claim(pod, worker, kinds=["k"], limit=4)
            for found in batch:
                inside.update(lock.key for lock in jobs[found.payload].locks)
            broken.extend(key for key, count in inside.items() if count > 1)
            await asyncio.sleep(0)
            for found in batch:
                inside.subtract(lock.key for lock in jobs[found.payload].locks)
                await finish(pod, found, COMPLETED)
            if not batch:
                await wake_forgotten(pod)
                await asyncio.sleep(0.02)

    await together(*(work(pod) for pod in pods))

    assert broken == []
    assert await rows(pods[0], "SELECT DISTINCT state FROM holdfast.jobs") == [("completed",)]


@pytest.mark.parametrize("most", [1, 3])
async def test_concurrent_enqueues_with_reject_fill_all_permits_exactly(connect: Any, most: int) -> None:
    """K-26."""
    pods = [await connect() for _ in range(PODS)]
    for turn in range(5):
        lock = Lock(f"table-{turn}", most=most, when_busy="reject")

        answers = await asyncio.gather(*(enqueue(pod, NewJob("k", locks=(lock,))) for pod in pods), return_exceptions=True)

        refused = [answer for answer in answers if isinstance(answer, LockBusy)]
        assert len(refused) == PODS - most
        assert await value(pods[0], "SELECT count(*) FROM holdfast.lock_holders WHERE key = %s", lock.key) == most
    assert await value(pods[0], "SELECT count(*) FROM holdfast.jobs") == 5 * most, "a refusal leaves no job behind"


@pytest.mark.more
async def test_jobs_with_reject_and_wait_in_any_order_all_end(connect: Any) -> None:
    """A job that held one key while it waited for another could close a circle of jobs that wait for each other."""
    pods = [await connect() for _ in range(PODS)]
    chance = random.Random(5)
    made: list[int] = []
    triggering = 4

    async def trigger(pod: Any) -> None:
        nonlocal triggering
        for _ in range(10):
            locks = [
                Lock(key, chance.choice([1, 1, 2, None]), chance.choice(["wait", "reject"])) for key in chance.sample("abc", 2)
            ]
            with suppress(LockBusy):
                made.append((await enqueue(pod, NewJob("k", locks=tuple(locks)))).id)
        triggering -= 1

    async def work(pod: Any) -> None:
        worker = await start_worker(pod)
        while triggering or await value(pod, "SELECT count(*) FROM holdfast.jobs WHERE state <> 'completed'"):
            for found in await claim(pod, worker, kinds=["k"], limit=3):
                await finish(pod, found, COMPLETED)
            await wake_forgotten(pod)

    await together(*(trigger(pod) for pod in pods[:4]), *(work(pod) for pod in pods[4:]))

    assert made
    assert await rows(pods[0], "SELECT DISTINCT state FROM holdfast.jobs") == [("completed",)]
    assert await value(pods[0], "SELECT count(*) FROM holdfast.lock_holders") == 0
