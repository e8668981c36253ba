"""A real Prometheus for tests: its programs, where they are, and a server on loopback for the length of a block.

`make tools` fetches them. Where they are absent, the tests that need them are skipped with that reason.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

CACHE = Path(os.environ.get("HOLDFAST_TOOLS", "~/.cache/holdfast-prometheus")).expanduser() / "usr/bin"
PATIENCE = 120.0


def program(name: str) -> str:
    """`prometheus` or `promtool`; skips the test where there is none."""
    found = shutil.which(name) or shutil.which(name, path=str(CACHE))
    if found is None:
        pytest.skip(f"{name} is not installed: run `make tools`")
    return found


class Prometheus:
    """A running server."""

    def __init__(self, url: str) -> None:
        self._client = httpx2.Client(base_url=url, timeout=PATIENCE, trust_env=False)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        answer = self._client.get("/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        return list(answer["data"]["result"])

    def wait_for_scrapes(self, targets: int, more: int = 3) -> None:
        """Until each target was scraped `more` times from now on."""
        began = time.time()
        deadline = time.monotonic() + PATIENCE
        while True:
            counts = self.query(f"count_over_time(up[{max(1, int(time.time() - began))}s])")
            up = self.query("up == 1")
            if len(up) == targets and len(counts) == targets and all(float(one["value"][1]) > more for one in counts):
                return
            assert time.monotonic() < deadline, (counts, up)
            time.sleep(0.2)

    def ready(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx2.HTTPError:
            return False

    def close(self) -> None:
        self._client.close()


@contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[Prometheus]:
    """A server that scrapes these `host:port` every second."""
    command = program("prometheus")
    folder.mkdir(exist_ok=True)
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "holdfast", "static_configs": [{"targets": targets}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = [
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen([command, *arguments], stdout=log, stderr=log) as process:
        server = Prometheus(f"http://{address}")
        try:
            deadline = time.monotonic() + PATIENCE
            while not server.ready():
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.1)
            yield server
        finally:
            server.close()
            process.terminate()
            process.wait(PATIENCE)
