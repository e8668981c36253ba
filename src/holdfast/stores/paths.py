"""Addresses of stores, and paths below them. Pure.

Paths that could leave their prefix are refused, not corrected: `..`, absolute paths, and escapes that another program might
decode.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from holdfast.errors import UsageError

Scheme = Literal["file", "s3", "gs"]
LONGEST_NAME = 255  # bytes, the limit of common file systems
LONGEST_PATH = 1024  # bytes, the limit of object stores
FORBIDDEN = frozenset('\\"<>|*?%#')  # no store needs them, and some libraries interpret them


class Location(NamedTuple):
    """A local folder, or a prefix in a bucket."""

    scheme: Scheme
    bucket: str  # empty for local files
    prefix: str  # the absolute path of a local folder; otherwise without slashes at both ends

    @property
    def url(self) -> str:
        """The address as a URL."""
        if self.scheme == "file":
            return f"file://{quote(self.prefix)}"
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")

    def below(self, *parts: str) -> Location:
        """The location of a subfolder."""
        return self._replace(prefix=f"{self.prefix.rstrip('/')}/{joined(*parts)}".lstrip("" if self.scheme == "file" else "/"))


class PathRefused(UsageError):
    """The path could leave its prefix, or a store cannot store it."""


def location_of(text: str) -> Location:
    """Parse an address or an absolute path: `s3://bucket/prefix`, `gs://…`, `file:///…`, `/folder`."""
    if "://" not in text:
        return _local(text)
    if not text.isprintable():  # urlsplit removes such characters silently
        raise PathRefused(f"{text!r}: an address may contain only printable characters")
    parts = urlsplit(text)
    if parts.query or parts.fragment or parts.username or parts.port:
        raise PathRefused(f"{text!r}: an address may have only a bucket and a path")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise PathRefused(f"{text!r} has the host {parts.netloc}; only local files are supported: file:///folder")
        return _local(unquote(parts.path, errors="strict"))
    if parts.scheme not in ("s3", "gs"):
        raise PathRefused(f"{text!r}: use s3://, gs://, file:// or an absolute local path")
    if not parts.netloc:
        raise PathRefused(f"{text!r} has no bucket")
    prefix = parts.path.strip("/")
    return Location(parts.scheme, parts.netloc, joined(*prefix.split("/")) if prefix else "")  # type: ignore[arg-type]


def bucket_refused(location: Location, allowed: Sequence[str]) -> str | None:
    """Why a job may not write to this location in an object store; None if it may, or if the location is local. Pure."""
    if location.scheme == "file":
        return None
    for place in allowed:
        root = location_of(place)
        same = (location.scheme, location.bucket) == (root.scheme, root.bucket)
        if same and (not root.prefix or f"{location.prefix}/".startswith(f"{root.prefix}/")):
            return None
    listed = ", ".join(allowed) or "none"
    return f"{location.url} is not below an allowed address; add its bucket to HOLDFAST_EXPORT_BUCKETS (allowed: {listed})"


def _local(path: str) -> Location:
    if not path.startswith("/"):
        raise PathRefused(f"{path!r} is a relative path, but workers have other working directories; use an absolute path")
    names = [name for name in path.split("/") if name]
    for name in names:
        _refuse(name, path, forbidden=frozenset())
    return Location("file", "", "/" + "/".join(names))


def joined(*parts: str) -> str:
    """Join parts to one relative path; each part may have several names. `PathRefused` if it could leave its prefix."""
    path = "/".join(parts)
    for name in path.split("/"):
        _refuse(name, path, forbidden=FORBIDDEN)
    if len(path.encode()) > LONGEST_PATH:
        raise PathRefused(f"path {path[:80]!r}… is longer than {LONGEST_PATH} bytes")
    return path


def _refuse(name: str, path: str, *, forbidden: frozenset[str]) -> None:
    plain = unicodedata.normalize("NFKC", name)  # some programs normalize names
    if plain in ("", ".", "..") or "/" in plain:
        raise PathRefused(f"path {path!r} is absolute or has '.', '..' or empty parts; use names separated by single slashes")
    wrong = sorted({sign for sign in name if sign in forbidden or not sign.isprintable()} | (set(plain) & forbidden))
    if wrong:
        raise PathRefused(f"path {path!r} contains {wrong[0]!r}; use letters, digits, '-', '_' and '.'")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise PathRefused(f"path {path!r} is not valid Unicode text") from None
    if size > LONGEST_NAME:
        raise PathRefused(f"a name in path {path[:80]!r}… is longer than {LONGEST_NAME} bytes")
