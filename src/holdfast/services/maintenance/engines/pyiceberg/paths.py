"""One spelling for each file: engines write the same location in several ways. Pure.

Spark writes `file:/x`, PyIceberg writes `file:///x` and `/x`; Hadoop writes `s3a://` for `s3://`. A comparison of locations as
they are written would take live files for orphans.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final

SCHEME: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<rest>.*)", re.DOTALL)
SAME: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "wasb": "abfss", "wasbs": "abfss"}


def normalised(location: str) -> str:
    """The location in one spelling: an absolute path for local files, `scheme://…` for others."""
    match = SCHEME.fullmatch(location)
    if match is None:
        return posixpath.normpath(location)
    scheme, rest = match["scheme"].lower(), match["rest"]
    if scheme == "file":
        return local_path(rest)
    return f"{SAME.get(scheme, scheme)}://{rest.lstrip('/')}"


def local_path(rest: str) -> str:
    """The path of a `file:` location without its scheme: `/x`, `///x` and `//localhost/x` are one file."""
    if rest.startswith("//") and not rest.startswith("///"):
        rest = rest.removeprefix("//localhost") if rest.startswith("//localhost/") else rest
    return posixpath.normpath("/" + rest.lstrip("/"))


def is_local(location: str) -> bool:
    """Whether it is a file of this machine."""
    return normalised(location).startswith("/")
