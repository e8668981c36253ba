"""Where files go, as text: addresses of stores, and paths below them. Pure.

A path comes in parts, and a part is one name: whatever could lead out of the prefix (`..`, an absolute path, an escape that
somebody else might undo) is refused and never repaired.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from holdfast.errors import UsageError

Scheme = Literal["file", "s3", "gs"]
LONGEST_NAME = 255  # bytes, as file systems have it
LONGEST_PATH = 1024  # bytes, as object stores have it
FORBIDDEN = frozenset('\\"<>|*?%#')  # no store needs them, and some library somewhere reads more into each of them


class Location(NamedTuple):
    """A place for files: a folder, or a prefix in a bucket."""

    scheme: Scheme
    bucket: str  # empty for local files
    prefix: str  # for local files the absolute path, else without slashes at its ends

    @property
    def url(self) -> str:
        """The address as people write it."""
        if self.scheme == "file":
            return f"file://{quote(self.prefix)}"
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")

    def below(self, *parts: str) -> Location:
        """A place below this one."""
        return self._replace(prefix=f"{self.prefix.rstrip('/')}/{joined(*parts)}".lstrip("" if self.scheme == "file" else "/"))


class PathRefused(UsageError):
    """The path leaves its prefix, or no store can hold it."""


def location_of(text: str) -> Location:
    """The place that an address or an absolute path names: `s3://bucket/prefix`, `gs://…`, `file:///…`, `/folder`."""
    if "://" not in text:
        return _local(text)
    if not text.isprintable():  # some of it would be dropped without a word
        raise PathRefused(f"{text!r}: an address is plain text")
    parts = urlsplit(text)
    if parts.query or parts.fragment or parts.username or parts.port:
        raise PathRefused(f"{text!r}: an address has a bucket and a path, and nothing else")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise PathRefused(f"{text!r} names the machine {parts.netloc}; files are local: file:///folder")
        return _local(unquote(parts.path, errors="strict"))
    if parts.scheme not in ("s3", "gs"):
        raise PathRefused(f"{text!r}: there are stores for s3://, gs://, file:// and local folders")
    if not parts.netloc:
        raise PathRefused(f"{text!r} names no bucket")
    prefix = parts.path.strip("/")
    return Location(parts.scheme, parts.netloc, joined(*prefix.split("/")) if prefix else "")  # type: ignore[arg-type]


def bucket_refused(location: Location, allowed: Sequence[str]) -> str | None:
    """Why a job may not write to this place of an object store; None if it may, or if it is a local one. Pure."""
    if location.scheme == "file":
        return None
    for place in allowed:
        root = location_of(place)
        same = (location.scheme, location.bucket) == (root.scheme, root.bucket)
        if same and (not root.prefix or f"{location.prefix}/".startswith(f"{root.prefix}/")):
            return None
    there = ", ".join(allowed) or "none"
    return (
        f"{location.url} is not below an allowed address; add one that holds it to HOLDFAST_EXPORT_BUCKETS (allowed: {there})"
    )


def _local(path: str) -> Location:
    if not path.startswith("/"):
        raise PathRefused(f"{path!r} is relative, and the worker has a folder of its own: name an absolute path")
    names = [name for name in path.split("/") if name]
    for name in names:
        _refuse(name, path, forbidden=frozenset())
    return Location("file", "", "/" + "/".join(names))


def joined(*parts: str) -> str:
    """Parts as one relative path; each part may have several names. `PathRefused` if it could lead out of its prefix."""
    path = "/".join(parts)
    for name in path.split("/"):
        _refuse(name, path, forbidden=FORBIDDEN)
    if len(path.encode()) > LONGEST_PATH:
        raise PathRefused(f"path {path[:80]!r}… is longer than {LONGEST_PATH} bytes")
    return path


def _refuse(name: str, path: str, *, forbidden: frozenset[str]) -> None:
    plain = unicodedata.normalize("NFKC", name)  # what somebody else may take it for
    if plain in ("", ".", "..") or "/" in plain:
        raise PathRefused(f"path {path!r} is absolute or leads elsewhere; use names, with single slashes between them")
    wrong = sorted({sign for sign in name if sign in forbidden or not sign.isprintable()} | (set(plain) & forbidden))
    if wrong:
        raise PathRefused(f"path {path!r} has {wrong[0]!r} in it; use letters, digits and plain signs")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise PathRefused(f"path {path!r} is not text") from None
    if size > LONGEST_NAME:
        raise PathRefused(f"a name in path {path[:80]!r}… is longer than {LONGEST_NAME} bytes")
