"""Many workers, one table: every job is claimed once. Real connections and contention."""

from __future__ import annotations

import asyncio
from typing import Any

from factories import add, rows, start_worker, together, value
from holdfast.errors import ClaimLost
from holdfast.jobs.claim import claim, claim_by_id
from holdfast.jobs.enqueue import enqueue_many
from holdfast.jobs.finish import complete_plain, finish
from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import COMPLETED
from holdfast.jobs.rescue import rescue

PODS = 8


async def test_one_of_eight_workers_gets_the_job(connect: Any) -> None:
    """K-01, K-09, K-70."""
    pods = [await connect() for _ in range(PODS)]
    workers = [await start_worker(pods[0]) for _ in pods]
    for _ in range(30):
        job_id = await add(pods[0])

        claims = await asyncio.gather(*(claim_by_id(pod, worker, job_id) for pod, worker in zip(pods, workers, strict=True)))

        assert sum(found is not None for found in claims) == 1
    assert await rows(pods[0], "SELECT DISTINCT attempt_no FROM holdfast.jobs") == [(1,)]


async def test_concurrent_batches_share_all_jobs_without_duplicates(connect: Any) -> None:
    """K-02, K-03, W-01: workers that know nothing of each other."""
    pods = [await connect() for _ in range(PODS)]
    made = {m.id for m in await enqueue_many(pods[0], [NewJob("k")] * 400)}
    claimed: list[int] = []

    async def work(pod: Any) -> None:
        worker = await start_worker(pod)
        while batch := await claim(pod, worker, kinds=["k"], limit=7):
            assert len(batch) <= 7
            claimed.extend(found.id for found in batch)

    await together(*(work(pod) for pod in pods))

    assert len(claimed) == len(set(claimed)) == 400
    assert set(claimed) == made


async def test_job_ends_once_with_slow_dead_and_concurrent_workers(connect: Any) -> None:
    """K-19: claims, ends and rescues of the same few jobs from eight connections at once.

    Every lease is over from the start, so that a rescue may come at any moment.
    """
    pods = [await connect() for _ in range(PODS)]
    await enqueue_many(pods[0], [NewJob("k", max_crashes=1000) for _ in range(40)])
    accepted: list[int] = []
    refused: list[int] = []

    async def work(pod: Any, number: int) -> None:
        worker = await start_worker(pod)
        await pod.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp() WHERE id = %s", [worker])
        while await value(pod, "SELECT count(*) FROM holdfast.jobs WHERE state <> 'completed'"):
            await pod.execute("UPDATE holdfast.jobs SET run_after = NULL WHERE state = 'pending' AND run_after IS NOT NULL")
            batch = await claim(pod, worker, kinds=["k"], limit=3)
            if number % 2:
                await rescue(pod)
            if number % 4 < 2 and batch:
                done = await complete_plain(pod, batch, [None] * len(batch))
                accepted.extend(done)
                refused.extend({found.id for found in batch} - done)
                continue
            for found in batch:
                try:
                    await finish(pod, found, COMPLETED)
                    accepted.append(found.id)
                except ClaimLost:
                    refused.append(found.id)

    await together(*(work(pod, number) for number, pod in enumerate(pods)))

    assert len(accepted) == len(set(accepted)) == 40, "each job has exactly one accepted end"
    ended = "SELECT job_id, count(*) FROM holdfast.history WHERE move = 'complete' GROUP BY job_id"
    assert {count for _, count in await rows(pods[0], ended)} == {1}
    missing = "SELECT id FROM holdfast.jobs j WHERE attempt_no <> (SELECT count(*) FROM holdfast.history WHERE job_id = j.id)"
    assert await rows(pods[0], missing) == [], "every attempt has one row in the history"
