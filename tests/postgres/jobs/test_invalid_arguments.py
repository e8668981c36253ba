"""Invalid arguments of the client's calls: each error names the value and the fix."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

import holdfast
from factories import add, hold, job, rows
from holdfast import job as decorated
from holdfast.errors import UsageError
from holdfast.jobs.client import Client
from holdfast.jobs.enqueue import enqueue, enqueue_many
from holdfast.jobs.model import Enqueued, JobId, NewJob
from holdfast.jobs.pipelines import Pipeline, read_pipeline
from holdfast.jobs.progress import report

Call = Callable[[Client, Any], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "get": lambda client, one: client.get(one),
    "explain": lambda client, one: client.explain(one),
    "history": lambda client, one: client.history(one),
    "logs": lambda client, one: client.logs(one),
    "cancel": lambda client, one: client.cancel(one, actor="ada"),
    "recover": lambda client, one: client.recover(one, actor="ada"),
    "retry": lambda client, one: client.retry(one, actor="ada"),
}
MISTAKEN: dict[str, tuple[Any, str]] = {
    "a word": ("abc", "job_id cannot be 'abc': must be the id of a job: the number that enqueue returned as .id"),
    "what an enqueue gave back": (Enqueued(JobId(7), True), "job_id cannot be Enqueued(id=7, created=True): pass its .id"),
    "nothing": (None, "job_id cannot be None: must be the id of a job"),
    "more than there can be": (2**63, f"job_id cannot be {2**63}: must be the id of a job"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("given", "message"), MISTAKEN.values(), ids=MISTAKEN.keys())
async def test_invalid_id_is_refused(database: str, call: str, given: Any, message: str) -> None:
    async with holdfast.connect(database) as client:
        with pytest.raises(UsageError, match=re.escape(message)):
            await CALLS[call](client, given)


async def test_id_from_a_url_is_accepted(database: str, conn: Any) -> None:
    made = await add(conn)

    async with holdfast.connect(database) as client:
        assert (await client.get(str(made))).id == made  # type: ignore[arg-type]


async def test_second_enqueue_of_a_pipeline_is_refused_and_the_transaction_continues(conn: Any) -> None:
    pipeline = Pipeline("nightly")
    pipeline.add(NewJob("k"))

    async with conn.transaction():
        (made,) = await pipeline.enqueue(conn)
        with pytest.raises(
            UsageError, match=r"pipeline 'nightly' \(.*\) was already enqueued; create a new Pipeline for every run"
        ):
            await pipeline.enqueue(conn)

    assert await rows(conn, "SELECT id FROM holdfast.jobs") == [(made.id,)]


async def test_pipeline_can_be_enqueued_again_after_a_rollback(conn: Any) -> None:
    pipeline = Pipeline("nightly")
    pipeline.add(NewJob("k"))
    async with conn.transaction(force_rollback=True):
        await pipeline.enqueue(conn)

    assert (await pipeline.enqueue(conn))[0].created


@pytest.mark.parametrize("count", [1, 60], ids=["one", "a bulk"])
async def test_jobs_with_the_same_external_pipeline_id_are_a_pipeline(conn: Any, count: int) -> None:
    shared = str(uuid4())

    await enqueue_many(conn, [NewJob("k", pipeline_id=shared)] * count)
    later = await enqueue(conn, NewJob("other", pipeline_id=shared))

    assert (await job(conn, later.id)).pipeline_id == shared
    seen = await read_pipeline(conn, shared)
    assert (seen.name, seen.status, sum(seen.counts.values())) == ("k", "running", count + 1)


# ---------------------------------------------------------------------------------------------------------------------
# A kind for its job, one for many, a number for a span
# ---------------------------------------------------------------------------------------------------------------------


@decorated("handed.render")
async def render(invoice_id: int) -> None: ...


NEEDS_NEW = "a job cannot be <job handed.render>: must be the result of .new(…); use render.new(…) with its arguments"
ONE_SET = "must be a list with one mapping for each job; use [{'invoice_id': 7}]"
MISTAKES: dict[str, tuple[Callable[[Client], Awaitable[Any]], str]] = {
    "a kind for a job": (lambda c: c.enqueue(render), NEEDS_NEW),  # type: ignore[arg-type]
    "kinds for jobs": (lambda c: c.enqueue_many([render]), NEEDS_NEW),  # type: ignore[list-item]
    "a job for many": (lambda c: c.enqueue_many(NewJob("k")), "must be a list; use jobs=[render.new(…)]"),  # type: ignore[arg-type]
    "one set of arguments": (lambda c: render.enqueue_many({"invoice_id": 7}), ONE_SET),  # type: ignore[arg-type]
    "arguments without a name": (lambda c: render.enqueue_many([7]), "arguments cannot be [7]: must be a list of mappings"),  # type: ignore[list-item]
    "jobs for arguments": (
        lambda c: render.enqueue_many([render.new(1)]),
        "must be a list of mappings; use [{'invoice_id': 7}]",
    ),  # type: ignore[list-item]
    "days as a number": (
        lambda c: c.prune(older_than=5),  # type: ignore[arg-type]
        "older_than cannot be 5: must be a timedelta; use timedelta(days=…)",
    ),
    "a word for a parent": (lambda c: c.list(parent_id="x"), "parent_id cannot be 'x': must be the id of a job"),
    "a word for a page": (lambda c: c.list(before="x"), "before cannot be 'x': must be the id of a job"),
    "a kind for its name, in a list": (lambda c: c.list(kind=render), "kind cannot be <job handed.render>: pass its .kind"),
    "a number for a queue": (lambda c: c.list(queue=5), "queue cannot be 5: must be text; use str(…)"),
    "a kind for its name, to pause": (lambda c: c.pause(render, actor="ada"), "pass its .kind"),  # type: ignore[arg-type]
    "a kind for its name, to drain": (lambda c: c.drain(render, actor="ada"), "pass its .kind"),  # type: ignore[arg-type]
    "a kind for its name, to resume": (lambda c: c.resume(render), "pass its .kind"),  # type: ignore[arg-type]
    "no kind": (lambda c: c.pause(None, actor="ada"), "kind cannot be None: must be the name of a kind"),  # type: ignore[arg-type]
    "a number for a person": (lambda c: c.pause("k", actor=7), "actor cannot be 7: must be text; use str(…)"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("call", "said"), MISTAKES.values(), ids=MISTAKES.keys())
async def test_invalid_argument_is_named(database: str, call: Callable[[Client], Awaitable[Any]], said: str) -> None:
    async with holdfast.connect(database) as client:
        with pytest.raises(UsageError, match=re.escape(said)):
            await call(client)


async def test_kind_instead_of_a_job_is_refused_when_added_to_a_pipeline() -> None:
    with pytest.raises(UsageError, match=re.escape(NEEDS_NEW)):
        Pipeline("nightly").add(render)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ((0.5, 7), "message cannot be 7: must be text; use str(…)"),
        (("half", None), "progress must be between 0 and 1, not 'half'; the message is the second argument"),
    ],
)
async def test_progress_takes_a_number_and_a_text(conn: Any, told: tuple[Any, Any], said: str) -> None:
    claim = await hold(conn)

    with pytest.raises(UsageError, match=re.escape(said)):
        await report(conn, claim, progress=told[0], message=told[1])


async def test_lists_accept_ids_as_text(database: str, conn: Any) -> None:
    made = await add(conn)

    async with holdfast.connect(database) as client:
        assert [one.id for one in (await client.list(before=str(made + 1))).jobs] == [made]
