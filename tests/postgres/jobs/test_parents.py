"""A job sees the results of the jobs that it waited for."""

from __future__ import annotations

from typing import Any

import pytest

from factories import add, end, hold, rows, take
from holdfast import Context, Done, Parent, SyncContext, job
from holdfast.errors import UsageError
from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import Fail
from holdfast.jobs.parents import read_parents
from holdfast.jobs.pipelines import Pipeline
from holdfast.testing import harness
from holdfast.worker import kinds


@pytest.fixture(autouse=True)
def own_kinds() -> Any:
    before = dict(kinds._kinds)
    yield
    kinds._kinds.clear()
    kinds._kinds.update(before)


async def test_fan_in_reads_its_parents_in_declared_order(conn: Any) -> None:
    first, second = await hold(conn, "a"), await hold(conn, "b")
    await end(conn, first, Done({"rows": 1}))  # one that has ended before the fan-in is enqueued is a parent too
    joined = await add(conn, "join", after=(second.id, first.id))
    await end(conn, second, Done("two"))

    found = await read_parents(conn, await take(conn, joined))

    assert found == [Parent(second.id, "b", None, "completed", "two"), Parent(first.id, "a", None, "completed", {"rows": 1})]


async def test_join_reads_the_children_and_not_their_parent(conn: Any) -> None:
    parent = await hold(conn, "plan")
    await end(conn, parent, Done("planned", then=[NewJob("part"), NewJob("part")], join=NewJob("join")))
    ids = dict(await rows(conn, "SELECT step, id FROM holdfast.jobs WHERE parent_id = %s", parent.id))
    for number, step in enumerate(["0:part", "1:part"]):
        await end(conn, await take(conn, ids[step]), Done(number))

    found = await read_parents(conn, await take(conn, ids["join:join"]))

    assert [(one.step, one.result) for one in found] == [("0:part", 0), ("1:part", 1)]


async def test_chained_job_reads_its_parent(conn: Any) -> None:
    parent = await hold(conn, "plan")
    await end(conn, parent, Done("planned", then=[NewJob("next")]))
    ((child,),) = await rows(conn, "SELECT id FROM holdfast.jobs WHERE parent_id = %s", parent.id)

    (found,) = await read_parents(conn, await take(conn, child))

    assert (found.id, found.result) == (parent.id, "planned")


async def test_a_job_without_parents_has_none(conn: Any) -> None:
    assert await read_parents(conn, await hold(conn)) == []


async def test_failed_parent_is_included_with_its_state(conn: Any) -> None:
    parent = await hold(conn, "a")
    joined = await add(conn, "join", after=(parent.id,), if_parent_fails="run")
    await end(conn, parent, Fail("no"))

    (found,) = await read_parents(conn, await take(conn, joined))

    assert (found.state, found.result) == ("failed", None)


async def test_job_from_before_the_column_reads_its_dependencies(conn: Any) -> None:
    parent = await hold(conn, "a")
    joined = await add(conn, "join", after=(parent.id,))
    await end(conn, parent, Done(5))
    await conn.execute("UPDATE holdfast.jobs SET parents = NULL")

    assert [one.result for one in await read_parents(conn, await take(conn, joined))] == [5]


async def test_oversized_results_are_refused_with_advice(conn: Any) -> None:
    parent = await hold(conn, "a")
    joined = await add(conn, "join", after=(parent.id,))
    await end(conn, parent, Done("x" * 100))
    claim = await take(conn, joined)

    with pytest.raises(UsageError, match="102 bytes, and .* at most 101; store large results"):
        await read_parents(conn, claim, most_bytes=101)
    assert await read_parents(conn, claim, most_bytes=102)


async def test_handlers_get_typed_parents(database: str) -> None:
    seen: list[Any] = []

    @job("test.part")
    async def part(n: int) -> dict[str, int]:
        return {"rows": n}

    @job("test.sum")
    async def total(ctx: Context) -> int:
        parents = await ctx.parents(dict[str, int])
        return sum(parent.result["rows"] for parent in parents if parent.result is not None)

    @job("test.plain")
    def plain(ctx: SyncContext) -> None:
        seen.extend(parent.result for parent in ctx.parents())

    @job("test.wrong", max_attempts=1)
    async def wrong(ctx: Context) -> None:
        await ctx.parents(str)

    pipeline = Pipeline("sums")
    parts = [pipeline.add(part.new(n=number)) for number in (3, 4)]
    end_of = [pipeline.add(one.new(), after=parts) for one in (total, plain, wrong)]
    async with harness(database, [part, total, plain, wrong]) as h:
        made = await pipeline.enqueue(h.conn)
        await h.drain()
        states = {row[0]: row[1:] for row in await rows(h.conn, "SELECT id, state, result, error FROM holdfast.jobs")}

    summed, _, refused = (states[made[step.number].id] for step in end_of)
    assert summed[:2] == ("completed", 7)
    assert seen == [{"rows": 3}, {"rows": 4}]
    assert refused[0] == "failed"
    assert "the result of a parent" in refused[2]
