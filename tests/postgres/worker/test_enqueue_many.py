"""The bulk call of a kind: all or nothing, in our transaction or in the caller's."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from factories import value
from holdfast.errors import HoldfastError
from holdfast.worker.kinds import job

COUNT = "SELECT count(*) FROM holdfast.jobs"


@job("test.bulk")
async def bulk(number: int, note: str = "") -> None: ...


async def test_all_jobs_are_created_in_order(database: str, conn: Any) -> None:
    async with holdfast.connect(database):
        made = await bulk.enqueue_many({"number": number} for number in range(1200))

    ids = [one.id for one in made]
    assert len(made) == 1200
    assert ids == sorted(set(ids))
    assert made[-1].created
    assert await value(conn, f"SELECT payload FROM holdfast.jobs WHERE id = {made[700].id}") == {"number": 700}
    assert [one.id for one in made[10:12]] == ids[10:12]


@pytest.mark.parametrize("wrong", [{"number": "seven"}, {}, {"number": 1, "odd": 2}, {"number": 1, "note": "\x00"}])
async def test_one_invalid_job_creates_none(database: str, conn: Any, wrong: dict[str, Any]) -> None:
    async with holdfast.connect(database):
        with pytest.raises(HoldfastError):
            await bulk.enqueue_many([*({"number": number} for number in range(900)), wrong])

    assert await value(conn, COUNT) == 0


async def test_callers_transaction_continues_after_an_error(conn: Any) -> None:
    async with conn.transaction():
        await bulk.using(tx=conn).enqueue_many([{"number": 1}])
        with pytest.raises(HoldfastError):
            await bulk.using(tx=conn).enqueue_many([*({"number": number} for number in range(900)), {"number": "seven"}])

    assert await value(conn, COUNT) == 1


async def test_ids_drawn_by_others_in_between_are_not_used(database: str, conn: Any) -> None:
    # A sequence that jumps looks the same as one that others draw from.
    await conn.execute("ALTER SEQUENCE holdfast.jobs_id_seq INCREMENT 3")

    async with holdfast.connect(database):
        made = await bulk.enqueue_many({"number": number} for number in range(100))

    stored = await value(conn, "SELECT array_agg(id ORDER BY (payload->>'number')::int) FROM holdfast.jobs")
    assert [one.id for one in made] == stored
