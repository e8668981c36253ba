"""Every route with every role, as the policy says, and without authentication."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import httpx2
import pytest
from fastapi import FastAPI

from factories import rows, value
from holdfast.api import worker_protocol
from holdfast.api.auth import create_token, revoke_token
from holdfast.api.policy import POLICY, Role, Rule

Client = httpx2.AsyncClient
PLACES = {
    "slug": "not-found",
    "fingerprint": "0" * 16,
    "pipeline_id": str(uuid4()),
    "key": "export.max_duration_seconds",
    "worker_id": str(uuid4()),
    "kind": "k",
    "name": "nowhere",
    "token_id": "aaaaaaaa",
    "mapping_id": "1",
    "snapshot_id": "1",
    "catalog": "nowhere",
    "schema": "nowhere",
    "db": "nowhere",
    "table": "nowhere",
    "version": "1",
    "before": "1",
    "after": "2",
    "effect_id": "1",
    "file_id": "1",
    "module": "nowhere",
    "det": "nowhere",
    "year": "2024",
    "instance_id": "1",
    "path": "schema",
    "resource_type": "mapping",
    "resource_id": "1",
}

# What the caller has made. An operation before may have deleted it.
NO_THINGS = "DELETE FROM holdfast.snapshots; DELETE FROM holdfast.mappings"
OWN_THINGS = """
    WITH mapping AS (
        INSERT INTO holdfast.mappings (id, owner, name, engine) VALUES (1, %(owner)s, 'm', 'duckdb')
        RETURNING id
    ), version AS (
        INSERT INTO holdfast.mapping_versions (mapping_id, version, nodes, edges, created_by)
        SELECT id, 1, '[{}]', '[]', %(owner)s FROM mapping RETURNING mapping_id, version
    )
    INSERT INTO holdfast.snapshots (id, mapping_id, mapping_version, owner, name, engine, location, pipeline_id)
    SELECT 1, mapping_id, version, %(owner)s, 's', 'duckdb', '/s', gen_random_uuid() FROM version
"""


class Operation(NamedTuple):
    """What the OpenAPI document says of one method of one path: however the route was declared, it is served."""

    method: str
    path: str
    action: str
    statuses: set[int]

    @property
    def rule(self) -> Rule:
        return POLICY[self.action]


def operations(document: dict[str, Any]) -> list[Operation]:
    """Every operation of the document."""
    return [
        Operation(method.upper(), path, said["x-action"], {int(status) for status in said["responses"]})
        for path, methods in document["paths"].items()
        for method, said in methods.items()
    ]


async def ask(client: Client, operation: Operation, job_id: int = 1) -> httpx2.Response:
    places = PLACES | {"job_id": str(job_id)}
    path = re.sub(r"\{([^}]+)\}", lambda match: places[match[1]], operation.path)
    return await client.request(operation.method, path, json=None if operation.method in ("GET", "DELETE") else {})


@pytest.fixture(autouse=True)
async def no_streams(app: FastAPI) -> None:
    """A stream that is let in would not end."""
    app.state.hub.close_streams()


@pytest.mark.parametrize("role", list(Role))
async def test_f_76_every_route_allows_exactly_the_roles_of_the_policy(
    role: Role, document: Any, as_role: Any, conn: Any
) -> None:
    """Q-01, P-02, Q-04: triggers are for ops and admins; an autoscaler gets its number and a worker the protocol."""
    client = await as_role(role)
    own = await client.post("/api/jobs", json={"kind": "k"})
    job_id = own.json()["data"]["id"] if own.status_code == 202 else 1
    denied_before = await value(conn, "SELECT count(*) FROM holdfast.audit WHERE outcome = 'denied'")

    let_in, kept_out = set(), set()
    everything = operations(document)
    for one in everything:
        if role in one.rule.own:
            await conn.execute(NO_THINGS)
            await conn.execute(OWN_THINGS, {"owner": f"token:{role}"})
        answer = await ask(client, one, job_id)
        assert answer.status_code in one.statuses, (one, answer.text)
        (kept_out if answer.status_code in (401, 403) else let_in).add((one.method, one.path))

    wanted = {(one.method, one.path) for one in everything if one.rule.anyone or role in one.rule.roles | one.rule.own}
    assert let_in == wanted
    denied = await value(conn, "SELECT count(*) FROM holdfast.audit WHERE outcome = 'denied'") - denied_before
    assert denied == len(kept_out), "every denial is in the audit"


async def test_only_ops_and_admins_trigger_loops_and_recover_jobs(as_role: Any) -> None:
    """P-02, Q-01: by the paths of the documents; without credentials 401."""
    let_in = set()
    for role in Role:
        client = await as_role(role)
        trigger = await client.post("/api/ops/jobs/trigger", json={"job_name": "nowhere", "reason": "r"})
        recover = await client.post("/sync/jobs/1/recover", json={"reason": "r"})
        assert (trigger.status_code, recover.status_code) in ((403, 403), (404, 404)), role
        if trigger.status_code == 404:
            let_in.add(str(role))

    assert let_in == {"ops", "admin"}
    anyone = await as_role(None)
    for path in ("/api/ops/jobs/trigger", "/sync/jobs/1/recover"):
        assert (await anyone.post(path, json={"job_name": "nowhere", "reason": "r"})).status_code == 401


async def _strangers(as_role: Any, conn: Any) -> AsyncIterator[tuple[str, Client]]:
    yield "no credentials", await as_role(None)
    expired = await as_role("admin")
    await conn.execute("UPDATE holdfast.tokens SET expires_at = clock_timestamp() WHERE revoked_at IS NULL")
    yield "expired", expired
    view, secret = await create_token(conn, "gone", Role.ADMIN, by="test")
    await revoke_token(conn, view.id, by="test")
    revoked = await as_role(None)
    revoked.headers["Authorization"] = f"Bearer {secret}"
    yield "revoked", revoked
    view, secret = await create_token(conn, "real", Role.ADMIN, by="test")
    for name, credentials in {
        "another secret": f"Bearer hf_{view.id}_{'A' * 43}",
        "unknown id": f"Bearer hf_zzzzzzzz_{secret[12:]}",
        "secret without its id": f"Bearer {secret[12:]}",
        "another scheme": f"Basic {secret}",
        "nothing after the scheme": "Bearer",
        "a JWT, and no provider": "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ.",
    }.items():
        client = await as_role(None)
        client.headers["Authorization"] = credentials
        yield name, client


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.more)])
async def test_f_76_unauthenticated_requests_are_refused_everywhere(document: Any, as_role: Any, conn: Any, step: int) -> None:
    """No credentials, and those of an expired and of a revoked token, are refused by every route. Other credentials are as
    unknown to one route as to the next: `make test` tries each of them on every tenth, `make test-more` on all."""
    everywhere = operations(document)
    async for name, client in _strangers(as_role, conn):
        for one in everywhere[:: 1 if name in ("no credentials", "expired", "revoked") else step]:
            answer = await ask(client, one)
            if one.rule.anyone:
                assert answer.status_code not in (401, 403) or one.action == "login", (name, one)
            else:
                assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHENTICATED"), (name, one)
                assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    known = {actor for (actor,) in await rows(conn, "SELECT DISTINCT actor FROM holdfast.audit WHERE outcome = 'denied'")}
    assert known == {"token:admin", "token:gone"}, "who had a good token once is named; strangers leave no rows"


def test_f_76_openapi_document_has_every_route(app: FastAPI, document: Any) -> None:
    """Else a route could hide from the two tests above."""
    routes: list[Any] = [*worker_protocol.router.routes, *(route for route in app.routes if hasattr(route, "methods"))]
    served = {(method, route.path) for route in routes for method in route.methods}
    documented = {(one.method, one.path) for one in operations(document)}

    assert {(method, path.replace(":path}", "}")) for method, path in served} == documented
    assert {one.action for one in operations(document) if one.path.startswith("/api/worker/")} == {"work"}


async def test_unauthenticated_request_is_refused_before_its_body_is_read(anyone: Client) -> None:
    """The guard stands before the body: neither its size nor its mistakes are looked at."""
    answer = await anyone.post("/api/jobs", content=b"{" * 2_000_000)

    assert answer.status_code == 401


async def test_token_is_limited_to_its_scopes(as_role: Any) -> None:
    client = await as_role("admin", scopes=["jobs.read"])

    assert (await client.get("/api/jobs")).status_code == 200
    assert (await client.post("/api/jobs", json={"kind": "k"})).status_code == 403


async def test_token_secret_is_shown_once_and_not_stored(admin: Client, conn: Any) -> None:
    made = await admin.post(
        "/api/tokens",
        json={"name": "ci", "role": "viewer", "days": 7, "reason": "for the pipeline"},
        headers={"Idempotency-Key": "one"},
    )

    token = made.json()["data"]["token"]
    assert (made.status_code, token[:3], len(token)) == (201, "hf_", 55)
    assert (await admin.get("/api/jobs", headers={"Authorization": f"Bearer {token}"})).status_code == 200
    again = await admin.post(
        "/api/tokens",
        json={"name": "ci", "role": "viewer", "days": 7, "reason": "for the pipeline"},
        headers={"Idempotency-Key": "one"},
    )
    assert (again.headers["Idempotency-Replayed"], again.json()["data"]["token"]) == ("true", None)
    secret = token[12:]
    for name in ("tokens", "audit", "idempotency", "secrets"):
        kept = await rows(conn, f"SELECT t::text FROM holdfast.{name} t")
        assert not any(secret in line for (line,) in kept), name
    listed = await admin.get("/api/tokens")
    assert secret not in listed.text
    assert {one["name"] for one in listed.json()["data"]} == {"admin", "ci"}


async def test_revoked_token_is_refused_immediately(admin: Client, as_role: Any, conn: Any) -> None:
    client = await as_role("viewer", name="ada")
    token_id = await value(conn, "SELECT id FROM holdfast.tokens WHERE name = 'ada'")
    assert (await client.get("/api/jobs")).status_code == 200

    revoked = await admin.delete(f"/api/tokens/{token_id}", params={"reason": "she left"})

    assert revoked.status_code == 200
    assert (await client.get("/api/jobs")).json()["detail"] == "this token was revoked"
    assert await rows(conn, "SELECT actor, object, reason FROM holdfast.audit WHERE action = 'tokens.write'") == [
        ("token:admin", f"token/{token_id}", "she left")
    ]


async def test_last_use_of_a_token_is_recorded_to_the_minute(viewer: Client, conn: Any) -> None:
    await viewer.get("/api/jobs")
    first = await value(conn, "SELECT last_used_at FROM holdfast.tokens")
    await viewer.get("/api/jobs")

    assert first is not None
    assert await value(conn, "SELECT last_used_at FROM holdfast.tokens") == first, "not a write with every request"


async def test_token_lifetime_is_at_most_ninety_days(admin: Client, conn: Any) -> None:
    refused = await admin.post("/api/tokens", json={"name": "x", "role": "viewer", "days": 91, "reason": "r"})

    assert refused.status_code == 422
    with pytest.raises(Exception, match="at most 90 days"):
        await create_token(conn, "x", Role.VIEWER, by="test", lives=timedelta(days=91))


@pytest.mark.parametrize(
    "statement", ["UPDATE holdfast.audit SET actor = 'x'", "DELETE FROM holdfast.audit", "TRUNCATE holdfast.audit"]
)
async def test_audit_is_append_only(statement: str, analyst: Client, conn: Any) -> None:
    """Q-05"""
    await analyst.post("/api/jobs", json={"kind": "k"})

    with pytest.raises(Exception, match="only ever added to"):
        await conn.execute(statement)


async def test_failed_action_has_no_audit_row(ops: Client, conn: Any) -> None:
    """One transaction: neither without the other."""
    await conn.execute(
        """CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
           CREATE TRIGGER fail BEFORE INSERT ON holdfast.audit FOR EACH ROW EXECUTE FUNCTION public.fail()"""
    )
    answer = await ops.post("/api/jobs", json={"kind": "k"})

    assert (answer.status_code, answer.json()["code"], answer.json()["detail"]) == (
        500,
        "INTERNAL",
        "an internal error occurred",
    )
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 0


async def test_operator_action_needs_a_reason(ops: Client) -> None:
    answer = await ops.put("/api/ops/drain", json={"enabled": True})

    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/body/reason")


async def test_audit_can_be_filtered_by_action_and_target(ops: Client, analyst: Client, viewer: Client) -> None:
    made = (await analyst.post("/api/jobs", json={"kind": "k"})).json()["data"]["id"]
    await ops.post(f"/api/jobs/{made}/cancel", json={"reason": "why not"})

    found = (await ops.get("/api/audit", params={"object": f"job/{made}"})).json()["data"]

    assert [(one["actor"], one["action"], one["reason"]) for one in found] == [
        ("token:ops", "jobs.cancel", "why not"),
        ("token:analyst", "jobs.enqueue", None),
    ]
    assert (await viewer.get("/api/audit")).status_code == 403
