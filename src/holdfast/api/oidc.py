"""Tokens of an OpenID Connect provider. Needs the extra `oidc`.

Only asymmetric algorithms are accepted, only keys from the provider's address or from HOLDFAST_OIDC_JWKS_URL, and every
required claim must be present. The keys are read again every ten minutes, so that a withdrawn key becomes invalid, and for an
unknown key id, but at most once a minute, so that a caller cannot trigger many requests. If the provider does not answer for a
day, its tokens are refused.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx2

from holdfast.addresses import Origin
from holdfast.api.auth import Unknown, highest
from holdfast.api.plane import Principal
from holdfast.api.policy import POLICY, Role
from holdfast.errors import UsageError
from holdfast.extras import loaded
from holdfast.telemetry.log import log

ALGORITHMS = ["RS256", "ES256"]
REQUIRED = ["exp", "iat", "iss", "aud", "sub"]
LEEWAY = 30  # seconds of clock difference; the only decision that uses the clock of the process
ASK_AGAIN_AFTER = 60.0  # seconds, for an unknown key
KEYS_ARE_FRESH = 600.0
KEYS_COUNT_FOR = 86_400.0
LONGEST_READ = 10.0  # seconds for the provider's configuration and its keys together
LARGEST_ANSWER = 1_000_000  # bytes
LONGEST_SUBJECT = 255  # characters, as OpenID Connect defines


@dataclass(frozen=True, slots=True)
class OidcOptions:
    """The accepted issuer and audience, and the role of each group."""

    issuer: str
    audience: str
    roles: Mapping[str, Role] = field(default_factory=dict)
    groups_claim: str = "groups"
    jwks_url: str | None = None
    client_id: str | None = None  # of the console; without one there is no sign-in from a browser
    client_secret: str | None = field(default=None, repr=False)  # without one the console is a public client
    scopes: str = "openid profile"
    session: timedelta = timedelta(hours=8)  # how long a browser stays signed in


class Oidc:
    """One provider."""

    def __init__(self, options: OidcOptions) -> None:
        self._jwt: Any = loaded("jwt", extra="oidc")
        for address in filter(None, (options.issuer, options.jwks_url)):
            origin = Origin.of(address)
            if origin is None or not origin.keeps_secrets:
                raise UsageError(f"the issuer and its keys must be at an https address, not {address}")
        self.options = options
        self._said: Mapping[str, Any] | None = None  # its configuration
        self._said_at = -math.inf
        self._keys: dict[str, Any] = {}
        self._asked_at = self._read_at = -math.inf
        self._one_at_a_time = asyncio.Lock()

    async def principal(self, token: str) -> Principal:
        """The principal of this token, or `Unknown`."""
        return self.known(await self.claims(token, self.options.audience))

    async def claims(self, token: str, audience: str) -> Mapping[str, Any]:
        """The verified claims of a token, or `Unknown`. The reason of a refusal is not sent to the caller."""
        try:
            header = self._jwt.get_unverified_header(token)
            key = await self._key(str(header.get("kid")))
            if header.get("alg") not in ALGORITHMS or header["alg"] != key.algorithm_name:  # the key decides, not the token
                raise Unknown("the token is not accepted")
            claims: Mapping[str, Any] = self._jwt.decode(
                token,
                key.key,
                algorithms=[header["alg"]],
                audience=audience,
                issuer=self.options.issuer,
                leeway=LEEWAY,
                options={"require": REQUIRED},
            )
        except (self._jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            raise Unknown("the token is not accepted") from None
        return claims

    def known(self, claims: Mapping[str, Any]) -> Principal:
        """The principal of these claims, or `Unknown`."""
        if not _is_subject(claims["sub"]):
            raise Unknown("the token is not accepted")
        groups = _words(claims.get(self.options.groups_claim))
        granted = _words(claims.get("permissions")) | _words(claims.get("scope"))
        named = {rule.permission for rule in POLICY.values() if rule.permission is not None}
        role = highest(groups, dict(self.options.roles))
        return Principal(
            f"oidc:{claims['sub']}",
            "oidc",
            role,
            permissions=frozenset(granted & named),
            expires_at=float(claims["exp"]) + LEEWAY,
        )

    async def _key(self, kid: str) -> Any:
        if kid not in self._keys or self._must_read_keys(kid):
            async with self._one_at_a_time:
                if self._must_read_keys(kid):
                    await self._read_keys()
        if kid not in self._keys:
            raise Unknown("the token is not accepted")
        return self._keys[kid]

    def _must_read_keys(self, kid: str) -> bool:
        now = time.monotonic()
        if now - self._asked_at < ASK_AGAIN_AFTER:
            return False
        return kid not in self._keys or now - self._read_at >= KEYS_ARE_FRESH

    async def _read_keys(self) -> None:
        """Read the keys. Meanwhile, and if that fails, the known keys stay valid for a limited time."""
        self._asked_at = time.monotonic()
        try:
            keys = self._usable(await self._read())
        except Exception as error:  # any response of the provider: the known keys expire below
            log.warning("oidc_keys_not_read", issuer=self.options.issuer, error=f"{type(error).__name__}: {error}")
            if time.monotonic() - self._read_at >= KEYS_COUNT_FOR:
                self._keys = {}
            return
        self._read_at = self._asked_at
        self._keys = keys

    async def _read(self) -> Mapping[str, Any]:
        """The provider's key set, within bounds of time and size."""
        async with (
            asyncio.timeout(LONGEST_READ),
            httpx2.AsyncClient(timeout=5, follow_redirects=False, trust_env=False) as client,
        ):
            return await _fetched(client, await self._jwks_url(client))

    def _usable(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The signature keys by id."""
        keys = self._jwt.PyJWKSet.from_dict(found).keys
        return {key.key_id: key for key in keys if isinstance(key.key_id, str) and key.public_key_use in (None, "sig")}

    async def says(self, name: str, default: Any) -> Any:
        """A value of the provider's configuration, at most ten minutes old. Any answer of the provider may raise an error."""
        if self._said is None or time.monotonic() - self._said_at >= KEYS_ARE_FRESH:
            async with (
                asyncio.timeout(LONGEST_READ),
                httpx2.AsyncClient(timeout=5, follow_redirects=False, trust_env=False) as client,
            ):
                self._said = await _fetched(client, self._configuration)
                self._said_at = time.monotonic()
        return self._said.get(name, default)

    @property
    def _configuration(self) -> str:
        return f"{self.options.issuer.rstrip('/')}/.well-known/openid-configuration"

    async def _jwks_url(self, client: httpx2.AsyncClient) -> str:
        """The address of the keys: from the settings, or from the provider's configuration if it is at the provider's
        address."""
        if self.options.jwks_url is not None:
            return self.options.jwks_url
        said = str((await _fetched(client, self._configuration))["jwks_uri"])
        if Origin.of(said) != Origin.of(self._configuration):
            raise UsageError(f"the keys of {self.options.issuer} are at another address: set HOLDFAST_OIDC_JWKS_URL to {said}")
        return said


async def _fetched(client: httpx2.AsyncClient, url: str) -> Mapping[str, Any]:
    """A JSON object; anything else is a `ValueError`."""
    raw = bytearray()
    async with client.stream("GET", url) as response:
        response.raise_for_status()
        async for chunk in response.aiter_bytes():
            raw += chunk
            if len(raw) > LARGEST_ANSWER:
                raise ValueError(f"{url} has more than {LARGEST_ANSWER:,} bytes")
    found = json.loads(raw)
    if not isinstance(found, dict):
        raise ValueError(f"{url} has a JSON {type(found).__name__}, not an object")
    return found


def _is_subject(claim: Any) -> bool:
    """Whether a `sub` is usable: a longer one would have to be cut and could be ambiguous, and it must be printable. Pure."""
    return isinstance(claim, str) and 0 < len(claim) <= LONGEST_SUBJECT and claim.isprintable() and bool(claim.strip())


def _words(claim: Any) -> set[str]:
    if isinstance(claim, str):
        return set(claim.split())
    return {word for word in claim if isinstance(word, str)} if isinstance(claim, list) else set()
