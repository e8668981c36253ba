"""Workers publish what their kinds declare by either way, and new jobs are made by the newest version that can run."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from conformance.conftest import GENEROUS, Api, Make, serving
from factories import rows
from holdfast import Context, Worker, WorkerOptions
from holdfast.api.app import make_app
from holdfast.database.pool import pool
from holdfast.jobs.declare import requested_job
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.kinds import require, show
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
