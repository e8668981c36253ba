"""Folders that exports may use, an S3 server in a process of its own, and a proxy before it that misbehaves on demand."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from object_proxy import ObjectProxy, write_key

from holdfast.settings import settings
from holdfast.stores.credentials import GcsCredentials, S3Credentials
from holdfast.stores.objects import ObjectStore
from holdfast.stores.paths import location_of

BUCKET = "bucket"
# On a port that the system gives it; a port that is chosen before may be somebody else's by then.
SERVER = """
import threading
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
threading.Event().wait()
"""
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
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT"), timeout=60):
                pass
            yield port
        finally:
            server.kill()


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
