"""A principal acts over HTTP only for the workers that it registered: ids of workers and attempts are not secret."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import httpx2
import pytest

from conformance.conftest import Api
from factories import add, end, everything, hold, start_worker, state_of, value
from holdfast.api.auth import create_token
from holdfast.api.policy import Role
from holdfast.jobs.model import Claim

ABOUT = {"name": "w", "host": "h", "pid": 1, "version": "1", "kinds": {"k": 1}, "lease": 30}
LOOKING = {"kinds": {"k": 1}, "queues": ["default"]}
LINE = {"number": 1, "said_at": "2026-01-01T00:00:00Z", "level": "info", "message": "m"}
BEAT = {"name": "w", "lease": 30, "held": [], **LOOKING}


@pytest.fixture
async def clients(api: Api, conn: Any) -> Any:
    """Two workers' tokens of different names: the one of the fixture, and one of somebody else."""
    _, other = await create_token(conn, "other", Role.WORKER, by="test")
    async with (
        httpx2.AsyncClient(base_url=f"{api.url}/api/worker", headers={"Authorization": f"Bearer {api.token}"}, timeout=60) as a,
        httpx2.AsyncClient(base_url=f"{api.url}/api/worker", headers={"Authorization": f"Bearer {other}"}, timeout=60) as b,
    ):
        yield a, b


def shows(claim: Claim) -> dict[str, str]:
    return {"If-Match": f'"{claim.attempt_id}"'}


def acts(worker_id: str, claim: Claim) -> list[tuple[str, str, Any, dict[str, str]]]:
    """Everything that can be done for a worker, or with an attempt that it holds."""
    held = {"id": claim.id, "attempt_id": claim.attempt_id}
    job = f"/jobs/{claim.id}"
    return [
        ("PUT", f"/{worker_id}", ABOUT, {}),
        ("PUT", f"/{worker_id}/kinds", {"name": "w", "kinds": []}, {}),
        ("POST", f"/{worker_id}/beat", BEAT, {}),
        ("POST", f"/{worker_id}/claims", LOOKING, {}),
        ("POST", f"/{worker_id}/claims/{claim.id}", LOOKING, {}),
        ("POST", f"/{worker_id}/polls", LOOKING, {}),
        ("POST", f"/{worker_id}/completions", {"completions": [held]}, {}),
        ("POST", f"/{uuid4()}/completions", {"completions": [held]}, {}),
        ("POST", f"{job}/begin", None, shows(claim)),
        ("POST", f"{job}/logs", {"lines": [LINE]}, shows(claim)),
        ("GET", f"{job}/parents", None, shows(claim)),
        ("POST", f"{job}/progress", {"progress": 0.5}, shows(claim)),
        ("POST", f"{job}/checkpoint", None, shows(claim)),
        ("GET", f"{job}/effects", None, shows(claim)),
        ("POST", f"{job}/effects", {"kind": "e"}, shows(claim)),
        ("GET", f"{job}/end", None, shows(claim)),
        ("POST", f"{job}/chain", {"child": {"kind": "k"}}, shows(claim)),
        ("POST", f"{job}/finish", {"move": "complete", "state": "completed"}, shows(claim)),
        ("DELETE", f"/{worker_id}", None, {}),
    ]


@pytest.mark.parametrize("registered", ["over HTTP", "in the database"])
async def test_requests_for_a_worker_of_another_principal_are_refused(registered: str, clients: Any, conn: Any) -> None:
    owner, other = clients
    worker_id = str(uuid4())
    if registered == "over HTTP":
        assert (await owner.put(f"/{worker_id}", json=ABOUT)).status_code == 204
    else:
        worker_id = await start_worker(conn, runner="executor")
    claim = await hold(conn, worker=worker_id)
    await add(conn)
    await conn.execute("UPDATE holdfast.jobs SET claimed_at = claimed_at - interval '1 h' WHERE id = %s", [claim.id])
    before = await everything(conn)

    for method, path, body, headers in acts(worker_id, claim):
        answer = await other.request(method, path, json=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "NOT_OWN_WORKER"), (method, path)

    assert await everything(conn) == before


async def test_end_of_an_attempt_is_shown_to_its_owner_only(clients: Any, conn: Any) -> None:
    """After the end the row of the job has no worker any more."""
    owner, other = clients
    worker_id = str(uuid4())
    await owner.put(f"/{worker_id}", json=ABOUT)
    claim = await hold(conn, worker=worker_id)
    await end(conn, claim)

    refused = await other.get(f"/jobs/{claim.id}/end", headers=shows(claim))
    shown = await owner.get(f"/jobs/{claim.id}/end", headers=shows(claim))

    assert (refused.status_code, refused.json()["code"]) == (403, "NOT_OWN_WORKER")
    assert (shown.status_code, shown.json()) == (200, {"written": True})


async def test_beat_writes_no_start_of_an_attempt_of_another_worker(clients: Any, conn: Any) -> None:
    """A job that is said to run has a deadline, and one beyond it is quarantined."""
    worker_id, mine = str(uuid4()), str(uuid4())
    owner, other = clients
    await owner.put(f"/{worker_id}", json=ABOUT)
    await other.put(f"/{mine}", json=ABOUT)
    await add(conn, "k")
    (claim,) = (await owner.post(f"/{worker_id}/claims", json={**LOOKING, "begins": False})).json()["claims"]
    running = [{"id": claim["id"], "attempt_id": claim["attempt_id"], "seconds": 1000}]
    begun = "SELECT begun_at IS NOT NULL FROM holdfast.jobs"

    assert (await other.post(f"/{mine}/beat", json={**BEAT, "running": running})).status_code == 200
    assert await value(conn, begun) is False

    assert (await owner.post(f"/{worker_id}/beat", json={**BEAT, "running": running})).status_code == 200
    assert await value(conn, begun) is True


async def test_owner_keeps_access_with_a_new_token_of_the_same_name(api: Api, clients: Any, conn: Any) -> None:
    owner, _ = clients
    worker_id = str(uuid4())
    await owner.put(f"/{worker_id}", json=ABOUT)
    _, rotated = await create_token(conn, "remote", Role.WORKER, by="test")
    owner.headers["Authorization"] = f"Bearer {rotated}"
    claim = await hold(conn, worker=worker_id)

    for method, path, body, headers in acts(worker_id, claim):
        answer = await owner.request(method, path, json=body, headers=headers)
        assert answer.status_code in (200, 204, 412), (method, path, answer.text)  # 412: an earlier act has ended the attempt

    assert await state_of(conn, claim.id) == "completed"
    assert await value(conn, "SELECT stopped_at IS NOT NULL FROM holdfast.workers WHERE id = %s", worker_id)


async def test_unregistered_worker_cannot_resign(clients: Any) -> None:
    owner, _ = clients
    assert (await owner.delete(f"/{uuid4()}")).status_code == 404


async def test_remote_worker_without_an_owner_belongs_to_the_next_registrant(clients: Any, conn: Any) -> None:
    owner, other = clients
    worker_id = await start_worker(conn, runner="remote")

    assert (await other.post(f"/{worker_id}/beat", json=BEAT)).json()["known"] is True
    assert (await owner.put(f"/{worker_id}", json=ABOUT)).status_code == 204

    assert (await other.post(f"/{worker_id}/beat", json=BEAT)).status_code == 403
    assert (await owner.post(f"/{worker_id}/beat", json=BEAT)).json()["known"] is True
