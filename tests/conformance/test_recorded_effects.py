"""Cleaners of services trust what is recorded, so a remote worker records only effects of its own job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from conformance.conftest import Api
from factories import end, hold, rows, take
from holdfast import Snooze, catalog
from holdfast.api.reserved_kinds import EFFECTS
from holdfast.jobs import effects
from holdfast.jobs.model import Claim, WorkerId
from holdfast.services.exports.export.payload import KIND, RUN_KIND, ExportSpec
from holdfast.worker.kinds import cleaners

ABOUT = {"name": "w", "host": "h", "pid": 1, "version": "1", "kinds": {"k": 1}, "lease": 30}
PLACE = "/lake/snapshots/1/Customer"
SPEC = ExportSpec("node", "Customer", "trino", "SELECT 1", [], PLACE, catalog="shop", role="analyst")
TARGET = {"engine": "trino", "catalog": "shop", "schema": None, "role": "analyst", "runtime": "ctas"}


@pytest.fixture
async def client(api: Api) -> Any:
    async with httpx2.AsyncClient(base_url=f"{api.url}/api/worker", headers={"Authorization": f"Bearer {api.token}"}) as client:
        yield client


async def claimed(client: httpx2.AsyncClient, conn: Any, kind: str, payload: Any) -> Claim:
    """A job of this kind, held by a worker that the client has registered."""
    worker_id = str(uuid4())
    assert (await client.put(f"/{worker_id}", json=ABOUT)).status_code == 204
    return await hold(conn, kind, worker=worker_id, payload=payload)


async def record(client: httpx2.AsyncClient, claim: Claim, **effect: Any) -> tuple[int, str | None]:
    headers = {"If-Match": f'"{claim.attempt_id}"'}
    answer = await client.post(f"/jobs/{claim.id}/effects", json=effect, headers=headers)
    return answer.status_code, answer.json().get("code")


def test_every_cleaner_of_a_service_is_declared() -> None:
    for module in catalog.kind_modules():
        __import__(module)

    services = tuple(module.rpartition(".")[0] for module in catalog.kind_modules())
    assert {kind for kind, clean in cleaners().items() if clean.__module__.startswith(services)} == set(EFFECTS)


@pytest.mark.parametrize("kind", sorted(EFFECTS))
@pytest.mark.parametrize("of", ["mine", "exports.remove"])
async def test_a_remote_worker_cannot_record_an_effect_of_a_service_for_another_kind(
    client: httpx2.AsyncClient, conn: Any, kind: str, of: str
) -> None:
    claim = await claimed(client, conn, of, {"to": PLACE, "location": PLACE})
    detail = {"to": PLACE, "prefix": f"attempt-{claim.attempt_id}", "instance_id": 1, "start_token": "t", **TARGET}

    assert await record(client, claim, kind=kind, detail=detail) == (403, "RESERVED_KIND")
    assert await rows(conn, "SELECT FROM holdfast.effects") == []


async def test_an_effect_of_an_export_is_about_the_target_of_its_job(client: httpx2.AsyncClient, conn: Any) -> None:
    claim = await claimed(client, conn, KIND, SPEC.job().payload)
    own = {"to": f"file://{PLACE}", "prefix": f"attempt-{claim.attempt_id}"}
    query, tag = {**TARGET, "prefix": own["prefix"]}, f"export.query-{claim.id}-1-a"
    other = f"export.query-{claim.id + 1}-1-a"
    wrong: list[dict[str, Any]] = [
        {"kind": "export.prefix"},
        {"kind": "export.prefix", "detail": own | {"to": "/lake/snapshots/1/Account"}},
        {"kind": "export.prefix", "detail": own | {"to": "s3://bucket"}},
        {"kind": "export.prefix", "detail": own | {"to": "file:///%ff"}},
        {"kind": "export.prefix", "detail": own | {"to": 1}},
        {"kind": "export.prefix", "detail": own | {"prefix": ""}},
        {"kind": "export.prefix", "detail": own | {"prefix": f"attempt-{uuid4()}"}},
        {"kind": "export.query", "detail": query | {"role": "admin"}},
        {"kind": "export.query", "detail": query, "tag": other},
        {"kind": "export.table", "detail": query | {"tag": other}, "tag": f"{tag}-table"},
        {"kind": "export.table", "detail": query, "tag": f"{tag}-table"},
        {"kind": "export.files", "detail": own},
    ]

    for effect in wrong:
        assert await record(client, claim, **effect) == (403, "RESERVED_KIND"), effect
    assert await rows(conn, "SELECT FROM holdfast.effects") == []
    for effect in (
        {"kind": "export.prefix", "detail": own},
        {"kind": "export.query", "detail": query},
        {"kind": "export.table", "detail": query | {"tag": tag}, "tag": f"{tag}-table"},
        {"kind": "bucket", "detail": {"to": "anywhere"}},
    ):
        assert await record(client, claim, **effect) == (200, None), effect


async def test_an_export_of_a_user_records_its_folder_only(client: httpx2.AsyncClient, conn: Any) -> None:
    claim = await claimed(client, conn, RUN_KIND, {"sql": "SELECT 1", "to": PLACE})
    own = {"to": PLACE, "prefix": f"attempt-{claim.attempt_id}"}

    assert await record(client, claim, kind="export.query", detail=own) == (403, "RESERVED_KIND")
    assert await record(client, claim, kind="export.prefix", detail=own) == (200, None)


@pytest.mark.parametrize("kind", sorted(kind for kind, target in EFFECTS.items() if not target))
async def test_a_remote_worker_names_nothing_that_a_service_cleans(client: httpx2.AsyncClient, conn: Any, kind: str) -> None:
    """A cleaner cleans what the handle of an effect names: neither that of the attempt nor that of an earlier one changes."""
    earlier = await hold(conn, "mine")
    planned = await effects.plan(conn, earlier, kind, adoptable=True)
    await effects.confirm(conn, earlier, planned, {"work": "own"})
    await end(conn, earlier, Snooze(timedelta(0)))
    worker_id = WorkerId(str(uuid4()))
    assert (await client.put(f"/{worker_id}", json=ABOUT)).status_code == 204
    claim = await take(conn, earlier.id, worker_id)
    mine = await effects.plan(conn, claim, kind)
    before = await rows(conn, "SELECT * FROM holdfast.effects")

    for method, path in (("PUT", f"{mine.id}"), ("POST", f"{planned.id}/adopt")):
        headers = {"If-Match": f'"{claim.attempt_id}"'}
        answer = await client.request(
            method, f"/jobs/{claim.id}/effects/{path}", json={"handle": {"work": "other"}}, headers=headers
        )
        assert (answer.status_code, answer.json()["code"]) == (403, "RESERVED_KIND"), method

    assert await rows(conn, "SELECT * FROM holdfast.effects") == before
