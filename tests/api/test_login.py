"""One-time login links: the first caller is signed in, by a cookie in a browser and by a token elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from tests.api.conftest import Client

from factories import rows
from holdfast.api.auth import create_token
from holdfast.api.login import OneTimeLogin
from holdfast.api.policy import Role

BROWSER = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture
async def code(app: FastAPI, conn: Any) -> str:
    _, token = await create_token(conn, "first look", Role.ADMIN, by="test")
    app.state.login = OneTimeLogin(token, "first look", Role.ADMIN)
    return str(app.state.login.code)


async def test_login_link_gives_one_token(anyone: Client, conn: Any, code: str) -> None:
    wrong = await anyone.get("/login", params={"code": "guessed"})
    first = await anyone.get("/login", params={"code": code})
    second = await anyone.get("/login", params={"code": code})

    assert [answer.status_code for answer in (wrong, first, second)] == [401, 200, 401]
    token = first.json()["data"]["token"]
    me = await anyone.get("/api/whoami", headers={"Authorization": f"Bearer {token}"})
    assert (me.json()["data"]["actor"], me.json()["data"]["role"]) == ("token:first look", "admin")
    assert "already used" in second.json()["detail"]
    audited = await rows(conn, "SELECT actor, outcome FROM holdfast.audit WHERE action = 'login'")
    assert audited == [("token:first look", "done")]


async def test_browser_gets_an_http_only_same_site_cookie(anyone: Client, code: str) -> None:
    answer = await anyone.get("/login", params={"code": code}, headers=BROWSER)

    assert (answer.status_code, answer.headers["Location"]) == (303, "/api/whoami")
    said = answer.headers["Set-Cookie"].lower()
    assert "httponly" in said
    assert "samesite=strict" in said
    assert code not in str(answer.headers)
    assert "hf_" not in said, "the cookie names the token and does not have its secret"
    assert (await anyone.get("/api/whoami")).json()["data"]["role"] == "admin"  # the client keeps cookies, as browsers do
    assert (await anyone.post("/api/jobs", json={"kind": "k"})).status_code == 202
    for header in ({"Origin": "https://elsewhere.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert (await anyone.post("/api/jobs", json={"kind": "k"}, headers=header)).status_code == 403


async def test_login_without_a_link_is_refused(anyone: Client) -> None:
    assert (await anyone.get("/login", params={"code": "x"})).status_code == 401
    assert (await anyone.get("/login")).status_code == 422


async def test_cookie_must_be_a_signed_session_and_not_a_token(anyone: Client, conn: Any) -> None:
    _, token = await create_token(conn, "ada", Role.OPS, by="test")
    for wrong in ("", "hf_short", token, "e30.e30"):
        anyone.cookies.set("holdfast_session", wrong)
        assert (await anyone.get("/api/whoami")).status_code == 401
        anyone.cookies.clear()
