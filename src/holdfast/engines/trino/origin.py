"""Which addresses get requests: the configured origin, and for segments also the configured object stores.

Addresses in the engine's responses are not trusted. Each one is checked before a request is sent and before credentials are
attached: scheme, host and port must match exactly, it must not contain a user, and its path must be one of the protocol's.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from holdfast.addresses import Origin
from holdfast.engines.port import UntrustedUri
from holdfast.errors import UsageError

STATEMENTS = "/v1/statement/"
SPOOLED = "/v1/spooled/"


def origin_of_setting(url: str, *, with_secret: bool = False) -> Origin:
    """Parse a configured origin. With a secret, it must use https or a loopback address."""
    origin, path = Origin.of(url), urlsplit(url).path
    if origin is None or path not in ("", "/"):
        raise UsageError(f"the address of Trino or of its store must be like https://trino.example.com:8443, not {url}")
    if with_secret and not origin.keeps_secrets:
        raise UsageError(f"a password or token would be sent to {origin} unencrypted; use https")
    return origin


def checked(uri: object, origin: Origin, prefix: str) -> str:
    """Return the address if it has this origin and a path below this prefix. Otherwise raise `UntrustedUri`."""
    if isinstance(uri, str) and Origin.of(uri) == origin and is_plain_path(urlsplit(uri).path, prefix):
        return uri
    raise UntrustedUri(f"the engine pointed to {shown(uri)} instead of {origin}{prefix}; nothing was sent there")


def is_plain_path(path: str, prefix: str) -> bool:
    """Whether the path is below the prefix, without dot segments and without encoded slashes or dots."""
    lower = path.lower()
    return path.startswith(prefix) and not any(escape in lower for escape in ("/.", "%2e", "%2f", "%5c", "//", "%00"))


def checked_segment(uri: object, origin: Origin, stores: frozenset[Origin]) -> tuple[str, bool]:
    """Return the address of a segment, and whether it is the engine's. Credentials are sent to the engine only."""
    if isinstance(uri, str):
        found = Origin.of(uri)
        if found == origin and is_plain_path(urlsplit(uri).path, SPOOLED):
            return uri, True
        if found is not None and found != origin and found in stores:
            return uri, False
    raise UntrustedUri(
        f"the engine pointed to a segment at {shown(uri)}; nothing was sent there. If that is its object store, "
        "add it to HOLDFAST_TRINO_SEGMENT_ORIGINS"
    )


def shown(uri: object) -> str:
    """Return the part of an address that may be logged: the query string of a presigned address is a secret."""
    if not isinstance(uri, str):
        return "no address"
    origin = Origin.of(uri)
    return str(origin) if origin else "an address that cannot be read"
