"""Filters of jobs: by creation time, by failure group, by text."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from factories import add, end, hold
from holdfast.jobs.enqueue import enqueue_many
from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import Fail
from holdfast.jobs.views.failures import list_failures
from holdfast.jobs.views.filters import MOST_LOOKED_AT, where
from holdfast.jobs.views.read import count_jobs, list_jobs, locate

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


async def _made_at(conn: Any, times: list[datetime]) -> list[int]:
    """Jobs that were made at these times, as their numbers say."""
    ids = [one.id for one in await enqueue_many(conn, [NewJob("k", {}) for _ in times])]
    for job_id, time in zip(ids, times, strict=True):
        await conn.execute("UPDATE holdfast.jobs SET created_at = %s WHERE id = %s", (time, job_id))
    return ids


async def _found(conn: Any, **filters: Any) -> list[int]:
    """The jobs of a page; times find the same jobs after they were located, without another search."""
    found = [job.id for job in (await list_jobs(conn, limit=200, **filters)).jobs][::-1]
    located = await locate(conn, filters)
    assert "halving" not in where(located) or located.get("first_id", located.get("end_id")) is None, "only in an empty table"
    assert [job.id for job in (await list_jobs(conn, limit=200, **located)).jobs][::-1] == found
    return found


async def test_filter_since_and_until(conn: Any) -> None:
    ids = await _made_at(conn, [NOON + n * HOUR for n in range(10)])

    assert await _found(conn, created_after=NOON + 7 * HOUR) == ids[7:]
    assert await _found(conn, created_before=NOON + 3 * HOUR) == ids[:3]
    assert await _found(conn, created_after=NOON + 3 * HOUR, created_before=NOON + 5 * HOUR) == ids[3:5]
    assert (await count_jobs(conn, created_after=NOON + 7 * HOUR)).count == 3


async def test_filter_by_times_before_and_after_all_jobs(conn: Any) -> None:
    ids = await _made_at(conn, [NOON, NOON + HOUR])

    assert await _found(conn, created_after=NOON - HOUR) == ids == await _found(conn, created_before=NOON + 2 * HOUR)
    assert await _found(conn, created_after=NOON + 2 * HOUR) == [] == await _found(conn, created_before=NOON)


async def test_filter_by_time_in_an_empty_table(conn: Any) -> None:
    assert await _found(conn, created_after=NOON) == [] == await _found(conn, created_before=NOON)


@pytest.mark.parametrize("seed", range(5))
async def test_binary_search_finds_what_a_full_scan_finds(conn: Any, seed: int) -> None:
    """Also where jobs are missing, and where two that stand beside each other were made in the other order."""
    chance = random.Random(seed)
    times = sorted(NOON + chance.random() * 10 * HOUR for _ in range(60))
    for at in range(0, 58, 7):
        times[at] += timedelta(seconds=chance.uniform(-50, 50))
    ids = await _made_at(conn, times)
    for gone in chance.sample(ids, 20):
        await conn.execute("DELETE FROM holdfast.jobs WHERE id = %s", (gone,))
    left = {row[0]: row[1] for row in await (await conn.execute("SELECT id, created_at FROM holdfast.jobs")).fetchall()}

    for asked in [*chance.sample(times, 10), *(NOON + chance.random() * 10 * HOUR for _ in range(10))]:
        assert await _found(conn, created_after=asked) == sorted(job for job, made in left.items() if made >= asked)
        assert await _found(conn, created_before=asked) == sorted(job for job, made in left.items() if made < asked)


async def test_filter_by_failure_group(conn: Any) -> None:
    alike = [await hold(conn), await hold(conn)]
    other = await hold(conn)
    for number, claim in enumerate(alike):
        await end(conn, claim, Fail(f"no row {number}"))
    await end(conn, other, Fail("no disk"))
    (fingerprint,) = {one.fingerprint for one in await list_failures(conn) if one.jobs == 2}

    assert await _found(conn, fingerprint=fingerprint) == [claim.id for claim in alike]


async def test_search_finds_jobs_by_text(conn: Any) -> None:
    render = await add(conn, kind="invoice.render")
    other = await add(conn, kind="other", queue="Slow", slot_key="tenant/7")
    failed = await hold(conn, kind="broken")
    await end(conn, failed, Fail("Disk is FULL"))

    assert await _found(conn, q="invoice") == [render]
    assert await _found(conn, q="slow") == [other] == await _found(conn, q="tenant/")
    assert await _found(conn, q="disk is full") == [failed.id]
    assert await _found(conn, q="100%_") == []


async def test_search_by_number_finds_that_job(conn: Any) -> None:
    job = await add(conn)

    assert job in await _found(conn, q=str(job))


async def test_search_ignores_payloads(conn: Any) -> None:
    """Who may not see a payload must not be able to guess it letter by letter either."""
    await add(conn, payload={"password": "canary"})

    assert await _found(conn, q="canary") == []


async def test_search_is_limited_to_the_newest_jobs(conn: Any) -> None:
    old = await add(conn, kind="old.one")
    await conn.execute("SELECT setval(pg_get_serial_sequence('holdfast.jobs', 'id'), %s)", (old + MOST_LOOKED_AT,))
    young = await add(conn, kind="young.one")

    assert await _found(conn, q=".one") == [young]
