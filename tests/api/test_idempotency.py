"""A repeated request is answered as the first was and does nothing twice; forged credentials do nothing at all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from api_factories import GENEROUS
from factories import hold, rows, value
from holdfast.api.plane import ApiOptions
from holdfast.api.policy import Role

Client = httpx2.AsyncClient


@pytest.fixture
def options() -> ApiOptions:
    return replace(GENEROUS, gateway_secret="between-us", gateway_roles={"data-ops": Role.OPS, "everybody": Role.VIEWER})


async def test_f_77_repeated_request_returns_the_same_response(analyst: Client, conn: Any) -> None:
    key = {"Idempotency-Key": "order-4711"}
    first = await analyst.post("/api/jobs", json={"kind": "k", "payload": {"a": 1}}, headers=key)
    again = await analyst.post("/api/jobs", json={"kind": "k", "payload": {"a": 1}}, headers=key)

    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert again.headers["Location"] == first.headers["Location"]
    assert again.headers["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first.headers
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 1
    assert await value(conn, "SELECT count(*) FROM holdfast.audit WHERE action = 'jobs.enqueue'") == 1


async def test_f_77_reused_key_with_another_request_is_refused(analyst: Client, conn: Any) -> None:
    key = {"Idempotency-Key": "order-4711"}
    await analyst.post("/api/jobs", json={"kind": "k", "payload": {"a": 1}}, headers=key)

    other = await analyst.post("/api/jobs", json={"kind": "k", "payload": {"a": 2}}, headers=key)

    assert (other.status_code, other.json()["code"]) == (409, "IDEMPOTENCY_MISMATCH")
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 1


async def test_f_77_key_is_scoped_to_its_principal(analyst: Client, ops: Client, conn: Any) -> None:
    key = {"Idempotency-Key": "order-4711"}
    for client in (analyst, ops):
        assert (await client.post("/api/jobs", json={"kind": "k"}, headers=key)).status_code == 202

    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 2


async def test_f_77_key_expires_after_a_day(analyst: Client, conn: Any) -> None:
    key = {"Idempotency-Key": "order-4711"}
    await analyst.post("/api/jobs", json={"kind": "k"}, headers=key)
    await conn.execute("UPDATE holdfast.idempotency SET expires_at = clock_timestamp()")

    late = await analyst.post("/api/jobs", json={"kind": "other"}, headers=key)

    assert (late.status_code, "Idempotency-Replayed" in late.headers) == (202, False)
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 2


async def test_f_77_concurrent_requests_with_one_key_create_one_job(analyst: Client, conn: Any) -> None:
    """The later ones wait for the first to commit, and find its answer."""
    key = {"Idempotency-Key": "order-4711"}
    answers = await asyncio.gather(*(analyst.post("/api/jobs", json={"kind": "k"}, headers=key) for _ in range(8)))

    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.headers["Location"] for answer in answers}) == 1
    assert sum("Idempotency-Replayed" in answer.headers for answer in answers) == 7
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 1


async def test_refused_request_leaves_its_key_free(ops: Client, conn: Any) -> None:
    claim = await hold(conn)
    key = {"Idempotency-Key": "again"}
    assert (await ops.post(f"/api/jobs/{claim.id}/recover", headers=key)).status_code == 409
    await conn.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp() - interval '1 s'")

    assert (await ops.post(f"/api/jobs/{claim.id}/recover", headers=key)).status_code == 200


async def test_invalid_key_is_refused(analyst: Client) -> None:
    for key in ("", "with space", "x" * 256):
        answer = await analyst.post("/api/jobs", json={"kind": "k"}, headers={"Idempotency-Key": key})
        assert answer.status_code == 422, key


async def test_old_responses_are_removed_by_new_ones(analyst: Client, conn: Any) -> None:
    for number in range(5):
        await analyst.post("/api/jobs", json={"kind": "k"}, headers={"Idempotency-Key": f"old-{number}"})
    await conn.execute("UPDATE holdfast.idempotency SET expires_at = clock_timestamp() - interval '2 hours'")

    await analyst.post("/api/jobs", json={"kind": "k"}, headers={"Idempotency-Key": "new"})

    assert await rows(conn, "SELECT key FROM holdfast.idempotency") == [("new",)]


# ---------------------------------------------------------------------------------------------------------------------
# A gateway, and those who say they are one
# ---------------------------------------------------------------------------------------------------------------------

GATEWAY = {"X-Holdfast-Gateway": "between-us", "X-Forwarded-User": "ada", "X-Forwarded-Groups": "everybody, data-ops"}


async def test_gateway_with_the_shared_secret_identifies_the_user(anyone: Client) -> None:
    answer = await anyone.get("/api/whoami", headers=GATEWAY)

    assert answer.json()["data"] == {"actor": "gateway:ada", "method": "gateway", "role": "ops"}


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-User": "ada", "X-Forwarded-Groups": "data-ops"},
        GATEWAY | {"X-Holdfast-Gateway": "guessed"},
        GATEWAY | {"X-Holdfast-Gateway": ""},
        GATEWAY | {"X-Forwarded-User": ""},
        {"X-Auth-Request-User": "ada", "X-Forwarded-For": "127.0.0.1", "X-Holdfast-Role": "admin"},
    ],
)
async def test_f_77_gateway_headers_without_the_secret_are_ignored(anyone: Client, headers: dict[str, str]) -> None:
    assert (await anyone.get("/api/jobs", headers=headers)).status_code == 401


async def test_f_77_token_wins_over_forged_headers(viewer: Client) -> None:
    answer = await viewer.get("/api/whoami", headers={"X-Forwarded-User": "root", "X-Forwarded-Groups": "data-ops"})

    assert answer.json()["data"] == {"actor": "token:viewer", "method": "token", "role": "viewer"}


async def test_gateway_user_without_a_known_group_is_refused(anyone: Client) -> None:
    answer = await anyone.get("/api/jobs", headers=GATEWAY | {"X-Forwarded-Groups": "guests"})

    assert (answer.status_code, answer.json()["detail"]) == (
        403,
        "a caller without a role may not read jobs, their attempts and their events",
    )


@pytest.mark.parametrize("foreign", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}])
async def test_f_77_cross_site_request_is_refused(anyone: Client, foreign: dict[str, str], conn: Any) -> None:
    refused = await anyone.post("/api/jobs", json={"kind": "k"}, headers=GATEWAY | foreign)
    own = await anyone.post("/api/jobs", json={"kind": "k"}, headers=GATEWAY | {"Origin": "http://plane"})

    assert (refused.status_code, refused.json()["code"]) == (403, "CROSS_ORIGIN")
    assert own.status_code == 202
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 1
