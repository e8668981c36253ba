"""Every kind of a service is public or reserved. Requests may enqueue the public ones only; handles are for their owners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from factories import publish_kinds, submit, take, value
from holdfast.jobs.declare import Declaration
from holdfast.services.exports.kinds import KINDS
from holdfast.services.exports.service import SERVICE

Client = httpx2.AsyncClient
RESERVED = sorted(kind.kind for kind in KINDS if not kind.policy.public)


def test_the_api_and_the_handlers_agree_on_what_is_public():
    public = {kind.kind for kind in KINDS if kind.policy.public}

    assert public == {kind.name for kind in SERVICE.kinds if kind.public} == {"exports.run"}


def test_every_kind_begins_with_the_name_of_its_service():
    assert [kind.kind for kind in KINDS if not kind.kind.startswith("exports.")] == []


@pytest.mark.parametrize("kind", RESERVED)
async def test_a_worker_that_publishes_a_reserved_kind_as_public_does_not_open_it(
    admin: Client, database: str, conn: Any, kind: str
) -> None:
    publish_kinds(database, Declaration(kind, public=True))

    answer = await admin.post("/api/jobs", json={"kind": kind, "payload": {}})

    assert (answer.status_code, answer.json()["code"]) == (403, "RESERVED_KIND")
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 0


async def test_only_the_owner_and_operators_see_where_the_engine_returns_the_rows_of_an_export(
    ops: Client, viewer: Client, as_role: Any, conn: Any, tmp_path: Path
) -> None:
    """The engine returns them to any client with the address in the handle."""
    address = "http://engine/v1/statement/q1/slug"
    owner, other = await as_role("analyst", "ada"), await as_role("analyst", "bob")
    payload = {"sql": "SELECT 1 AS one", "to": str(tmp_path / "out")}
    asked = {"kind": "exports.run", "payload": payload, "unique_key": "one", "unique_while": "live"}
    job_id = (await owner.post("/api/jobs", json=asked)).json()["data"]["id"]
    made = "INSERT INTO holdfast.pipelines (id, name) VALUES (gen_random_uuid(), 'p') RETURNING id"
    pipeline = await value(
        conn, f"WITH made AS ({made}) UPDATE holdfast.jobs SET pipeline_id = made.id FROM made RETURNING made.id"
    )
    await submit(conn, await take(conn, job_id), {"query": {"query_id": "q1", "next_uri": address}})

    async def seen(client: Client) -> dict[str, bool | int]:
        """Whether each answer with the job has the address, or the status of a refusal."""
        bulk = {"action": "cancel", "filter": "kind:exports.run", "reason": "r"}
        answers = {
            "show": await client.get(f"/api/jobs/{job_id}"),
            "list": await client.get("/api/jobs"),
            "pipeline": await client.get(f"/api/pipelines/{pipeline}"),
            "found": await client.post("/api/jobs", json=asked),
            "bulk": await client.post("/api/jobs/bulk", json=bulk),
        }
        return {name: address in answer.text if answer.is_success else answer.status_code for name, answer in answers.items()}

    assert await seen(other) == {"show": False, "list": False, "pipeline": False, "found": False, "bulk": 403}
    assert await seen(viewer) == {"show": False, "list": False, "pipeline": False, "found": 403, "bulk": 403}
    assert await seen(owner) == {"show": True, "list": True, "pipeline": True, "found": True, "bulk": 403}
    assert await seen(ops) == dict.fromkeys(["show", "list", "pipeline", "found", "bulk"], True)
    refused = await other.post(f"/api/jobs/{job_id}/cancel", json={"reason": "r"})
    assert (refused.status_code, address in refused.text) == (403, False)
    cancelled = await owner.post(f"/api/jobs/{job_id}/cancel")
    assert (cancelled.status_code, cancelled.json()["data"]["handle"]["query"]["next_uri"]) == (202, address)
