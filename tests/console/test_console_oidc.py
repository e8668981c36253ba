"""Sign in at an identity provider: the code flow with PKCE, against a provider that checks it, and every way to fail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from fastapi import FastAPI
from tests.console.browsing import DESKTOP, needs_chromium, tab
from tests.console.conftest import AsRole, Client

from factories import rows
from holdfast.api.oidc import Oidc, OidcOptions
from holdfast.api.policy import Role
from holdfast.api.sessions import SESSION, opened, sealed, session_in
from identity_provider import CLIENT, SECRET, IdentityProvider, identity_provider

BACK = "http://plane/console/login/callback"
KEY = b"k" * 32


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as made:
        made.redirects.add(BACK)
        yield made


@pytest.fixture
async def stranger(app: FastAPI, provider: IdentityProvider, as_role: AsRole) -> Client:
    """A browser that is not signed in, at a console with the provider."""
    app.state.plane.oidc = Oidc(
        OidcOptions(provider.issuer, "api", {"data-ops": Role.OPS}, client_id=CLIENT, client_secret=SECRET)
    )
    return await as_role(None)


async def sent_back(client: Client, who: str = "ada", wanted: str = "") -> str:
    """Start a sign-in as this user; returns the address to which the provider sends the browser back."""
    started = await client.get("/console/login/oidc", params={"next": wanted})
    assert started.status_code == 303, started.text
    async with httpx2.AsyncClient() as http:
        chosen = await http.get(f"{started.headers['Location']}&as={who}")
    assert chosen.status_code == 302, chosen.text
    return chosen.headers["Location"]


async def test_a_user_of_the_provider_signs_in_acts_as_itself_and_signs_out(stranger: Client, conn: Any) -> None:
    login = await stranger.get("/console/login")
    answer = await stranger.get(await sent_back(stranger, wanted="jobs?f=state:failed"))

    assert "Sign in with 127.0.0.1" in login.text
    assert (answer.status_code, answer.headers["Location"]) == (303, "/console/jobs?f=state:failed")
    said = next(one for one in answer.headers.get_list("Set-Cookie") if one.startswith(SESSION)).lower()
    assert all(word in said for word in ("httponly", "samesite=lax", "path=/"))
    home = await stranger.get("/console/")
    assert (home.status_code, "oidc:ada" in home.text) == (200, True)
    assert (await stranger.get("/api/whoami")).json()["data"] == {"actor": "oidc:ada", "method": "oidc", "role": "ops"}
    foreign = await stranger.put(
        "/api/ops/drain", json={"enabled": True, "reason": "x"}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert foreign.status_code == 403
    assert await rows(conn, "SELECT actor, outcome FROM holdfast.audit WHERE action = 'login'") == [("oidc:ada", "done")]

    csrf, cookie = re.search(r'name="csrf" value="(\w+)"', home.text), stranger.cookies[SESSION]
    assert csrf is not None
    out = await stranger.post("/console/logout", data={"csrf": csrf[1]}, headers={"Sec-Fetch-Site": "same-origin"})
    after = await stranger.get(out.headers["Location"])

    assert "You are signed out" in after.text
    assert "/bye?client_id=holdfast-console" in after.text
    assert (await stranger.get("/console/")).status_code == 303
    copied = await stranger.get("/api/whoami", headers={"Cookie": f"{SESSION}={cookie}"})
    assert (copied.status_code, "the session has ended" in copied.text) == (401, True)


async def test_the_request_to_the_provider_has_a_new_state_nonce_and_challenge_each_time(
    stranger: Client, provider: IdentityProvider
) -> None:
    asked = [parse_qs(urlsplit((await stranger.get("/console/login/oidc")).headers["Location"]).query) for _ in range(2)]

    for name in ("state", "nonce", "code_challenge"):
        assert asked[0][name] != asked[1][name], name
        assert len(asked[0][name][0]) >= 32, name
    assert asked[0]["code_challenge_method"] == ["S256"]
    assert asked[0]["redirect_uri"] == [BACK]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"nonce": "of another sign-in"}, "belongs to another sign-in"),
        ({"nonce": None}, "belongs to another sign-in"),
        ({"aud": "billing"}, "not valid for this console"),
        ({"aud": "api"}, "not valid for this console"),  # a token for the API does not sign in
        ({"iss": "https://elsewhere.example"}, "not valid for this console"),
        ({"exp": 1}, "not valid for this console"),
        ({"aud": [CLIENT, "billing"], "azp": "billing"}, "for another client"),
        ({"sub": ""}, "not valid for this console"),
    ],
)
async def test_an_id_token_that_is_not_for_this_sign_in_is_refused_on_a_clear_page(
    stranger: Client, provider: IdentityProvider, changed: dict[str, Any], says: str
) -> None:
    provider.changed = changed

    answer = await stranger.get(await sent_back(stranger))

    assert answer.status_code == 401
    assert says in answer.text
    assert SESSION not in "".join(answer.headers.get_list("Set-Cookie"))
    assert "Sign in with" in answer.text  # and can start again


async def test_a_code_of_another_browser_another_state_or_used_twice_does_not_sign_in(
    stranger: Client, as_role: AsRole, provider: IdentityProvider
) -> None:
    victim = await as_role(None)
    stolen = await sent_back(stranger)

    other_browser = await victim.get(stolen)  # without the cookie
    await victim.get("/console/login/oidc")
    other_state = await victim.get(stolen)  # with the cookie of another sign-in
    first = await stranger.get(stolen)
    again = await stranger.get(stolen)
    broken = await stranger.get(f"{await sent_back(stranger)}&iss=https://elsewhere.example")

    assert [one.status_code for one in (other_browser, other_state, first, again, broken)] == [401, 401, 303, 401, 401]
    assert "in another browser" in other_browser.text
    assert "in another tab" in other_state.text
    assert SESSION not in victim.cookies


async def test_what_the_provider_refuses_is_said_and_nobody_is_signed_in(
    stranger: Client, provider: IdentityProvider, conn: Any
) -> None:
    denied = await stranger.get(await sent_back(stranger, "deny"))
    without_role = await stranger.get(await sent_back(stranger, "bob"))
    provider.refuses_codes = True
    refused = await stranger.get(await sent_back(stranger))

    assert "refused the sign-in (access_denied: the user said &lt;no&gt;)" in denied.text
    assert "knows you as bob, but none of your groups has a role" in without_role.text
    assert "did not accept the code of this sign-in (invalid_grant)" in refused.text
    assert [one.status_code for one in (denied, without_role, refused)] == [401, 403, 401]
    assert SESSION not in stranger.cookies
    assert await rows(conn, "SELECT actor, outcome FROM holdfast.audit WHERE action = 'login'") == [("oidc:bob", "denied")]


async def test_a_provider_that_does_not_answer_leaves_the_login_by_token(app: FastAPI, as_role: AsRole) -> None:
    app.state.plane.oidc = Oidc(OidcOptions("http://127.0.0.1:9", "api", client_id=CLIENT))

    answer = await (await as_role(None)).get("/console/login/oidc")

    assert answer.status_code == 503
    assert "does not answer as expected" in answer.text
    assert 'name="token"' in answer.text


async def test_without_a_client_id_there_is_no_sign_in_at_the_provider(app: FastAPI, as_role: AsRole) -> None:
    app.state.plane.oidc = Oidc(OidcOptions("http://127.0.0.1:9", "api"))
    browser = await as_role(None)

    assert "Sign in with 127" not in (await browser.get("/console/login")).text
    for path in ("oidc", "callback?code=x&state=y"):
        assert (await browser.get(f"/console/login/{path}")).status_code == 404


async def test_a_session_that_was_changed_or_belongs_to_another_issuer_is_refused(stranger: Client, app: FastAPI) -> None:
    await stranger.get(await sent_back(stranger))
    cookie, key, issuer = stranger.cookies[SESSION], app.state.plane.cursor_key, app.state.plane.oidc.options.issuer
    content, _, signature = cookie.partition(".")

    assert session_in(key, issuer, cookie) is not None
    for forged in (f"{content}.", f"{content[:-4]}AAAA.{signature}", f".{signature}", "", "é.é", f"{cookie}é"):
        assert session_in(key, issuer, forged) is None, forged
    stranger.cookies.clear()
    for sent, status in ((cookie, 200), (f"{content[:-4]}AAAA.{signature}", 401)):
        answer = await stranger.get("/api/whoami", headers={"Cookie": f"{SESSION}={sent}"})
        assert answer.status_code == status, answer.text
    assert session_in(key, "https://elsewhere.example", cookie) is None
    assert session_in(KEY, issuer, cookie) is None


def test_a_signed_cookie_ends_by_itself_and_serves_one_purpose() -> None:
    text = sealed(KEY, "one", ["a"], lives=timedelta(minutes=1))
    late = sealed(KEY, "one", ["a"], lives=timedelta(seconds=-1))

    assert opened(KEY, "one", text) is not None
    assert opened(KEY, "two", text) is None
    assert opened(KEY, "one", late) is None


@pytest.mark.more
@needs_chromium
async def test_in_a_browser_a_link_leads_through_the_provider_to_the_page_that_was_wanted(
    app: FastAPI, site: str, stranger: Client, provider: IdentityProvider, chromium: Any
) -> None:
    provider.redirects.add(f"{site}/console/login/callback")

    async with tab(chromium, site, "none", viewport=DESKTOP) as one:
        page = one.page
        await one.open("jobs?f=state:failed")  # the link of an alert
        await page.get_by_role("link", name="Sign in with").click()
        await page.get_by_role("link", name="deny").click()
        await page.get_by_text("refused the sign-in").wait_for()
        await page.get_by_role("link", name="Sign in with").click()
        await page.get_by_role("link", name="ada").click()
        await page.wait_for_url(lambda url: "/console/jobs?f=state" in url)
        assert await page.get_by_label("Filter").input_value() == "state:failed"
        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_text("You are signed out").wait_for()
        await one.open("jobs")
        await page.get_by_role("link", name="Sign in with").wait_for()

    assert one.violations == []
