"""Who gets in: by token, by a one-time link, by an application around the console; and what hostile text can do: nothing."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from tests.console.conftest import AsRole, Client

import holdfast
from factories import add, rows, state_of
from holdfast.api.auth import create_token, revoke_token, still_valid
from holdfast.api.login import OneTimeLogin
from holdfast.api.plane import Principal
from holdfast.api.policy import Role
from holdfast.api.sessions import BY_TOKEN, SESSION, opened

HOSTILE = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>{{7*7}}"
SAME_SITE = {"Sec-Fetch-Site": "same-origin", "Origin": "http://plane"}


# ---------------------------------------------------------------------------------------------------------------------
# Signing in
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_token_signs_in_with_a_cookie_that_scripts_and_other_sites_cannot_use(as_role: AsRole, conn: Any) -> None:
    _, token = await create_token(conn, "ada", Role.OPS, by="test")
    browser = await as_role(None)

    answer = await browser.post("/console/login", data={"token": token, "next": "jobs?f=state:failed"}, headers=SAME_SITE)

    assert (answer.status_code, answer.headers["Location"]) == (303, "/console/jobs?f=state:failed")
    said = answer.headers["Set-Cookie"].lower()
    assert "httponly" in said
    assert "samesite=lax" in said
    assert (await browser.get("/console/")).status_code == 200
    assert await rows(conn, "SELECT actor, object FROM holdfast.audit WHERE action = 'login'") == [("token:ada", "console")]


@pytest.mark.parametrize(
    "wanted", ["https://elsewhere.example", "//elsewhere.example", "/\\elsewhere.example", "javascript:alert(1)"]
)
async def test_the_login_leads_to_this_console_only(as_role: AsRole, conn: Any, wanted: str) -> None:
    _, token = await create_token(conn, "ada", Role.OPS, by="test")

    answer = await (await as_role(None)).post("/console/login", data={"token": token, "next": wanted}, headers=SAME_SITE)

    assert answer.headers["Location"] == "/console/"


async def test_a_wrong_or_revoked_token_and_a_form_of_another_site_do_not_sign_in(as_role: AsRole, conn: Any) -> None:
    view, token = await create_token(conn, "ada", Role.OPS, by="test")
    browser = await as_role(None)

    foreign = await browser.post("/console/login", data={"token": token}, headers={"Sec-Fetch-Site": "cross-site"})
    wrong = await browser.post("/console/login", data={"token": f"hf_{'a' * 8}_{'b' * 43}"}, headers=SAME_SITE)
    shapeless = await browser.post("/console/login", data={"token": "secret"}, headers=SAME_SITE)
    await revoke_token(conn, view.id, by="test")
    revoked = await browser.post("/console/login", data={"token": token}, headers=SAME_SITE)

    assert [one.status_code for one in (foreign, wrong, shapeless, revoked)] == [403, 401, 401, 401]
    assert not any("Set-Cookie" in one.headers and token in one.headers["Set-Cookie"] for one in (foreign, wrong, revoked))
    assert (await browser.get("/console/")).status_code == 303


async def test_to_sign_out_needs_the_form_of_the_session(ops: Client) -> None:
    text = (await ops.get("/console/")).text
    csrf = re.search(r'name="csrf" value="(\w+)"', text)

    without = await ops.post("/console/logout", headers=SAME_SITE)
    assert csrf is not None
    signed_out = await ops.post("/console/logout", data={"csrf": csrf[1]}, headers=SAME_SITE)

    assert (without.status_code, signed_out.status_code) == (403, 303)
    assert f'{SESSION}=""' in signed_out.headers["Set-Cookie"]


async def sign_out(browser: Client) -> None:
    csrf = re.search(r'name="csrf" value="(\w+)"', (await browser.get("/console/")).text)
    assert csrf is not None
    assert (await browser.post("/console/logout", data={"csrf": csrf[1]}, headers=SAME_SITE)).status_code == 303


async def test_after_a_sign_out_a_copy_of_the_cookie_is_worthless_and_the_token_still_works(
    as_role: AsRole, conn: Any, app: FastAPI
) -> None:
    _, token = await create_token(conn, "ada", Role.OPS, by="test")
    browser, other = await as_role(None), await as_role(None)
    for one in (browser, other):
        await one.post("/console/login", data={"token": token}, headers=SAME_SITE)
    cookie = browser.cookies[SESSION]
    stream = Principal("token:ada", "token", Role.OPS, session_id=opened(app.state.plane.cursor_key, BY_TOKEN, cookie)[1][0])
    assert (await still_valid(conn, [stream])).knows(stream)

    await sign_out(browser)
    copied = {"Cookie": f"{SESSION}={cookie}"}

    assert (await browser.get("/console/", headers=copied)).status_code == 303
    denied = await browser.get("/api/whoami", headers=copied)
    assert (denied.status_code, "the session has ended" in denied.text) == (401, True)
    assert not (await still_valid(conn, [stream])).knows(stream), "its event streams are closed, too"
    assert (await other.get("/console/")).status_code == 200, "another browser with the same token stays signed in"
    assert (await browser.get("/api/whoami", headers={"Authorization": f"Bearer {token}"})).status_code == 200
    said = await rows(conn, "SELECT actor, action FROM holdfast.audit WHERE outcome = 'done' ORDER BY id")
    assert said == [("token:ada", "login"), ("token:ada", "login"), ("token:ada", "logout")]


async def test_a_session_ends_with_its_token(as_role: AsRole, conn: Any) -> None:
    view, token = await create_token(conn, "ada", Role.OPS, by="test")
    browser = await as_role(None)
    await browser.post("/console/login", data={"token": token}, headers=SAME_SITE)
    assert (await browser.get("/console/")).status_code == 200

    await revoke_token(conn, view.id, by="test")

    assert (await browser.get("/console/")).status_code == 303
    assert "this token was revoked" in (await browser.get("/api/whoami")).text


async def test_what_is_kept_of_ended_sessions_is_removed_when_their_cookies_are_over(as_role: AsRole, conn: Any) -> None:
    await conn.execute(
        "INSERT INTO holdfast.ended_sessions VALUES ('old', now() - interval '2 hours'), ('new', now() - interval '1 minute')"
    )

    await sign_out(await as_role("ops"))

    left = [one for (one,) in await rows(conn, "SELECT id FROM holdfast.ended_sessions")]
    assert len(left) == 2
    assert "old" not in left


async def test_the_link_that_works_once_leads_to_the_console(app: FastAPI, as_role: AsRole, conn: Any) -> None:
    _, token = await create_token(conn, "first look", Role.ADMIN, by="test")
    app.state.login = OneTimeLogin(token, "first look", Role.ADMIN)
    browser = await as_role(None)

    answer = await browser.get(f"/login?code={app.state.login.code}", headers={"Accept": "text/html"})

    assert answer.headers["Location"] == "/console/"
    assert (await browser.get("/console/")).status_code == 200


# ---------------------------------------------------------------------------------------------------------------------
# Hostile text
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_note_in_a_cookie_stays_text(ops: Client) -> None:
    note = base64.urlsafe_b64encode(json.dumps(["job/1", HOSTILE, True, ""]).encode()).decode()

    for broken in (note, "!!", base64.urlsafe_b64encode(b"[1]").decode()):
        ops.cookies.set("holdfast_note", broken)
        answer = await ops.get("/console/jobs")
        assert answer.status_code == 200
        assert "<img src=x" not in answer.text


# ---------------------------------------------------------------------------------------------------------------------
# Inside another application
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def host(database: str) -> AsyncIterator[Client]:
    """A user's application with its own authentication: a header."""

    async def known(request: Any) -> tuple[str, str] | None:
        user = request.headers.get("x-user")
        return None if user is None else tuple(user.split(":"))

    app = FastAPI()
    embedded = holdfast.console(database, auth=known)
    app.mount("/jobs", embedded)
    transport = httpx2.ASGITransport(app, raise_app_exceptions=True)
    async with embedded.running(), Client(transport=transport, base_url="http://host") as client:
        yield client


async def test_an_application_mounts_the_console_with_its_own_authentication(host: Client, conn: Any) -> None:
    job_id = await add(conn)

    ops = {"x-user": "ada:ops", "Sec-Fetch-Site": "same-origin"}
    page = await host.get(f"/jobs/jobs/{job_id}", headers=ops)
    form = await host.get(f"/jobs/act/job.cancel?job_id={job_id}", headers=ops)
    csrf = re.search(r'name="csrf" value="(\w+)"', form.text)
    assert csrf is not None
    sent = await host.post(f"/jobs/act/job.cancel?job_id={job_id}", data={"csrf": csrf[1], "reason": "not needed"}, headers=ops)

    assert page.status_code == 200
    assert f'href="/jobs/act/job.cancel?job_id={job_id}' in page.text
    assert "/console/" not in page.text
    assert "Sign out" not in page.text
    assert (sent.status_code, sent.headers["Location"]) == (303, f"/jobs/jobs/{job_id}")
    assert await state_of(conn, job_id) == "cancelled"
    assert await rows(conn, "SELECT actor, method, reason FROM holdfast.audit") == [("app:ada", "app", "not needed")]


async def test_whom_the_application_does_not_know_sees_nothing_and_a_role_is_a_role(host: Client, conn: Any) -> None:
    job_id = await add(conn)

    stranger = await host.get("/jobs/jobs")
    viewer = await host.get(f"/jobs/act/job.cancel?job_id={job_id}", headers={"x-user": "bob:viewer"})
    invented = await host.get("/jobs/jobs", headers={"x-user": "bob:god"})
    host.cookies.set(SESSION, f"hf_{'a' * 8}_{'b' * 43}")
    by_cookie = await host.get("/jobs/jobs")

    assert [one.status_code for one in (stranger, viewer, by_cookie)] == [401, 403, 401]
    assert invented.status_code == 422
    assert "returned the role" in invented.text
