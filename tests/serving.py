"""The control plane as a real process: `with serving(database, tmp_path) as served:`"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

PATIENCE = 120


class Served:
    """A running control plane."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self.log = process, log
        self.url = self._wait_for(r"listens on (http://\S+)")

    @functools.cached_property
    def token(self) -> str:
        """The first admin's, by the link that works once."""
        answer = httpx.get(self._wait_for(r"\n *(http://\S+/login\?code=\S+)"), timeout=PATIENCE, trust_env=False)
        return str(answer.json()["data"]["token"])

    def _wait_for(self, pattern: str) -> str:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = re.search(pattern, self.log.read_text())
            if found:
                return found[1]
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def client(self, token: str | None = None) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token or self.token}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=PATIENCE, trust_env=False)


@contextmanager
def serving(database: str, tmp_path: Path, *arguments: str, **environment: str) -> Iterator[Served]:
    tmp_path.mkdir(exist_ok=True)
    log = tmp_path / "serve.log"
    command = [sys.executable, "-m", "holdfast", "serve", "--url", database, "--port", "0", "--json", *arguments]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, text=True, cwd=tmp_path, env=os.environ | environment)
    try:
        yield Served(process, log)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
