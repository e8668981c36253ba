"""A fan-out of a job without a pipeline is one; `Pipeline.enqueue()` needs no connection."""

from __future__ import annotations

from typing import Any

import pytest

from factories import end, hold, job, rows, state_of, take, value
from holdfast.errors import UsageError
from holdfast.jobs.cancel import abort
from holdfast.jobs.client import connect as connect_client
from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import Done
from holdfast.jobs.pipelines import Pipeline, list_pipelines


@pytest.mark.parametrize("done", [Done(then=[NewJob("a"), NewJob("b")]), Done(then=[NewJob("a")], join=NewJob("b"))])
async def test_fan_out_creates_a_pipeline_named_after_its_kind(conn: Any, done: Done) -> None:
    parent = await hold(conn, "plan")

    await end(conn, parent, done)

    (pipeline,) = await list_pipelines(conn)
    assert (pipeline.name, sum(pipeline.counts.values())) == ("plan", 3)
    assert await rows(conn, "SELECT DISTINCT pipeline_id::text FROM holdfast.jobs") == [(pipeline.id,)]


async def test_chain_creates_no_pipeline_and_keeps_an_existing_one(conn: Any) -> None:
    await end(conn, await hold(conn), Done(then=[NewJob("a")]))
    assert await list_pipelines(conn) == []

    built = Pipeline("mine")
    built.add(NewJob("plan"))
    (made,) = await built.enqueue(conn)
    await end(conn, await take(conn, made.id), Done(then=[NewJob("a"), NewJob("b")]))

    assert [(one.id, one.name) for one in await list_pipelines(conn)] == [(built.id, "mine")]


async def test_fan_out_pipeline_can_be_aborted(conn: Any) -> None:
    parent = await hold(conn, "plan")
    await end(conn, parent, Done(then=[NewJob("a"), NewJob("b")], join=NewJob("c")))
    (pipeline,) = await list_pipelines(conn)

    assert await abort(conn, pipeline.id, actor="me") == 3

    assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE state = 'cancelled'") == 3
    assert await state_of(conn, parent.id) == "completed"


async def test_refused_fan_out_leaves_no_pipeline(conn: Any) -> None:
    parent = await hold(conn, "plan")

    with pytest.raises(UsageError, match="the step"):
        await end(conn, parent, Done(then=[NewJob("a", step="same"), NewJob("b", step="same")]))

    assert await list_pipelines(conn) == []
    assert (await job(conn, parent.id)).pipeline_id is None


async def test_pipeline_is_enqueued_by_the_current_client(conn: Any, database: str) -> None:
    pipeline = Pipeline("mine")
    first = pipeline.add(NewJob("a"))
    pipeline.add(NewJob("b"), after=first)

    with pytest.raises(UsageError, match="holdfast.connect"):
        await pipeline.enqueue()
    async with connect_client(database):
        made = await pipeline.enqueue()

    assert [await state_of(conn, one.id) for one in made] == ["pending", "blocked"]
