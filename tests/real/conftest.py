"""Against the real thing: `make test-real`. Nothing here runs, or is even collected, without being asked for."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from trino_cluster import Store, TrinoCluster, free_port

from holdfast.services.exports.engines.trino import TrinoOptions, open_trino
from holdfast.services.exports.engines.trino.engine import TrinoEngine

collect_ignore_glob = [] if os.environ.get("HOLDFAST_TEST_REAL") else ["test_real_*.py"]


@pytest.fixture(scope="session")
def store() -> Iterator[Store]:
    """An S3 server for spooled segments."""
    boto3 = pytest.importorskip("boto3")
    moto = pytest.importorskip("moto.server")
    port = free_port()
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    endpoint = f"http://127.0.0.1:{port}"
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    client.create_bucket(Bucket="spool")
    yield Store(endpoint, "spool")
    server.stop()


@pytest.fixture(scope="session")
def cluster(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrinoCluster]:
    """One Trino for the whole run."""
    folder: Path = tmp_path_factory.mktemp("trino")
    cluster = TrinoCluster(folder, store)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture
async def engines(cluster: TrinoCluster, store: Store) -> AsyncIterator[Callable[..., TrinoEngine]]:
    """Opens engines that are closed after the test."""
    async with AsyncExitStack() as stack:

        def open_one(**more: Any) -> TrinoEngine:
            usual = {"role_required": False, "segment_origins": (store.endpoint,), "ctas_schema": "lake.exports"}
            engine = open_trino(TrinoOptions(cluster.url, "export", **{**usual, **more}))
            stack.push_async_callback(engine.close)
            return engine

        yield open_one


@pytest.fixture
def engine(engines: Callable[..., TrinoEngine]) -> TrinoEngine:
    return engines()
