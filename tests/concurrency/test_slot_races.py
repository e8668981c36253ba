"""Slots under contention: one at a time, and the last run has seen the last trigger."""

from __future__ import annotations

import asyncio
from typing import Any

from factories import rows, start_worker, together, value
from holdfast.jobs.claim import claim
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.finish import finish
from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import COMPLETED
from holdfast.jobs.promote import wake_forgotten

SLOTS, TRIGGERS, PODS = 3, 120, 5


async def test_no_enqueue_is_lost_and_no_slot_runs_twice(connect: Any) -> None:
    """E-30, E-40: triggers write their data and enqueue in one transaction; a run reads what is there when it starts."""
    pods, sources = [await connect() for _ in range(PODS)], [await connect() for _ in range(3)]
    await pods[0].execute("CREATE TABLE data (slot text PRIMARY KEY, version int NOT NULL)")
    await pods[0].execute("INSERT INTO data SELECT 'slot-' || n, 0 FROM generate_series(0, %s) AS n", [SLOTS - 1])
    running: set[str] = set()
    twice: list[str] = []
    seen = dict.fromkeys((f"slot-{n}" for n in range(SLOTS)), -1)
    sources_left = len(sources)

    async def trigger(source: Any) -> None:
        nonlocal sources_left
        for number in range(TRIGGERS // len(sources)):
            slot = f"slot-{number % SLOTS}"
            async with source.transaction():
                await source.execute("UPDATE data SET version = version + 1 WHERE slot = %s", [slot])
                await enqueue(source, NewJob("k", slot, slot_key=slot))
        sources_left -= 1

    async def work(pod: Any) -> None:
        worker = await start_worker(pod)
        while True:
            was_last = sources_left == 0
            batch = await claim(pod, worker, kinds=["k"], limit=2)
            for found in batch:
                if found.payload in running:
                    twice.append(found.payload)
                running.add(found.payload)
            for found in batch:
                seen[found.payload] = await value(pod, "SELECT version FROM data WHERE slot = %s", found.payload)
                running.discard(found.payload)
                await finish(pod, found, COMPLETED)
            if not batch:
                await wake_forgotten(pod)
                if was_last and not await value(pod, "SELECT count(*) FROM holdfast.jobs WHERE state <> 'completed'"):
                    return
                await asyncio.sleep(0.005)

    await together(*(trigger(source) for source in sources), *(work(pod) for pod in pods))

    assert twice == []
    assert list(seen.items()) == await rows(pods[0], "SELECT slot, version FROM data ORDER BY slot")
    runs = await value(pods[0], "SELECT count(*) FROM holdfast.jobs")
    assert SLOTS <= runs <= TRIGGERS
    current = await rows(pods[0], "SELECT slot_key, id FROM holdfast.jobs WHERE is_current ORDER BY 1")
    assert current == await rows(pods[0], "SELECT slot_key, max(id) FROM holdfast.jobs GROUP BY slot_key ORDER BY 1")
