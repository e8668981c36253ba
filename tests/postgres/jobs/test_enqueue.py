"""Making jobs: what is written, what is refused, and that nothing is ever half made."""

from __future__ import annotations

import asyncio
import math
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from factories import HOUR, add, clock, column, end, everything, hold, job, rows, start_worker, state_of, value
from holdfast.errors import Draining, IdempotencyConflict, LockBusy, NotFound, PayloadInvalid
from holdfast.jobs.claim import claim
from holdfast.jobs.control import drain, resume
from holdfast.jobs.enqueue import WORTH_A_COPY, enqueue, enqueue_many, enqueue_many_sync, enqueue_sync
from holdfast.jobs.model import Lock, NewJob
from holdfast.jobs.pipelines import Pipeline

MANY = WORTH_A_COPY + 10  # enough to go in by COPY


async def test_new_job_is_pending(conn: Any) -> None:
    made = await enqueue(conn, NewJob("invoice.render", {"invoice": 7}, queue="slow", priority=-3, max_attempts=5))

    found = await job(conn, made.id)
    assert made.created
    assert (found.kind, found.payload, found.queue, found.priority) == ("invoice.render", {"invoice": 7}, "slow", -3)
    assert (found.state, found.attempt_no, found.errors, found.max_attempts, found.run_after) == ("pending", 0, 0, 5, None)


async def test_default_max_attempts_is_three(conn: Any) -> None:
    """K-33."""
    found = await job(conn, await add(conn))

    assert (found.attempt_no, found.max_attempts, found.max_crashes) == (0, 3, 3)


async def test_dict_row_factory_is_supported(database: str) -> None:
    """The kernel reads its own rows as tuples, whatever the connection of the caller makes of them."""
    async with await psycopg.AsyncConnection.connect(database, autocommit=True, row_factory=dict_row) as conn:
        made = await enqueue(conn, NewJob("k", idempotency_key="i"))
        again = await enqueue(conn, NewJob("k", idempotency_key="i"))
        await enqueue_many(conn, [NewJob("k")] * MANY)

        assert (again.id, again.created) == (made.id, False)
    with psycopg.connect(database, autocommit=True, row_factory=dict_row) as sync:
        assert enqueue_sync(sync, NewJob("k", idempotency_key="i")).id == made.id


# ---------------------------------------------------------------------------------------------------------------------
# When it is due
# ---------------------------------------------------------------------------------------------------------------------


async def test_delay_uses_the_database_clock(conn: Any) -> None:
    """K-34."""
    before = await clock(conn)

    job_id = await add(conn, run_after=HOUR)

    after = await clock(conn)
    assert before + HOUR <= (await job(conn, job_id)).run_after <= after + HOUR


async def test_delay_counts_from_now_and_not_from_the_start_of_the_transaction(conn: Any) -> None:
    async with conn.transaction():
        started = await value(conn, "SELECT now()")
        await value(conn, "SELECT 1")
        job_id = await add(conn, run_after=HOUR)

    assert (await job(conn, job_id)).run_after > started + HOUR


async def test_future_time_is_kept(conn: Any) -> None:
    due = datetime(2199, 1, 1, tzinfo=UTC)

    assert (await job(conn, await add(conn, run_after=due))).run_after == due


@pytest.mark.parametrize("past", [timedelta(0), timedelta(hours=-1), datetime(2001, 1, 1, tzinfo=UTC)])
@pytest.mark.parametrize("count", [1, MANY])
async def test_past_time_is_no_delay(conn: Any, past: Any, count: int) -> None:
    """A null keeps the job on the index that claims walk over."""
    made = await enqueue_many(conn, [NewJob("k", run_after=past)] * count)

    assert (await job(conn, made[-1].id)).run_after is None


# ---------------------------------------------------------------------------------------------------------------------
# Many
# ---------------------------------------------------------------------------------------------------------------------

NASTY = [
    "tab\there",
    "line\nfeed",
    "carriage\rreturn",
    "back\\slash",
    "\\N",
    "\\.",
    "'quote'",
    '"double"',
    "%s %(a)s",
    "é😀",
    "{a,b}",
]


async def test_copy_keeps_special_characters(conn: Any) -> None:
    jobs = [
        NewJob(f"k{text}", {"text": text, text: [text]}, queue=f"q{text}", run_after=None) for text in NASTY for _ in range(6)
    ]

    made = await enqueue_many(conn, jobs)

    stored = await rows(
        conn, "SELECT kind, queue, payload FROM holdfast.jobs WHERE id = ANY (%s) ORDER BY id", [m.id for m in made]
    )
    assert stored == [(new.kind, new.queue, new.payload) for new in jobs]


async def test_claim_returns_special_characters_unchanged(conn: Any) -> None:
    await enqueue_many(conn, [NewJob(f"k{text}", text, queue=f"q{text}") for text in NASTY] * 6)

    claims = await claim(
        conn, await start_worker(conn), kinds=[f"k{t}" for t in NASTY], queues=[f"q{t}" for t in NASTY], limit=200
    )

    assert sorted({found.payload for found in claims}) == sorted(NASTY)
    assert len(claims) == len(NASTY) * 6


ALL_COLUMNS = """
    SELECT kind, queue, state, priority, ties, kind_version, payload, run_after, waiting_for, max_attempts, max_crashes,
        max_runtime, idempotency_key, unique_key, unique_while, slot_key, is_current, pipeline_id, parent_id, step,
        parents_left, if_parent_fails, generation, attempt_no, errors, crashes
    FROM holdfast.jobs WHERE id = ANY (%s) ORDER BY id
"""


ALL_WANTS = """
    SELECT key, most, when_busy, priority, waiting FROM holdfast.lock_wants WHERE job_id = ANY (%s) ORDER BY job_id, key
"""


async def test_a_copy_writes_the_same_rows_as_single_inserts(conn: Any) -> None:
    parent = await add(conn)
    due = datetime(2199, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)
    jobs = [
        NewJob(
            f"k{number}",
            {"n": number},
            queue="q",
            priority=number,
            run_after=due if number % 2 else None,
            max_attempts=number + 1,
            max_crashes=2,
            max_runtime=timedelta(hours=2, microseconds=5) if number % 3 else None,
            kind_version=4,
            pipeline_id=str(uuid4()),
            parent_id=parent,
            step=f"s\t{number}",
            locks=(Lock(f"t\t{number}"), Lock("all", most=None), Lock("few", most=4)) if number % 5 else (),
        )
        for number in range(MANY)
    ]
    singly = [(await enqueue(conn, new)).id for new in jobs]
    by_insert, wanted = await rows(conn, ALL_COLUMNS, singly), await rows(conn, ALL_WANTS, singly)
    await conn.execute("DELETE FROM holdfast.jobs WHERE id = ANY (%s)", [singly])

    made = await enqueue_many(conn, jobs)

    assert await rows(conn, ALL_COLUMNS, [m.id for m in made]) == by_insert
    assert await rows(conn, ALL_WANTS, [m.id for m in made]) == wanted


@pytest.mark.parametrize("count", [3, MANY])
async def test_enqueue_many_returns_jobs_in_order(conn: Any, count: int) -> None:
    made = await enqueue_many(conn, [NewJob("k", number) for number in range(count)])

    assert [m.id for m in made] == sorted(m.id for m in made)
    assert [payload for (payload,) in await rows(conn, "SELECT payload FROM holdfast.jobs ORDER BY id")] == list(range(count))


async def test_enqueue_many_of_nothing_creates_nothing(conn: Any) -> None:
    assert await enqueue_many(conn, []) == []


@pytest.mark.parametrize("count", [3, MANY])
async def test_enqueue_many_creates_all_jobs_or_none(conn: Any, count: int) -> None:
    jobs = [*[NewJob("k")] * (count - 1), NewJob("k", {"bad": "\x00"})]

    with pytest.raises(PayloadInvalid):
        await enqueue_many(conn, jobs)

    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 0


async def test_refused_lock_refuses_the_whole_batch(conn: Any) -> None:
    """E-47: neither a job without its lock, nor a lock without its job."""
    await add(conn, locks=(Lock("t", when_busy="reject"),))
    before = await everything(conn)

    with pytest.raises(LockBusy):
        await enqueue_many(conn, [NewJob("k"), NewJob("k", locks=(Lock("a"), Lock("t", when_busy="reject"), Lock("z")))])

    assert await everything(conn) == before


BUSY = NewJob("k", locks=(Lock("a", when_busy="reject"), Lock("t", when_busy="reject")))


def _pipeline() -> Pipeline:
    pipeline = Pipeline("p")
    pipeline.add(NewJob("k"))
    pipeline.add(BUSY)
    return pipeline


@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda conn: enqueue(conn, BUSY),
        lambda conn: enqueue_many(conn, [NewJob("k"), BUSY]),
        lambda conn: enqueue_many(conn, [NewJob("k", slot_key="s"), NewJob("k", after=(99,))]),
        lambda conn: _pipeline().enqueue(conn),
    ],
    ids=["one", "many", "many with a parent that is not there", "a pipeline"],
)
async def test_caught_refusal_creates_nothing_on_commit(make: Any, autocommit: bool, database: str, conn: Any) -> None:
    """A job that was refused for its lock must not run after all."""
    await add(conn, locks=BUSY.locks)  # both keys are known from now on
    await conn.execute("DELETE FROM holdfast.lock_holders WHERE key = 'a'")
    before = await everything(conn)

    async with await psycopg.AsyncConnection.connect(database) as caller:
        await caller.set_autocommit(autocommit)
        async with caller.transaction() if autocommit else nullcontext():
            with pytest.raises((LockBusy, NotFound)):
                await make(caller)
        await caller.commit()

    assert await everything(conn) == before


async def test_enqueue_many_works_from_sync_code(database: str, conn: Any) -> None:
    with psycopg.connect(database, autocommit=True) as sync:
        made = [*enqueue_many_sync(sync, [NewJob("k")] * MANY), *enqueue_many_sync(sync, [NewJob("k", slot_key="s")])]

    assert len(made) == await value(conn, "SELECT count(*) FROM holdfast.jobs")


# ---------------------------------------------------------------------------------------------------------------------
# Payloads that cannot be stored
# ---------------------------------------------------------------------------------------------------------------------


def _deep(levels: int) -> Any:
    found: Any = 0
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"a": "\x00"}, "NUL"),
        ({"a": "\ud800"}, "surrogate"),
        (_deep(65), "64 levels"),
        ("x" * 1_000_001, "1,000,000"),
        ({"a": math.nan}, "not JSON"),
    ],
    ids=["NUL", "surrogate", "depth", "size", "NaN"],
)
async def test_payload_that_cannot_be_stored_is_refused_and_the_transaction_continues(
    conn: Any, payload: Any, message: str
) -> None:
    """Refused before SQL: what the caller wrote beside it is not lost."""
    async with conn.transaction():
        kept = await add(conn)
        with pytest.raises(PayloadInvalid, match=message):
            await enqueue(conn, NewJob("k", payload))

    assert await rows(conn, "SELECT id FROM holdfast.jobs") == [(kept,)]


@pytest.mark.parametrize("payload", [None, [], "text", 1.5, _deep(64), {"é": "😀\x01"}, "x" * 999_998])
async def test_any_json_value_is_a_valid_payload(conn: Any, payload: Any) -> None:
    assert (await job(conn, await add(conn, payload=payload))).payload == payload


@pytest.mark.parametrize("field", ["kind", "queue", "idempotency_key", "unique_key", "slot_key", "step"])
async def test_nul_characters_are_refused_in_every_text_column(conn: Any, field: str) -> None:
    fields: dict[str, Any] = {"kind": "k", field: "a\x00"} | ({"parent_id": 1} if field == "step" else {})

    with pytest.raises(PayloadInvalid, match="NUL"):
        await enqueue(conn, NewJob(**fields))

    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 0


async def test_database_refuses_a_time_limit_that_overflows(conn: Any) -> None:
    """One such row made every claim of its kind fail, for every worker."""
    with pytest.raises(psycopg.errors.CheckViolation, match="a_duration"):
        await conn.execute("INSERT INTO holdfast.jobs (kind, max_runtime) VALUES ('k', interval '100000 years')")


@pytest.mark.parametrize("count", [1, MANY])
async def test_nul_character_is_refused_in_a_lock_key(conn: Any, count: int) -> None:
    async with conn.transaction():
        with pytest.raises(PayloadInvalid, match="lock key"):
            await enqueue_many(conn, [NewJob("k", locks=(Lock("t\x00"),))] * count)
        assert await value(conn, "SELECT 1") == 1, "the caller's transaction goes on"

    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 0


# ---------------------------------------------------------------------------------------------------------------------
# The same again: idempotency keys and unique jobs
# ---------------------------------------------------------------------------------------------------------------------


async def test_idempotency_key_creates_one_job(conn: Any) -> None:
    first = await enqueue(conn, NewJob("k", {"a": 1, "b": 2}, idempotency_key="i"))

    again = await enqueue(conn, NewJob("k", {"b": 2, "a": 1}, idempotency_key="i"))

    assert (again.id, again.created) == (first.id, False)


async def test_idempotency_key_returns_an_ended_job(conn: Any) -> None:
    ended = await hold(conn, idempotency_key="i")
    await end(conn, ended)

    assert await enqueue(conn, NewJob("k", idempotency_key="i")) == (ended.id, False)


async def test_idempotency_key_with_another_payload_is_a_conflict(conn: Any) -> None:
    first = await enqueue(conn, NewJob("k", {"a": 1}, idempotency_key="i"))

    with pytest.raises(IdempotencyConflict, match="use a new key") as refused:
        await enqueue(conn, NewJob("k", {"a": 2}, idempotency_key="i"))

    assert (refused.value.key, refused.value.job_id) == ("i", first.id)


async def test_idempotency_key_is_scoped_to_its_kind(conn: Any) -> None:
    assert (await enqueue(conn, NewJob("a", idempotency_key="i"))).created
    assert (await enqueue(conn, NewJob("b", idempotency_key="i"))).created


async def test_bulk_enqueues_with_the_same_keys_in_any_order_do_not_deadlock(connect: Any) -> None:
    one, other = await connect(), await connect()
    for number in range(20):
        jobs = [NewJob("k", n, unique_key=f"{number}/{n}", idempotency_key=f"{number}/{n}") for n in range(12)]

        made = await asyncio.gather(enqueue_many(one, jobs), enqueue_many(other, jobs[::-1]))

        assert [job.id for job in made[0]] == [job.id for job in made[1]][::-1]
        assert sum(job.created for job in (*made[0], *made[1])) == 12
    ids = await rows(one, "SELECT payload, id FROM holdfast.jobs WHERE unique_key LIKE '0/%' ORDER BY id")
    assert [n for n, _ in ids] in (list(range(12)), list(range(12))[::-1]), "in the order of whoever came first"


@pytest.mark.parametrize("unique_while", ["waiting", "live"])
async def test_enqueue_returns_a_waiting_unique_job(conn: Any, unique_while: Any) -> None:
    first = await enqueue(conn, NewJob("k", {"a": 1}, unique_key="u", unique_while=unique_while))

    again = await enqueue(conn, NewJob("k", {"a": 2}, unique_key="u", unique_while=unique_while))

    assert (again.id, again.created) == (first.id, False)
    assert (await enqueue(conn, NewJob("other", unique_key="u", unique_while=unique_while))).created


async def test_unique_while_waiting_allows_a_new_job_once_it_runs(conn: Any) -> None:
    """E-40: a change that arrives while the job runs is not lost."""
    running = await hold(conn, unique_key="u")

    again = await enqueue(conn, NewJob("k", unique_key="u"))
    third = await enqueue(conn, NewJob("k", unique_key="u"))

    assert again.created
    assert again.id != running.id
    assert third == (again.id, False)


async def test_unique_while_live_returns_the_job_until_it_has_ended(conn: Any) -> None:
    running = await hold(conn, unique_key="u", unique_while="live")

    assert await enqueue(conn, NewJob("k", unique_key="u", unique_while="live")) == (running.id, False)

    await end(conn, running)
    assert (await enqueue(conn, NewJob("k", unique_key="u", unique_while="live"))).created


async def test_blocked_job_counts_as_waiting_for_uniqueness(conn: Any) -> None:
    parent = await add(conn)
    blocked = await add(conn, unique_key="u", after=(parent,))

    assert await enqueue(conn, NewJob("k", unique_key="u")) == (blocked, False)


async def test_a_step_of_a_parent_exists_once(conn: Any) -> None:
    parent = await add(conn)
    first = await enqueue(conn, NewJob("k", parent_id=parent, step="s"))

    again = await enqueue(conn, NewJob("k", parent_id=parent, step="s"))

    assert (again.id, again.created) == (first.id, False)


# ---------------------------------------------------------------------------------------------------------------------
# Drained kinds
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drained", ["k", "*"])
@pytest.mark.parametrize("count", [1, MANY])
async def test_a_drained_kind_takes_no_new_jobs(conn: Any, drained: str, count: int) -> None:
    """K-63."""
    await drain(conn, drained, actor="ada", reason="upgrade")

    with pytest.raises(Draining, match="k is drained and accepts no new jobs: upgrade"):
        await enqueue_many(conn, [NewJob("k")] * count)

    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 0


@pytest.mark.parametrize("fields", [{"slot_key": "s"}, {"run_after": HOUR}, {"locks": (Lock("t", when_busy="reject"),)}])
async def test_a_drained_kind_takes_no_new_jobs_of_any_sort(conn: Any, fields: dict[str, Any]) -> None:
    await drain(conn, "k", actor="ada")
    before = await everything(conn)

    with pytest.raises(Draining):
        await enqueue(conn, NewJob("k", **fields))

    assert await everything(conn) == before


async def test_drain_does_not_affect_other_kinds_and_ends_with_resume(conn: Any) -> None:
    await drain(conn, "k", actor="ada")

    assert (await enqueue(conn, NewJob("other"))).created

    await resume(conn, "k")
    assert (await enqueue(conn, NewJob("k"))).created


async def test_repeated_idempotent_enqueue_succeeds_during_a_drain(conn: Any) -> None:
    first = await enqueue(conn, NewJob("k", idempotency_key="i"))
    await drain(conn, "k", actor="ada")

    assert await enqueue(conn, NewJob("k", idempotency_key="i")) == (first.id, False)


# ---------------------------------------------------------------------------------------------------------------------
# Hints
# ---------------------------------------------------------------------------------------------------------------------


async def _hints(listener: Any, sender: Any) -> list[str]:
    """What was heard up to now."""
    await sender.execute("SELECT pg_notify('holdfast', 'that is all')")
    heard: list[str] = []
    async for note in listener.notifies(timeout=60):
        if note.payload == "that is all":
            return heard
        heard.append(note.payload)
    raise AssertionError(f"only {heard} was heard")


async def test_idle_workers_are_notified_after_the_commit(connect: Any) -> None:
    listener, sender = await connect(), await connect()
    await listener.execute("LISTEN holdfast")

    async with sender.transaction():
        await add(sender, queue="a")
        await enqueue_many(sender, [NewJob("k", queue="b")] * MANY)
    async with sender.transaction(force_rollback=True):
        await add(sender, queue="never")
    await enqueue(sender, NewJob("k", queue="quiet"), hint=False)

    assert sorted(await _hints(listener, sender)) == ["a", "b"]


async def test_blocked_job_sends_no_notification(connect: Any) -> None:
    listener, sender = await connect(), await connect()
    parent = await add(sender, queue="parent")
    await listener.execute("LISTEN holdfast")

    await add(sender, queue="child", after=(parent,))

    assert await _hints(listener, sender) == []


# ---------------------------------------------------------------------------------------------------------------------
# Parents
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_job_waits_for_its_parents(conn: Any) -> None:
    parents = (await add(conn), await add(conn))

    child = await add(conn, after=(*parents, parents[0]))

    assert (await job(conn, child)).waiting_for == "parents"
    assert await column(conn, child, "parents_left") == 2, "a parent that is named twice is one parent"


async def test_unknown_parent_is_refused(conn: Any) -> None:
    parent = await add(conn)
    before = await everything(conn)

    with pytest.raises(NotFound, match="no job with id 999999999 to wait for"):
        await add(conn, after=(parent, 999999999))

    assert await everything(conn) == before


async def test_completed_parent_is_not_waited_for(conn: Any) -> None:
    parent = await hold(conn)
    await end(conn, parent)

    assert await state_of(conn, await add(conn, after=(parent.id,))) == "pending"
