"""Which addresses may be asked: the configured origin, exactly, and for segments the object stores that were named.

An answer of the engine is somebody else's word. The address in it is compared before a request is made, let alone a
credential attached: scheme, host and port must be the same, there is no user in it, and its path is the one that the
protocol says.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from holdfast.addresses import Origin
from holdfast.errors import UsageError
from holdfast.services.exports.engines.port import UntrustedUri

STATEMENTS = "/v1/statement/"
SPOOLED = "/v1/spooled/"


def origin_of_setting(url: str, *, with_secret: bool = False) -> Origin:
    """The origin that somebody configured. A secret goes over https, or stays on this machine."""
    origin, path = Origin.of(url), urlsplit(url).path
    if origin is None or path not in ("", "/"):
        raise UsageError(f"the address of Trino or of its store must be like https://trino.example.com:8443, not {url}")
    if with_secret and not origin.keeps_secrets:
        raise UsageError(f"a password or token would go to {origin} in the clear; use https")
    return origin


def checked(uri: object, origin: Origin, prefix: str) -> str:
    """The address itself, if it leads to this origin and below this path; else nothing is sent."""
    if isinstance(uri, str) and Origin.of(uri) == origin and is_plain_path(urlsplit(uri).path, prefix):
        return uri
    raise UntrustedUri(f"the engine pointed to {shown(uri)} instead of {origin}{prefix}; nothing was sent there")


def is_plain_path(path: str, prefix: str) -> bool:
    """Below the prefix, and no way around it: no dot segments, no encoded slashes or dots."""
    lower = path.lower()
    return path.startswith(prefix) and not any(trick in lower for trick in ("/.", "%2e", "%2f", "%5c", "//", "%00"))


def checked_segment(uri: object, origin: Origin, stores: frozenset[Origin]) -> tuple[str, bool]:
    """Where a segment may be fetched, and whether that is the engine itself, which alone may see our credentials."""
    if isinstance(uri, str):
        found = Origin.of(uri)
        if found == origin and is_plain_path(urlsplit(uri).path, SPOOLED):
            return uri, True
        if found is not None and found != origin and found in stores:
            return uri, False
    raise UntrustedUri(
        f"the engine pointed to a segment at {shown(uri)}; nothing was sent there. If that is its object store, "
        "name it in HOLDFAST_TRINO_SEGMENT_ORIGINS"
    )


def shown(uri: object) -> str:
    """As much of an address as may stand in a log: presigned addresses hold a secret in their query."""
    if not isinstance(uri, str):
        return "no address"
    origin = Origin.of(uri)
    return str(origin) if origin else "an address that cannot be read"
