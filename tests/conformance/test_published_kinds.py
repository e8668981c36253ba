"""Workers publish what their kinds declare by either way, and new jobs are made by the newest version that can run."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import httpx2
import pytest

import holdfast.catalog  # noqa: F401 - the API that serves knows the kinds of services
from conformance.conftest import GENEROUS, Api, Make, serving
from factories import publish_kinds, rows, start_worker
from holdfast import Context, Done, Worker, WorkerOptions
from holdfast.api.app import make_app
from holdfast.database.pool import pool
from holdfast.errors import UsageError
from holdfast.jobs.declare import Declaration, requested_job
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.kinds import require, show
from holdfast.jobs.model import NewJob
from holdfast.worker.kinds import Job, job
from holdfast.worker.transports.remote import Remote
from workers import beside, ended, until

KIND = "published.render"


def the_kind(version: int) -> Job[..., Any]:
    """The same kind as code of this version has it."""

    async def render(ctx: Context, table: str) -> int:
        return version

    return job(KIND, version=version, locks=["table:{table}"], slot=lambda table: table)(render)


async def test_worker_publishes_its_declarations(make: Make, conn: Any) -> None:
    kind = the_kind(1)

    await Worker(make(), [kind], WorkerOptions(name="publisher")).run(until_empty=True)

    found = await show(conn, KIND)
    assert found.declaration == kind.published
    assert found.versions[0].published_by == "publisher"


async def test_newest_live_version_is_used_for_new_jobs(make: Make, conn: Any) -> None:
    async def is_published(version: int) -> bool:
        found = await rows(conn, f"SELECT FROM holdfast.workers WHERE (kinds->>'{KIND}')::int = {version}")
        return bool(found)

    async def enqueued() -> int:
        asked = requested_job(await require(conn, KIND), {"table": "t"}, {"slot_key": "s"})
        return (await enqueue(conn, asked)).id

    async with beside(Worker(make(), [the_kind(1)])) as old:
        await until(lambda: is_published(1))
        async with beside(Worker(make(), [the_kind(2)])) as new:
            await until(lambda: is_published(2))
            assert old.id != new.id
            newer = await ended(conn, await enqueued())
        left = await ended(conn, await enqueued())

    assert (newer.result, left.result) == (2, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": ""},
        {"kind": "k", "version": 0},
        {"kind": "k", "slot": "{nothing", "arguments": {}},
        {"kind": "k", "unique": "{b}", "arguments": {"properties": {"a": {}}}},
        {"kind": "k", "locks": [{"key": "{b}"}], "arguments": {"properties": {"a": {}}}},
    ],
)
async def test_invalid_declaration_is_refused(api: Api, conn: Any, wrong: dict[str, Any]) -> None:
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {api.token}"}) as client:
        address = f"{api.url}/api/worker/0e984725-c51c-4bf4-9960-e1c80e27aba0/kinds"
        answer = await client.put(address, json={"name": "w", "kinds": [wrong]})

    assert answer.status_code == 422
    assert await rows(conn, "SELECT FROM holdfast.kinds") == []


async def test_worker_runs_with_an_api_without_declarations(api: Api, database: str, conn: Any) -> None:
    app = make_app(pool(database, most=8), GENEROUS)

    async def without_kinds(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path", "").endswith("/kinds"):
            scope = {**scope, "path": "/nowhere"}
        await app(scope, receive, send)

    kind = the_kind(1)
    made = await enqueue(conn, kind.new(table="t"))
    with serving(without_kinds) as url:
        await asyncio.wait_for(Worker(Remote(url, api.token), [kind]).run(until_empty=True), 60)

    assert (await ended(conn, made.id)).state == "completed"
    assert await rows(conn, "SELECT FROM holdfast.kinds") == []


@pytest.mark.parametrize("kind", ["holdfast.bulk", "exports.remove", "graphs.unknown"])
async def test_reserved_kind_cannot_have_a_published_schedule(api: Api, conn: Any, kind: str) -> None:
    """A schedule enqueues without a route, and the handler of a reserved kind trusts its payload."""
    schedule = {"every_seconds": 1, "payload": {"action": "cancel", "actor": "token:admin"}}
    address = f"{api.url}/api/worker/0e984725-c51c-4bf4-9960-e1c80e27aba0/kinds"
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {api.token}"}) as client:
        kinds = [{"kind": "mine"}, {"kind": kind, "periodic": schedule}]
        answer = await client.put(address, json={"name": "w", "kinds": kinds})
        without = await client.put(address, json={"name": "w", "kinds": [{"kind": kind}]})

    assert (answer.status_code, answer.json()["code"]) == (403, "RESERVED_KIND")
    assert without.status_code == 204
    assert await rows(conn, "SELECT FROM holdfast.periodic_jobs") == []
    assert [name for (name,) in await rows(conn, "SELECT kind FROM holdfast.kinds")] == [kind]


async def test_only_a_worker_with_a_database_opens_a_private_kind(api: Api, database: str, conn: Any) -> None:
    """It decides what requests may enqueue: a worker token runs jobs, and must not make them for analysts."""
    publish_kinds(
        database,
        *(Declaration("billing.pay", version=version, public=False) for version in (1, 3)),
        *(Declaration("moved", version=version, public=version == 2) for version in (1, 2)),
        *(Declaration("closed", version=version, public=version == 1) for version in (1, 2)),
    )
    before = await rows(conn, "SELECT kind, version, declaration FROM holdfast.kinds ORDER BY kind, version")
    address = f"{api.url}/api/worker/0e984725-c51c-4bf4-9960-e1c80e27aba0/kinds"
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {api.token}"}) as client:

        async def said(*kinds: dict[str, Any]) -> httpx2.Response:
            return await client.put(address, json={"name": "w", "kinds": [{"kind": "mine"}, *kinds]})

        opened = [await said({"kind": "billing.pay", "version": version, "public": True}) for version in (1, 2, 3, 4)]
        opened += [await said({"kind": "billing.pay"}), await said({"kind": "moved", "version": 1})]
        opened += [await said({"kind": "closed", "version": version}) for version in (1, 2, 3)]
        after = await rows(conn, "SELECT kind, version, declaration FROM holdfast.kinds ORDER BY kind, version")
        allowed = [
            await said({"kind": "billing.pay", "version": 4, "public": False}),
            await said({"kind": "moved", "version": 2}),
            await said({"kind": "moved", "version": 3}),
        ]

    assert [(one.status_code, one.json()["code"]) for one in opened] == [(403, "RESERVED_KIND")] * 9
    assert "publish it by a worker that has a database connection" in opened[0].json()["detail"]
    assert after == before
    assert [one.status_code for one in allowed] == [204, 204, 204]
    assert not (await require(conn, "billing.pay")).public
    with pytest.raises(UsageError, match="^billing.pay is published with public=False"):
        await Worker(Remote(api.url, api.token), [job("billing.pay")(the_kind(1).function)]).run(until_empty=True)


async def test_reserved_child_fails_the_attempt_of_a_remote_worker(api: Api, conn: Any) -> None:
    """The API refuses it on every try, so the end must not be sent for ever."""

    @job("parent", max_attempts=1)
    async def parent() -> Done:
        return Done(then=[NewJob("holdfast.bulk")])

    made = await enqueue(conn, parent.new())
    await asyncio.wait_for(Worker(Remote(api.url, api.token), [parent]).run(until_empty=True), 60)

    found = await ended(conn, made.id)
    assert found.state == "failed"
    assert "holdfast.bulk is a kind of the control plane" in str(found.error)


@pytest.mark.parametrize(("private", "public"), [(2, 1), (1, 2)])
async def test_a_remote_worker_does_not_open_a_private_kind_with_another_version(
    private: int, public: int, api: Api, database: str, conn: Any
) -> None:
    """The private version is the newest one, or the one that was published last, after a rollback. Neither a registration nor a
    publication of the public one lets requests have it. A worker that has a database connection does."""
    for version in (public, private):
        publish_kinds(database, Declaration("billing.pay", version=version, public=version == public))
    address = f"{api.url}/api/worker/{uuid4()}"
    about = {"name": "w", "host": "h", "pid": 1, "version": "1", "kinds": {"billing.pay": public}, "lease": 3600}

    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {api.token}"}) as client:
        published = await client.put(
            f"{address}/kinds", json={"name": "w", "kinds": [{"kind": "billing.pay", "version": public}]}
        )
        registered = await client.put(address, json=about)
        beside_remote = await require(conn, "billing.pay")
        await start_worker(conn, "here", kinds={"billing.pay": public})
        beside_database = await require(conn, "billing.pay")

    assert (published.status_code, published.json()["code"]) == (403, "RESERVED_KIND")
    assert registered.status_code == 204
    assert (beside_remote.version, beside_remote.public) == (private, False)
    assert (beside_database.version, beside_database.public) == (public, True)
