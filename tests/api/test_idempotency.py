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


async def test_f_77_the_same_request_again_gets_the_same_answer_and_makes_nothing(analyst: Client, conn: Any) -> None:
    key = {"Idempotency-Key": "order-4711"}
    first = await analyst.post("/api/jobs", json={"kind": "k", "payload": {"a": 1}}, headers=key)
    again = await analyst.post("/api/jobs", json={"kind": "k", "payload": {"a": 1}}, headers=key)

    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert again.headers["Location"] == first.headers["Location"]
    assert again.headers["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first.headers
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 1
    assert await value(conn, "SELECT count(*) FROM holdfast.audit WHERE action = 'jobs.enqueue'") == 1


async def test_f_77_the_same_key_for_something_else_is_refused(analyst: Client, conn: Any) -> None:
    key = {"Idempotency-Key": "order-4711"}
    await analyst.post("/api/jobs", json={"kind": "k", "payload": {"a": 1}}, headers=key)

    other = await analyst.post("/api/jobs", json={"kind": "k", "payload": {"a": 2}}, headers=key)

    assert (other.status_code, other.json()["code"]) == (409, "IDEMPOTENCY_MISMATCH")
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 1


async def test_f_77_a_key_belongs_to_who_used_it(analyst: Client, ops: Client, conn: Any) -> None:
    key = {"Idempotency-Key": "order-4711"}
    for client in (analyst, ops):
        assert (await client.post("/api/jobs", json={"kind": "k"}, headers=key)).status_code == 202

    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 2


async def test_f_77_after_a_day_a_key_is_new_again(analyst: Client, conn: Any) -> None:
    key = {"Idempotency-Key": "order-4711"}
    await analyst.post("/api/jobs", json={"kind": "k"}, headers=key)
    await conn.execute("UPDATE holdfast.idempotency SET expires_at = clock_timestamp()")

    late = await analyst.post("/api/jobs", json={"kind": "other"}, headers=key)

    assert (late.status_code, "Idempotency-Replayed" in late.headers) == (202, False)
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 2


async def test_f_77_many_at_once_with_one_key_make_one_job(analyst: Client, conn: Any) -> None:
    """The later ones wait for the first to commit, and find its answer."""
    key = {"Idempotency-Key": "order-4711"}
    answers = await asyncio.gather(*(analyst.post("/api/jobs", json={"kind": "k"}, headers=key) for _ in range(8)))

    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.headers["Location"] for answer in answers}) == 1
    assert sum("Idempotency-Replayed" in answer.headers for answer in answers) == 7
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 1


async def test_an_act_that_was_refused_leaves_its_key_free(ops: Client, conn: Any) -> None:
    claim = await hold(conn)
    key = {"Idempotency-Key": "again"}
    assert (await ops.post(f"/api/jobs/{claim.id}/recover", headers=key)).status_code == 409
    await conn.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp() - interval '1 s'")

    assert (await ops.post(f"/api/jobs/{claim.id}/recover", headers=key)).status_code == 200


async def test_a_key_that_is_none_is_refused(analyst: Client) -> None:
    for key in ("", "with space", "x" * 256):
        answer = await analyst.post("/api/jobs", json={"kind": "k"}, headers={"Idempotency-Key": key})
        assert answer.status_code == 422, key


async def test_old_answers_are_taken_away_by_new_ones(analyst: Client, conn: Any) -> None:
    for number in range(5):
        await analyst.post("/api/jobs", json={"kind": "k"}, headers={"Idempotency-Key": f"old-{number}"})
    await conn.execute("UPDATE holdfast.idempotency SET expires_at = clock_timestamp() - interval '2 hours'")

    await analyst.post("/api/jobs", json={"kind": "k"}, headers={"Idempotency-Key": "new"})

    assert await rows(conn, "SELECT key FROM holdfast.idempotency") == [("new",)]


# ---------------------------------------------------------------------------------------------------------------------
# A gateway, and those who say they are one
# ---------------------------------------------------------------------------------------------------------------------

GATEWAY = {"X-Holdfast-Gateway": "between-us", "X-Forwarded-User": "ada", "X-Forwarded-Groups": "everybody, data-ops"}


async def test_a_gateway_that_shows_our_secret_says_who_asks(anyone: Client) -> None:
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
async def test_f_77_headers_that_anybody_can_send_are_nothing_but_text(anyone: Client, headers: dict[str, str]) -> None:
    assert (await anyone.get("/api/jobs", headers=headers)).status_code == 401


async def test_f_77_a_token_counts_and_forged_headers_beside_it_do_not(viewer: Client) -> None:
    answer = await viewer.get("/api/whoami", headers={"X-Forwarded-User": "root", "X-Forwarded-Groups": "data-ops"})

    assert answer.json()["data"] == {"actor": "token:viewer", "method": "token", "role": "viewer"}


async def test_a_user_of_the_gateway_without_a_known_group_may_do_nothing(anyone: Client) -> None:
    answer = await anyone.get("/api/jobs", headers=GATEWAY | {"X-Forwarded-Groups": "guests"})

    assert (answer.status_code, answer.json()["detail"]) == (
        403,
        "a caller without a role may not read jobs, their attempts and their events",
    )


@pytest.mark.parametrize("foreign", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}])
async def test_f_77_another_sites_page_cannot_act_for_its_visitor(anyone: Client, foreign: dict[str, str], conn: Any) -> None:
    refused = await anyone.post("/api/jobs", json={"kind": "k"}, headers=GATEWAY | foreign)
    own = await anyone.post("/api/jobs", json={"kind": "k"}, headers=GATEWAY | {"Origin": "http://plane"})

    assert (refused.status_code, refused.json()["code"]) == (403, "CROSS_ORIGIN")
    assert own.status_code == 202
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 1
