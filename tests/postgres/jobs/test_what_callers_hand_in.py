"""The everyday calls, as people mistake them: each error names what was given and the way out."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

import holdfast
from factories import add, job, rows
from holdfast.errors import UsageError
from holdfast.jobs.client import Client
from holdfast.jobs.enqueue import enqueue, enqueue_many
from holdfast.jobs.model import Enqueued, JobId, NewJob
from holdfast.jobs.pipelines import Pipeline, read_pipeline

Call = Callable[[Client, Any], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "get": lambda client, one: client.get(one),
    "explain": lambda client, one: client.explain(one),
    "history": lambda client, one: client.history(one),
    "logs": lambda client, one: client.logs(one),
    "cancel": lambda client, one: client.cancel(one, actor="ada"),
    "recover": lambda client, one: client.recover(one, actor="ada"),
    "rerun": lambda client, one: client.rerun(one, actor="ada"),
}
MISTAKEN: dict[str, tuple[Any, str]] = {
    "a word": ("abc", "job_id cannot be 'abc': it is the id of a job: the number that its enqueue gave back as .id"),
    "what an enqueue gave back": (Enqueued(JobId(7), True), "job_id cannot be Enqueued(id=7, created=True): pass its .id"),
    "nothing": (None, "job_id cannot be None: it is the id of a job"),
    "more than there can be": (2**63, f"job_id cannot be {2**63}: it is the id of a job"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("given", "message"), MISTAKEN.values(), ids=MISTAKEN.keys())
async def test_what_is_no_id_is_told_so(database: str, call: str, given: Any, message: str) -> None:
    async with holdfast.connect(database) as client:
        with pytest.raises(UsageError, match=re.escape(message)):
            await CALLS[call](client, given)


async def test_an_id_that_stood_in_an_address_is_one(database: str, conn: Any) -> None:
    made = await add(conn)

    async with holdfast.connect(database) as client:
        assert (await client.get(str(made))).id == made  # type: ignore[arg-type]


async def test_a_pipeline_is_enqueued_once_and_the_callers_transaction_outlives_the_mistake(conn: Any) -> None:
    pipeline = Pipeline("nightly")
    pipeline.add(NewJob("k"))

    async with conn.transaction():
        (made,) = await pipeline.enqueue(conn)
        with pytest.raises(
            UsageError, match=r"pipeline 'nightly' \(.*\) was enqueued before; make a new Pipeline for every run"
        ):
            await pipeline.enqueue(conn)

    assert await rows(conn, "SELECT id FROM holdfast.jobs") == [(made.id,)]


async def test_a_pipeline_whose_transaction_was_rolled_back_can_be_enqueued_again(conn: Any) -> None:
    pipeline = Pipeline("nightly")
    pipeline.add(NewJob("k"))
    async with conn.transaction(force_rollback=True):
        await pipeline.enqueue(conn)

    assert (await pipeline.enqueue(conn))[0].created


@pytest.mark.parametrize("count", [1, 60], ids=["one", "a bulk"])
async def test_jobs_that_share_an_id_from_elsewhere_are_a_pipeline(conn: Any, count: int) -> None:
    shared = str(uuid4())

    await enqueue_many(conn, [NewJob("k", pipeline_id=shared)] * count)
    later = await enqueue(conn, NewJob("other", pipeline_id=shared))

    assert (await job(conn, later.id)).pipeline_id == shared
    seen = await read_pipeline(conn, shared)
    assert (seen.name, seen.status, sum(seen.counts.values())) == ("k", "running", count + 1)
