"""Tokens of an OpenID Connect provider: an extra, `holdfast[oidc]`.

Only asymmetric algorithms, only keys from the provider's own address or the one in HOLDFAST_OIDC_JWKS_URL, and every claim
that matters must be there. The keys are read again every ten minutes, so that one that was withdrawn stops counting, and for
a key id that is not known; at most once a minute, so that nobody can make us ask. A provider that does not answer for a day
is believed no more.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from holdfast.addresses import Origin
from holdfast.api.auth import Unknown, highest
from holdfast.api.plane import Principal
from holdfast.api.policy import POLICY, Role
from holdfast.errors import UsageError
from holdfast.telemetry.log import log

ALGORITHMS = ["RS256", "ES256"]
REQUIRED = ["exp", "iat", "iss", "aud", "sub"]
LEEWAY = 30  # seconds that two clocks may differ; the one place where a process's clock has a say
ASK_AGAIN_AFTER = 60.0  # seconds, for an unknown key
KEYS_ARE_FRESH = 600.0
KEYS_COUNT_FOR = 86_400.0
LONGEST_READ = 10.0  # seconds for the provider's configuration and its keys together, however slowly they come
LARGEST_ANSWER = 1_000_000  # bytes
LONGEST_SUBJECT = 255  # characters, as OpenID Connect says


@dataclass(frozen=True, slots=True)
class OidcOptions:
    """Whose tokens count, and which of their groups give which role."""

    issuer: str
    audience: str
    roles: Mapping[str, Role] = field(default_factory=dict)
    groups_claim: str = "groups"
    jwks_url: str | None = None


class Oidc:
    """One provider."""

    def __init__(self, options: OidcOptions) -> None:
        try:
            self._jwt: Any = importlib.import_module("jwt")
        except ModuleNotFoundError:
            raise UsageError("OpenID Connect needs an extra; install holdfast[oidc]") from None
        for address in filter(None, (options.issuer, options.jwks_url)):
            origin = Origin.of(address)
            if origin is None or not origin.keeps_secrets:
                raise UsageError(f"the issuer and its keys must be at an https address, not {address}")
        self._options = options
        self._keys: dict[str, Any] = {}
        self._asked_at = self._read_at = -math.inf
        self._one_at_a_time = asyncio.Lock()

    async def principal(self, token: str) -> Principal:
        """Who this token names, or `Unknown`. Why it is refused is for our log, not for whoever tries."""
        try:
            header = self._jwt.get_unverified_header(token)
            key = await self._key(str(header.get("kid")))
            if header.get("alg") not in ALGORITHMS or header["alg"] != key.algorithm_name:  # the key decides, not the token
                raise Unknown("this token is not one that we accept")
            claims = self._jwt.decode(
                token,
                key.key,
                algorithms=[header["alg"]],
                audience=self._options.audience,
                issuer=self._options.issuer,
                leeway=LEEWAY,
                options={"require": REQUIRED},
            )
        except (self._jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            raise Unknown("this token is not one that we accept") from None
        return self._known(claims)

    def _known(self, claims: Mapping[str, Any]) -> Principal:
        if not _is_subject(claims["sub"]):
            raise Unknown("this token is not one that we accept")
        groups = _words(claims.get(self._options.groups_claim))
        granted = _words(claims.get("permissions")) | _words(claims.get("scope"))
        named = {rule.permission for rule in POLICY.values() if rule.permission is not None}
        role = highest(groups, dict(self._options.roles))
        return Principal(
            f"oidc:{claims['sub']}",
            "oidc",
            role,
            permissions=frozenset(granted & named),
            expires_at=float(claims["exp"]) + LEEWAY,
        )

    async def _key(self, kid: str) -> Any:
        if kid not in self._keys or self._needs_a_look(kid):
            async with self._one_at_a_time:
                if self._needs_a_look(kid):
                    await self._look()
        if kid not in self._keys:
            raise Unknown("this token is not one that we accept")
        return self._keys[kid]

    def _needs_a_look(self, kid: str) -> bool:
        now = time.monotonic()
        if now - self._asked_at < ASK_AGAIN_AFTER:
            return False
        return kid not in self._keys or now - self._read_at >= KEYS_ARE_FRESH

    async def _look(self) -> None:
        """Read the keys. Meanwhile, and when that fails, those that we know still count: but not for ever."""
        self._asked_at = time.monotonic()
        try:
            keys = self._usable(await self._read())
        except Exception as error:  # whatever the provider sends: the keys that we know have to end below
            log.warning("oidc_keys_not_read", issuer=self._options.issuer, error=f"{type(error).__name__}: {error}")
            if time.monotonic() - self._read_at >= KEYS_COUNT_FOR:
                self._keys = {}
            return
        self._read_at = self._asked_at
        self._keys = keys

    async def _read(self) -> Mapping[str, Any]:
        """The provider's key set, within bounds of time and size."""
        async with (
            asyncio.timeout(LONGEST_READ),
            httpx.AsyncClient(timeout=5, follow_redirects=False, trust_env=False) as client,
        ):
            return await _fetched(client, await self._jwks_url(client))

    def _usable(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The keys by their ids, without those that are not for signatures."""
        keys = self._jwt.PyJWKSet.from_dict(found).keys
        return {key.key_id: key for key in keys if isinstance(key.key_id, str) and key.public_key_use in (None, "sig")}

    async def _jwks_url(self, client: httpx.AsyncClient) -> str:
        """What the configuration says, or what the provider says of itself; not another address that the provider names."""
        if self._options.jwks_url is not None:
            return self._options.jwks_url
        place = f"{self._options.issuer.rstrip('/')}/.well-known/openid-configuration"
        said = str((await _fetched(client, place))["jwks_uri"])
        if Origin.of(said) != Origin.of(place):
            raise UsageError(f"the keys of {self._options.issuer} are at another address: set HOLDFAST_OIDC_JWKS_URL to {said}")
        return said


async def _fetched(client: httpx.AsyncClient, url: str) -> Mapping[str, Any]:
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
    """Whether a `sub` can name somebody: cut short it could name two, and what is not printable cannot be stored. Pure."""
    return isinstance(claim, str) and 0 < len(claim) <= LONGEST_SUBJECT and claim.isprintable() and bool(claim.strip())


def _words(claim: Any) -> set[str]:
    if isinstance(claim, str):
        return set(claim.split())
    return {word for word in claim if isinstance(word, str)} if isinstance(claim, list) else set()
