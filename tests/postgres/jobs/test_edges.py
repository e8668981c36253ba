"""What a caller gets wrong is said in our words, before it meets SQL: never an error of the driver."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from factories import (
    EXPIRED,
    HOUR,
    add,
    end,
    everything,
    hold,
    job,
    rows,
    start_worker,
    state_of,
    take,
    value,
    waits,
)
from holdfast.errors import NotFound, PayloadInvalid, UsageError
from holdfast.jobs import control
from holdfast.jobs.cancel import abort, cancel
from holdfast.jobs.enqueue import WORTH_A_COPY, enqueue, enqueue_many, enqueue_many_sync
from holdfast.jobs.kinds import job_by_name
from holdfast.jobs.model import JobId, Lock, NewJob
from holdfast.jobs.outcome import Done, Fail
from holdfast.jobs.pipelines import complete_and_chain, read_pipeline
from holdfast.jobs.recover import recover
from holdfast.jobs.rerun import rerun
from holdfast.jobs.views.read import list_jobs

MANY = WORTH_A_COPY + 10  # enough to go in by COPY
BAD_TEXTS = ["a\x00b", "half of a pair: \ud800"]
bad_text = pytest.mark.parametrize("text", BAD_TEXTS, ids=["NUL", "half a surrogate pair"])


# ---------------------------------------------------------------------------------------------------------------------
# The child of a chain
# ---------------------------------------------------------------------------------------------------------------------

NOT_PLAIN: dict[str, dict[str, Any]] = {
    "a lock": {"locks": (Lock("t"),)},
    "a slot": {"slot_key": "s"},
    "a unique key": {"unique_key": "u"},
    "an idempotency key": {"idempotency_key": "i"},
    "a parent": {"after": (1,)},
    "a delay": {"run_after": timedelta(hours=1)},
}


@pytest.mark.parametrize("fields", NOT_PLAIN.values(), ids=NOT_PLAIN.keys())
async def test_chain_claims_only_a_plain_child_that_can_run_now(conn: Any, fields: dict[str, Any]) -> None:
    parent = await hold(conn)
    before = await everything(conn)

    with pytest.raises(UsageError, match="next cannot be claimed at once: it has a lock, a slot, a key, parents or a delay"):
        await complete_and_chain(conn, parent, None, NewJob("next", **fields))

    assert await everything(conn) == before


async def test_chain_does_not_create_an_existing_child_twice(conn: Any) -> None:
    """The long way finds it; nothing was written on the short one."""
    parent = await hold(conn)
    child = await add(conn, "next", parent_id=parent.id, step="s")
    before = await everything(conn)

    assert await complete_and_chain(conn, parent, None, NewJob("next", step="s")) is None
    assert await everything(conn) == before
    await end(conn, parent, Done(then=[NewJob("next", step="s")]))

    assert await rows(conn, "SELECT id FROM holdfast.jobs WHERE parent_id = %s", parent.id) == [(child,)]


@bad_text
async def test_chain_refuses_a_step_name_that_cannot_be_stored(conn: Any, text: str) -> None:
    parent = await hold(conn)

    with pytest.raises(PayloadInvalid, match="the step contains"):
        await complete_and_chain(conn, parent, None, NewJob("next", step=text))

    assert await state_of(conn, parent.id) == "running"


# ---------------------------------------------------------------------------------------------------------------------
# Locks, pipelines, parents
# ---------------------------------------------------------------------------------------------------------------------


def test_duplicate_lock_keys_are_refused() -> None:
    with pytest.raises(UsageError, match="lock 't' is listed twice for one job; list it once, with the smaller `most`"):
        NewJob("k", locks=(Lock("t"), Lock("u"), Lock("t", most=None)))


@pytest.mark.parametrize("wrong", ["nightly", "", "urn", "0" * 31])
async def test_pipeline_id_is_a_uuid(conn: Any, wrong: str) -> None:
    said = f"pipeline_id {wrong!r} is not a UUID"
    with pytest.raises(UsageError, match=said):
        NewJob("k", pipeline_id=wrong)
    with pytest.raises(UsageError, match=said):
        await read_pipeline(conn, wrong)
    with pytest.raises(UsageError, match=said):
        await abort(conn, wrong, actor="ada")
    with pytest.raises(UsageError, match=said):
        await list_jobs(conn, pipeline_id=wrong)
    with pytest.raises(UsageError, match=f"worker_id {wrong!r} is not a UUID"):
        await list_jobs(conn, worker_id=wrong)


async def test_every_uuid_spelling_names_the_same_pipeline(conn: Any) -> None:
    pipeline = uuid4()
    for written in (pipeline, str(pipeline), pipeline.hex, pipeline.urn, str(pipeline).upper()):
        await add(conn, pipeline_id=written)

    assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE pipeline_id = %s", pipeline) == 5


@pytest.mark.parametrize("parent", [0, -1, 2**63, 10**30])
def test_parent_is_a_job_id(parent: int) -> None:
    with pytest.raises(UsageError, match=f"parent_id cannot be {parent}: must be the id of a job"):
        NewJob("k", parent_id=parent, step="s")
    with pytest.raises(UsageError, match=f"after cannot be {parent}: must be the id of a job"):
        NewJob("k", after=(parent,))


@pytest.mark.parametrize("count", [1, MANY], ids=["one", "a bulk"])
async def test_unknown_parent_is_refused(conn: Any, count: int) -> None:
    before = await everything(conn)

    with pytest.raises(NotFound, match="there is no job 999999999 to be the parent of this one"):
        await enqueue_many(conn, [NewJob("k", parent_id=999999999, step=str(n)) for n in range(count)])

    assert await everything(conn) == before


# ---------------------------------------------------------------------------------------------------------------------
# Steps in bulk
# ---------------------------------------------------------------------------------------------------------------------


@bad_text
@pytest.mark.parametrize("count", [1, MANY], ids=["one", "a bulk"])
async def test_a_step_that_cannot_be_stored_is_refused(conn: Any, count: int, text: str) -> None:
    parent = await add(conn)
    before = await everything(conn)

    with pytest.raises(PayloadInvalid, match="the step contains"):
        await enqueue_many(conn, [NewJob("k", parent_id=parent, step=f"{n}{text}") for n in range(count)])

    assert await everything(conn) == before


async def test_bulk_enqueue_finds_existing_children_like_a_single_one(conn: Any) -> None:
    parent, other = await add(conn), await add(conn)
    there = await add(conn, parent_id=parent, step="3")
    await add(conn, parent_id=other, step="4")
    jobs = [NewJob("k", {"n": n}, parent_id=parent, step=str(n)) for n in range(MANY)]
    alone = NewJob("alone")

    made = await enqueue_many(conn, [*jobs, alone, jobs[7], alone])

    assert [number for number, one in enumerate(made) if not one.created] == [3, MANY + 1]
    assert (made[3].id, made[MANY + 1].id) == (there, made[7].id)
    assert len({one.id for one in made}) == len(made) - 1
    steps = dict(await rows(conn, "SELECT id, step FROM holdfast.jobs WHERE parent_id = %s", parent))
    assert [steps[one.id] for one in made[:MANY]] == [str(n) for n in range(MANY)], "in their order"
    assert [(await job(conn, one.id)).payload for one in made[:3]] == [{"n": 0}, {"n": 1}, {"n": 2}]

    again = await enqueue_many(conn, jobs)

    assert again == [(one.id, False) for one in made[:MANY]]


async def test_sync_bulk_enqueue_finds_existing_children(conn: Any, database: str) -> None:
    parent = await add(conn)
    jobs = [NewJob("k", parent_id=parent, step=str(n)) for n in range(MANY)]
    with psycopg.connect(database, autocommit=True) as sync:
        first = enqueue_many_sync(sync, jobs)
        again = enqueue_many_sync(sync, jobs)

    assert {one.created for one in first} == {True}
    assert again == [(one.id, False) for one in first]


@pytest.mark.parametrize("count", [1, MANY], ids=["one", "another bulk"])
async def test_enqueue_of_a_child_waits_for_a_concurrent_bulk_and_finds_it(connect: Any, count: int) -> None:
    """Stepped: neither side ever meets the unique index."""
    conn, one, two = await connect(), await connect(), await connect()
    parent = await add(conn)
    jobs = [NewJob("k", parent_id=parent, step=str(n)) for n in range(MANY)]

    async with one.transaction():
        made = await enqueue_many(one, jobs)
        late = asyncio.create_task(enqueue_many(two, jobs[:count]))
        await waits(conn, two)

    assert await late == [(first.id, False) for first in made[:count]]


async def test_bulk_enqueue_waits_for_a_concurrent_child_and_finds_it(connect: Any) -> None:
    conn, one, two = await connect(), await connect(), await connect()
    parent = await add(conn)
    jobs = [NewJob("k", parent_id=parent, step=str(n)) for n in range(MANY)]

    async with one.transaction():
        first = await enqueue(one, jobs[5])
        late = asyncio.create_task(enqueue_many(two, jobs))
        await waits(conn, two)

    made = await late
    assert made[5] == (first.id, False)
    assert sum(one.created for one in made) == MANY - 1


# ---------------------------------------------------------------------------------------------------------------------
# What operators say
# ---------------------------------------------------------------------------------------------------------------------


async def _cancelled(conn: Any, **said: Any) -> None:
    await cancel(conn, await add(conn), **said)


async def _aborted(conn: Any, **said: Any) -> None:
    await abort(conn, str(uuid4()), **said)


async def _recovered(conn: Any, **said: Any) -> None:
    stale = await take(conn, await add(conn), await start_worker(conn, lease=EXPIRED))
    await recover(conn, stale.id, **said)


async def _run_again(conn: Any, **said: Any) -> None:
    failed = await hold(conn)
    await end(conn, failed, Fail("no"))
    await rerun(conn, failed.id, **said)


async def _paused(conn: Any, **said: Any) -> None:
    await control.pause(conn, "k", **said)


async def _drained(conn: Any, **said: Any) -> None:
    await control.drain(conn, "k", **said)


ACTS = [_cancelled, _aborted, _recovered, _run_again, _paused, _drained]


@bad_text
@pytest.mark.parametrize("what", ["reason", "actor"])
@pytest.mark.parametrize("act", ACTS)
async def test_reason_that_cannot_be_stored_is_refused(conn: Any, act: Any, what: str, text: str) -> None:
    with pytest.raises(PayloadInvalid, match=f"the {what} contains"):
        await act(conn, **{"actor": "ada", "reason": "because", what: text})

    assert await value(conn, "SELECT count(*) FROM holdfast.history WHERE actor IS NOT NULL") == 0
    assert await control.controls(conn) == []


@bad_text
async def test_controls_refuse_a_kind_that_cannot_be_stored(conn: Any, text: str) -> None:
    for act in (control.pause, control.drain):
        with pytest.raises(PayloadInvalid, match="the kind contains"):
            await act(conn, text, actor="ada")
    with pytest.raises(PayloadInvalid, match="the kind contains"):
        await control.resume(conn, text)


@bad_text
async def test_declaration_lookup_refuses_a_kind_that_cannot_be_stored(conn: Any, text: str) -> None:
    with pytest.raises(PayloadInvalid, match="the kind contains"):
        await job_by_name(conn, text, allow_unknown=True)


async def test_refused_value_does_not_change_a_running_job(conn: Any) -> None:
    claim = await hold(conn, max_runtime=HOUR)
    before = await everything(conn)

    with pytest.raises(PayloadInvalid):
        await cancel(conn, JobId(claim.id), actor="ada", reason="\x00", force=True)

    assert await everything(conn) == before
