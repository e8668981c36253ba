"""Who is at an address, and whether a secret may be sent there: over https, or to this machine. Pure.

Used by everything that sends a token: the command line, the client, the remote worker, and the exports' engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from holdfast.errors import UsageError

PORTS = {"http": 80, "https": 443}
LONGEST = 8192
IN_THE_CLEAR = "HOLDFAST_PLAIN_HTTP"


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port: who answers."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, uri: str) -> Origin | None:
        """The origin of an address, or None when it has no single reading."""
        if len(uri) > LONGEST or not uri.isascii() or not uri.isprintable() or any(c in uri for c in ' "<>\\^`{|}'):
            return None  # what two parsers could read in two ways is not read at all
        try:
            parts = urlsplit(uri)
            port, host = parts.port, parts.hostname
        except ValueError:
            return None
        if parts.scheme not in PORTS or not host or "@" in parts.netloc or parts.fragment or host.endswith("."):
            return None
        return cls(parts.scheme, host, PORTS[parts.scheme] if port is None else port)

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def keeps_secrets(self) -> bool:
        """Nobody on the way can read along."""
        return self.scheme == "https" or self.is_loopback

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can be meant. The whole name counts: 127.0.0.1.example.com is anybody."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def api_at(url: str, *, with_token: bool, plain_http: bool = False) -> Origin:
    """The API at this address, if what is to be sent may be sent there; `plain_http`: somebody said that it may."""
    origin = Origin.of(url)
    if origin is None:
        raise UsageError(f"the API's address is http://… or https://…, not {url!r}")
    if with_token and not origin.keeps_secrets and not plain_http:
        raise UsageError(
            f"a token must not go over the network unencrypted: {origin} is neither https nor this machine; "
            f"{IN_THE_CLEAR}=true allows it, for a network where nobody can listen"
        )
    return origin
