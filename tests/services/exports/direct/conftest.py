"""Folders that exports may use, an S3 server in a process of its own, and a proxy before it that misbehaves on demand."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from object_proxy import ObjectProxy, write_key

from holdfast.settings import settings
from holdfast.stores.credentials import GcsCredentials, S3Credentials
from holdfast.stores.objects import ObjectStore
from holdfast.stores.paths import location_of

PATIENCE = 60.0
BUCKET = "bucket"
# What a token for GCS must look like so that moto, which speaks S3, takes it for a signature.
GCS_TOKEN = "x/20260101/us-east-1/s3/aws4_request"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where exports may read and write."""
    monkeypatch.setenv("HOLDFAST_EXPORT_DIRS", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_DUCKDB_DIRS", str(tmp_path))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[int]:
    """The port of an S3 server with one bucket."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _make_bucket(port)
        yield port
    finally:
        server.kill()
        server.wait()


def _make_bucket(port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
            with urllib.request.urlopen(asked, timeout=5):
                return
        except OSError:
            assert time.monotonic() < deadline, "the S3 server did not start"
            time.sleep(0.1)


@pytest.fixture
async def proxy(s3_server: int) -> AsyncIterator[ObjectProxy]:
    """What stands between a store and the server."""
    async with ObjectProxy(s3_server) as proxy:
        yield proxy


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """Credentials in a file, as a rotated secret is mounted."""
    file = tmp_path / "credentials"
    write_key(file, "first-key")
    return file


@pytest.fixture
async def s3_store(proxy: ObjectProxy, key_file: Path, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    """A prefix of its own in the bucket, by way of the proxy."""
    credentials = S3Credentials(endpoint=proxy.url, region="us-east-1", file=key_file)
    store = ObjectStore(location_of(f"s3://{BUCKET}/{tmp_path.name}"), credentials, tmp_path / "scratch")
    yield store
    await store.close()


@pytest.fixture
async def gcs_store(proxy: ObjectProxy, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    """The same through the client for GCS, against the same server."""
    token = tmp_path / "token"
    token.write_text(GCS_TOKEN)
    credentials = GcsCredentials(endpoint=proxy.url, token_file=token)
    store = ObjectStore(location_of(f"gs://{BUCKET}/{tmp_path.name}"), credentials, tmp_path / "scratch")
    yield store
    await store.close()
