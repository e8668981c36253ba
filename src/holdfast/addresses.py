"""Parse addresses, and decide whether a secret may be sent there: over https, or to this machine. Pure.

Used by all code that sends a token: the command line, the client, the remote worker, and the engines of the exports.
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
    """The scheme, host and port of an address."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, uri: str) -> Origin | None:
        """The origin of an address, or None if the address is ambiguous."""
        if len(uri) > LONGEST or not uri.isascii() or not uri.isprintable() or any(c in uri for c in ' "<>\\^`{|}'):
            return None  # two parsers could read it differently, so it is refused
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
        """Whether the connection is encrypted or local."""
        return self.scheme == "https" or self.is_loopback

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether the host is this machine. The whole name counts: 127.0.0.1.example.com is not."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def without_api_path(url: str) -> str:
    """The address of an API without a trailing `/api`, which every path begins with. Pure."""
    whole = url.rstrip("/")
    return whole.removesuffix("/api") if whole.endswith("/api") and urlsplit(whole).path == "/api" else whole


def api_at(url: str, *, with_token: bool, plain_http: bool = False) -> Origin:
    """The origin of the API at this address; `UsageError` if a token must not be sent there. `plain_http` allows http."""
    origin = Origin.of(url)
    if origin is None:
        raise UsageError(f"the address of the API must start with http:// or https://, not {url!r}")
    if with_token and not origin.keeps_secrets and not plain_http:
        raise UsageError(
            f"a token must not be sent unencrypted: {origin} is neither https nor this machine; use https, or set "
            f"{IN_THE_CLEAR}=true in a trusted network"
        )
    return origin
