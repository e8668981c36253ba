"""The control plane as a real process: `with serving(database, tmp_path) as served:`"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx2

import programs
from programs import Started

PATIENCE = 120
Found = TypeVar("Found")


class Served:
    """A running control plane."""

    def __init__(self, process: Started, log: Path) -> None:
        self.process, self.log = process, log
        self.url = self._wait_for(r"listens on (http://\S+)")

    @functools.cached_property
    def token(self) -> str:
        """The first admin's, by the link that works once."""
        answer = httpx2.get(self._wait_for(r"\n *(http://\S+/login\?code=\S+)"), timeout=PATIENCE, trust_env=False)
        return str(answer.json()["data"]["token"])

    def until(self, reached: Callable[[], Found | None]) -> Found:
        """What `reached` finds, as soon as it finds something; fails if the control plane ends before."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if found := reached():
                return found
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def _wait_for(self, pattern: str) -> str:
        return self.until(lambda: re.search(pattern, self.log.read_text()))[1]

    def client(self, token: str | None = None) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {token or self.token}"}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=PATIENCE, trust_env=False)


@contextmanager
def serving(database: str, tmp_path: Path, *arguments: str, **environment: str) -> Iterator[Served]:
    tmp_path.mkdir(exist_ok=True)
    log = tmp_path / "serve.log"
    words = ("serve", "--dsn", database, "--port", "0", "--log-format", "json", *arguments)
    with log.open("w") as out:
        process = programs.start(*words, env=os.environ | environment, folder=tmp_path, out=out, err=out)
    try:
        yield Served(process, log)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
