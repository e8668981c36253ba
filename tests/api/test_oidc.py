"""Tokens of an identity provider: the good one, and every forgery that has worked somewhere."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from fastapi import FastAPI

from api_factories import GENEROUS
from factories import hold, publish_kinds, silence
from holdfast.api import oidc
from holdfast.api.app import make_app
from holdfast.api.oidc import Oidc, OidcOptions
from holdfast.api.policy import Role
from holdfast.database.pool import pool
from holdfast.errors import UsageError

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
STRANGER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())
AUDIENCE = "holdfast"


class Provider:
    """An OpenID Connect provider, as far as we ask one."""

    def __init__(self) -> None:
        rsa_key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key())) | {
            "kid": "one",
            "alg": "RS256",
            "use": "sig",
        }
        ec_key = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(CURVE.public_key())) | {
            "kid": "two",
            "alg": "ES256",
            "use": "sig",
        }
        self.keys: Any = {"keys": [rsa_key, ec_key]}
        self.asked: list[str] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked.append(self.path)
                body = {"jwks_uri": provider.keys_at} if "well-known" in self.path else provider.keys
                provider.may_answer.wait(60)
                self.send_response(provider.status)
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())
                while provider.trickles and "well-known" not in self.path:  # a byte now and then, and never an end
                    try:
                        self.wfile.write(b" ")
                        self.wfile.flush()
                    except OSError:
                        break
                    provider.ended.wait(0.05)

            def log_message(self, *_: Any) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"
        self.trickles, self.ended = False, threading.Event()
        self.keys_at, self.status, self.may_answer = f"{self.issuer}/keys", 200, threading.Event()
        self.may_answer.set()

    def token(self, key: Any = KEY, *, kid: str | None = "one", alg: str = "RS256", **changed: Any) -> str:
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 300, "groups": ["data-ops"]}
        claims = {name: value for name, value in (claims | changed).items() if value is not None}
        return jwt.encode(claims, key, algorithm=alg, headers={"kid": kid} if kid else None)


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.trickles = False
    made.ended.set()
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture
async def app(database: str, provider: Provider) -> AsyncIterator[FastAPI]:
    known = Oidc(OidcOptions(provider.issuer, AUDIENCE, {"data-ops": Role.OPS, "everybody": Role.VIEWER}))
    publish_kinds(database)
    made = make_app(pool(database), GENEROUS, oidc=known)
    async with made.router.lifespan_context(made):
        yield made


async def whoami(client: httpx2.AsyncClient, token: str) -> httpx2.Response:
    return await client.get("/api/whoami", headers={"Authorization": f"Bearer {token}"})


async def test_oidc_token_identifies_the_user(anyone: Any, provider: Provider) -> None:
    for token in (provider.token(), provider.token(CURVE, kid="two", alg="ES256")):
        answer = await whoami(anyone, token)
        assert answer.json()["data"] == {"actor": "oidc:ada", "method": "oidc", "role": "ops"}
    assert provider.asked == ["/.well-known/openid-configuration", "/keys"], "keys are asked for once"


def _unsigned(provider: Provider, header: dict[str, Any], signature: bytes = b"") -> str:
    claims = jwt.decode(provider.token(), options={"verify_signature": False})
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims)]
    return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


def _signed_with_the_public_key(provider: Provider) -> str:
    """HS256 with the published key as its secret: accepted by whoever lets the token choose the algorithm."""
    public = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    text = _unsigned(provider, {"alg": "HS256", "kid": "one", "typ": "JWT"}).rpartition(".")[0]
    return f"{text}.{base64.urlsafe_b64encode(hmac.new(public, text.encode(), hashlib.sha256).digest()).rstrip(b'=').decode()}"


def _changed(token: str) -> str:
    """The same token with another first character of its signature."""
    signed, _, signature = token.rpartition(".")
    return f"{signed}.{'B' if signature[0] == 'A' else 'A'}{signature[1:]}"


async def test_f_77_forged_tokens_are_refused(anyone: Any, provider: Provider) -> None:
    past = int(time.time()) - 3600
    forged = {
        "no algorithm": _unsigned(provider, {"alg": "none", "kid": "one"}),
        "no algorithm, in other letters": _unsigned(provider, {"alg": "nOnE", "kid": "one"}),
        "signed with the public key": _signed_with_the_public_key(provider),
        "signed by a stranger": provider.token(STRANGER),
        "unknown key": provider.token(STRANGER, kid="three"),
        "key as a path": provider.token(STRANGER, kid="../../dev/null"),
        "key as SQL": provider.token(STRANGER, kid="' UNION SELECT 'x"),
        "no key": provider.token(kid=None),
        "for somebody else": provider.token(aud="billing"),
        "for nobody": provider.token(aud=None),
        "by somebody else": provider.token(iss="https://evil.example"),
        "expired": provider.token(exp=past),
        "never expires": provider.token(exp=None),
        "not yet": provider.token(nbf=int(time.time()) + 3600),
        "no subject": provider.token(sub=None),
        "an algorithm of the other key": provider.token(CURVE, kid="one", alg="ES256"),
        "own key in the header": jwt.encode(
            {"sub": "ada"}, STRANGER, "RS256", headers={"jwk": provider.keys["keys"][0], "jku": "https://evil.example"}
        ),
        "changed": _changed(provider.token()),
        "empty parts": "..",
    }
    for what, token in forged.items():
        answer = await whoami(anyone, token)
        assert answer.status_code == 401, what
    assert provider.asked.count("/keys") == 1, "nobody can make us ask again and again"


async def test_user_without_a_known_group_is_refused_and_the_highest_group_counts(anyone: Any, provider: Provider) -> None:
    nobody = await anyone.get("/api/jobs", headers={"Authorization": f"Bearer {provider.token(groups=['guests'])}"})
    both = await whoami(anyone, provider.token(groups=["everybody", "data-ops"]))

    assert nobody.status_code == 403
    assert both.json()["data"]["role"] == "ops"


async def test_q_01_documented_permission_allows_only_recover(anyone: Any, provider: Provider, conn: Any) -> None:
    """Q-01, K-60: backoffice.data_management.sync"""
    claim = await hold(conn)
    await silence(conn, claim)
    token = provider.token(groups=[], permissions=["backoffice.data_management.sync", "jobs.cancel"])
    headers = {"Authorization": f"Bearer {token}"}

    assert (await anyone.post(f"/api/jobs/{claim.id}/cancel", headers=headers)).status_code == 403
    assert (await anyone.get("/api/jobs", headers=headers)).status_code == 403
    assert (await anyone.post(f"/sync/jobs/{claim.id}/recover", headers=headers)).status_code == 200


async def test_rotated_key_is_found(anyone: Any, provider: Provider, app: FastAPI) -> None:
    assert (await whoami(anyone, provider.token())).status_code == 200
    provider.keys["keys"].append(
        json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(STRANGER.public_key())) | {"kid": "new", "alg": "RS256"}
    )
    assert (await whoami(anyone, provider.token(STRANGER, kid="new"))).status_code == 401, "asked for a moment ago"

    grow_older(app, 61)
    assert (await whoami(anyone, provider.token(STRANGER, kid="new"))).status_code == 200


async def test_withdrawn_key_is_no_longer_accepted(anyone: Any, provider: Provider, app: FastAPI) -> None:
    """Nobody shows an unknown key: it is the known one that must be looked at again."""
    assert (await whoami(anyone, provider.token())).status_code == 200
    withdrawn = provider.keys["keys"].pop(0)
    assert (await whoami(anyone, provider.token())).status_code == 200, "for ten minutes at most"

    grow_older(app, 601)
    assert (await whoami(anyone, provider.token())).status_code == 401
    assert withdrawn["kid"] == "one"


async def test_keys_of_an_unreachable_provider_are_used_for_a_day(anyone: Any, provider: Provider, app: FastAPI) -> None:
    assert (await whoami(anyone, provider.token())).status_code == 200
    provider.status = 500

    grow_older(app, 3600)
    assert (await whoami(anyone, provider.token())).status_code == 200
    grow_older(app, 86_400)
    assert (await whoami(anyone, provider.token())).status_code == 401


@pytest.mark.parametrize(
    "keys",
    [
        [1],
        None,
        7,
        {"keys": None},
        {"keys": [1, None, []]},
        {"keys": [{"kty": "RSA", "kid": ["a"], "n": 1}]},
        b"[" * 200_000,
        b'{"keys": ' + b"[" * 200_000,
        b'{"keys": [], "pad": "' + b"x" * 2_000_000 + b'"}',
        b"\xff\xfe",
        b"",
    ],
    ids=["list", "null", "number", "no keys", "no objects", "odd id", "deep", "deep keys", "too large", "no text", "nothing"],
)
async def test_unreadable_keys_keep_the_known_ones_for_a_day(keys: Any, anyone: Any, provider: Provider, app: FastAPI) -> None:
    assert (await whoami(anyone, provider.token())).status_code == 200
    provider.keys = keys

    grow_older(app, 3600)
    assert (await whoami(anyone, provider.token())).status_code == 200
    grow_older(app, 86_400)
    assert (await whoami(anyone, provider.token())).status_code == 401


async def test_endless_key_set_is_refused(
    anyone: Any, provider: Provider, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then keeps every time limit of a single read."""
    assert (await whoami(anyone, provider.token())).status_code == 200
    monkeypatch.setattr(oidc, "LONGEST_READ", 0.3)
    provider.trickles = True

    grow_older(app, 86_400)
    async with asyncio.timeout(60):
        assert (await whoami(anyone, provider.token())).status_code == 401


async def test_non_signature_key_is_ignored(anyone: Any, provider: Provider) -> None:
    provider.keys["keys"][0]["use"] = "enc"

    assert (await whoami(anyone, provider.token())).status_code == 401
    assert (await whoami(anyone, provider.token(CURVE, kid="two", alg="ES256"))).status_code == 200


@pytest.mark.parametrize("sub", ["", " ", "a\ud800", "a\x00b", "a\nb", "x" * 256], ids=lambda sub: ascii(sub)[:10])
async def test_invalid_subject_is_refused(sub: str, anyone: Any, provider: Provider) -> None:
    """Cut to a length, two long ones would be one principal, with one owner's rights."""
    assert (await whoami(anyone, provider.token(sub=sub))).status_code == 401
    assert (await whoami(anyone, provider.token(sub="x" * 255))).json()["data"]["actor"] == "oidc:" + "x" * 255


async def test_a_token_that_cannot_be_parsed_is_refused(anyone: Any, provider: Provider) -> None:
    def part(text: bytes) -> str:
        return base64.urlsafe_b64encode(text).rstrip(b"=").decode()

    deep = part(b'{"alg": "RS256", "kid": ' + b"[" * 5000 + b"]" * 5000 + b"}")
    for token in (f"{deep}.e30.AAAA", f"{part(b'[1]')}.e30.AAAA", f"{part(b'null')}.e30.AAAA"):
        assert (await whoami(anyone, token)).status_code == 401
    assert (await whoami(anyone, provider.token(exp=float("inf")))).status_code == 401


async def test_keys_come_from_the_provider_or_the_configured_url(anyone: Any, provider: Provider) -> None:
    """A document that points elsewhere would let whoever writes it sign for everybody."""
    provider.keys_at = provider.issuer.replace("127.0.0.1", "localhost") + "/keys"

    assert (await whoami(anyone, provider.token())).status_code == 401
    assert provider.asked == ["/.well-known/openid-configuration"], "the other address was not asked"
    said_so = Oidc(OidcOptions(provider.issuer, AUDIENCE, {}, jwks_url=provider.keys_at))
    assert (await said_so.principal(provider.token())).actor == "oidc:ada"


async def test_slow_provider_holds_no_database_connection(anyone: Any, provider: Provider, app: FastAPI) -> None:
    provider.may_answer.clear()
    held: list[int] = []
    borrow = app.state.plane.pool.connection

    def counted(*how: Any, **given: Any) -> Any:
        held.append(len(provider.asked))
        return borrow(*how, **given)

    app.state.plane.pool.connection = counted
    waiting = [asyncio.create_task(whoami(anyone, provider.token())) for _ in range(8)]
    try:
        async with asyncio.timeout(60):
            while not provider.asked:
                await asyncio.sleep(0.01)
        assert held == [], "nobody borrowed one before the provider had answered"
    finally:
        provider.may_answer.set()
    assert {(await one).status_code for one in waiting} == {200}, "and all of them waited for the same answer"


def grow_older(app: FastAPI, seconds: float) -> None:
    app.state.plane.oidc._asked_at -= seconds
    app.state.plane.oidc._read_at -= seconds


def test_a_provider_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jwt", None)

    with pytest.raises(UsageError, match=r"install .holdfast-jobs\[oidc\]"):
        Oidc(OidcOptions("https://id.example", AUDIENCE))


def test_a_provider_over_plain_http_is_refused() -> None:
    with pytest.raises(UsageError, match="https"):
        Oidc(OidcOptions("http://id.example", AUDIENCE))
