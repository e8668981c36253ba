"""A small OpenID Connect provider on loopback: discovery, keys, a page on which a user signs in, codes with PKCE, and sign-out.

It checks a client as a real one does: registered redirect address, S256, the secret, one use of each code. `changed` are claims
that a test wants different in the next ID token.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

CLIENT, SECRET = "holdfast-console", "a secret of the client & more"
USERS = {"ada": ["data-ops"], "bob": ["gardeners"]}


class IdentityProvider:
    """One provider; users choose who they are by a button."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.redirects: set[str] = set()  # registered addresses of the client
        self.codes: dict[str, dict[str, str]] = {}
        self.changed: dict[str, Any] = {}
        self.refuses_codes = False
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                place = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(place.query).items()}
                if place.path == "/authorize":
                    provider.authorize(self, query)
                else:
                    found = provider.documents().get(place.path)
                    _send(self, 200 if found else 404, found or {"error": "not found"})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                provider.exchange(self, {name: values[0] for name, values in parse_qs(body).items()})

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"

    def documents(self) -> dict[str, Any]:
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key()))
        return {
            "/.well-known/openid-configuration": {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "end_session_endpoint": f"{self.issuer}/bye",
                "jwks_uri": f"{self.issuer}/keys",
            },
            "/keys": {"keys": [public | {"kid": "one", "alg": "ES256", "use": "sig"}]},
            "/bye": "signed out at the provider",
        }

    def authorize(self, handler: BaseHTTPRequestHandler, query: dict[str, str]) -> None:
        """The page of the sign-in; with `as` in the query the user has chosen."""
        is_known = query.get("client_id") == CLIENT and query.get("redirect_uri") in self.redirects
        is_right = query.get("response_type") == "code" and query.get("code_challenge_method") == "S256"
        if not (is_known and is_right and query.get("code_challenge") and "openid" in query.get("scope", "").split()):
            _send(handler, 400, "this request of a client is not valid")
            return
        chosen = query.pop("as", None)
        if chosen is None:
            links = "".join(
                f'<p><a href="/authorize?{escape(urlencode({**query, "as": who}))}">{who}</a></p>' for who in (*USERS, "deny")
            )
            _send(handler, 200, f"<!doctype html><title>Who are you?</title><h1>Who are you?</h1>{links}")
            return
        answer = {"state": query["state"], "iss": self.issuer}
        if chosen == "deny":
            answer |= {"error": "access_denied", "error_description": "the user said <no>"}
        else:
            answer["code"] = secrets.token_urlsafe(16)
            self.codes[answer["code"]] = {**query, "as": chosen}
        handler.send_response(302)
        handler.send_header("Location", f"{query['redirect_uri']}?{urlencode(answer)}")
        handler.end_headers()

    def exchange(self, handler: BaseHTTPRequestHandler, form: dict[str, str]) -> None:
        """The ID token for a code."""
        asked = self.codes.pop(form.get("code", ""), None)
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if handler.headers.get("Authorization") != f"Basic {basic}":
            _send(handler, 401, {"error": "invalid_client"})
            return
        challenge = base64.urlsafe_b64encode(sha256(form.get("code_verifier", "").encode()).digest()).rstrip(b"=").decode()
        is_right = asked is not None and (asked["redirect_uri"], asked["code_challenge"]) == (form["redirect_uri"], challenge)
        if asked is None or not is_right or self.refuses_codes:
            _send(handler, 400, {"error": "invalid_grant"})
            return
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT, "sub": asked["as"], "iat": now, "exp": now + 60}
        claims |= {"nonce": asked["nonce"], "groups": USERS[asked["as"]], **self.changed}
        _send(handler, 200, {"id_token": jwt.encode(claims, self.key, "ES256", {"kid": "one"}), "token_type": "Bearer"})


def _send(handler: BaseHTTPRequestHandler, status: int, body: Any) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    handler.send_response(status)
    handler.send_header("Content-Type", "text/html" if isinstance(body, str) else "application/json")
    handler.end_headers()
    handler.wfile.write(text.encode())


@contextmanager
def identity_provider() -> Iterator[IdentityProvider]:
    """A provider that ends with the block."""
    made = IdentityProvider()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()
