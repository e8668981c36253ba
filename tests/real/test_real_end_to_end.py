"""From a mapping to Parquet as a user has it, on a real Trino behind a proxy, into GCS: document 002's end-to-end test.

Everything is a process of its own: `holdfast mapping apply`, `snapshot create`, and workers of which one is killed half-way.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from proof.proxy import Proxy
from trino_cluster import Store, TrinoCluster

GCS_TOKEN = "x/20260101/us-east-1/s3/aws4_request"  # what the store, which speaks S3, takes for a signature
BUCKET = "exports"
MAPPING = """
name: shop
engine: trino
nodes:
  - label: Customer
    sql: SELECT custkey, name, acctbal FROM tpch.sf1.customer
    primary_key: {name: custkey, type: INT64}
    properties: [{name: name, type: STRING}, {name: acctbal, type: DOUBLE}]
  - label: Nation
    sql: SELECT nationkey, name FROM tpch.sf1.nation
    primary_key: {name: nationkey, type: INT64}
    properties: [{name: name, type: STRING}]
edges:
  - type: LIVES_IN
    from_node: Customer
    to_node: Nation
    sql: SELECT custkey, nationkey FROM tpch.sf1.customer
    from_key: custkey
    to_key: nationkey
    properties: []
"""
CUSTOMERS = 150_000


@pytest.fixture
def place(store: Store) -> Any:
    """A bucket, and a client that looks into it without us."""
    boto3 = pytest.importorskip("boto3")
    key = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    client = boto3.client("s3", endpoint_url=store.endpoint, region_name="us-east-1", **key)
    client.create_bucket(Bucket=BUCKET)
    return client


@pytest.fixture
def surroundings(database: str, cluster: TrinoCluster, store: Store, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Settings, with a proxy before Trino as an ingress would stand there."""
    proxy = Proxy(cluster.url)
    token = tmp_path / "token"
    token.write_text(GCS_TOKEN)
    yield {
        **os.environ,
        "HOLDFAST_DATABASE_URL": database,
        "HOLDFAST_TRINO_URL": proxy.url.rstrip("/"),
        "HOLDFAST_TRINO_USER": "export",
        "HOLDFAST_TRINO_ROLE_REQUIRED": "false",
        "HOLDFAST_TRINO_SEGMENT_ORIGINS": store.endpoint,
        "HOLDFAST_SNAPSHOTS_TO": f"gs://{BUCKET}/graphs",
        "HOLDFAST_GCS_ENDPOINT": store.endpoint,
        "HOLDFAST_GCS_TOKEN_FILE": str(token),
        "HOLDFAST_BEAT_SECONDS": "1",
        "HOLDFAST_LEASE_SECONDS": "5",
        "HOLDFAST_POLL_SECONDS": "1",
    }
    proxy.close()


def command(env: Mapping[str, str], *words: str) -> Any:
    """What a command answers."""
    line = [sys.executable, "-m", "holdfast", *words, "-o", "json"]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def watch(env: Mapping[str, str], number: str) -> None:
    """Until it has ended, one way or the other."""
    line = [sys.executable, "-m", "holdfast", "snapshot", "watch", number, "--timeout", "4m"]
    subprocess.run(line, env=env, capture_output=True, timeout=300, check=False)


@contextmanager
def worker(env: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A pod: keeper and executor in a process group of their own."""
    line = [
        sys.executable,
        "-m",
        "holdfast",
        "worker",
        "run",
        "--import",
        "holdfast.services.exports.kinds",
        "--concurrency",
        "1",
    ]
    with log.open("ab") as said:
        process = subprocess.Popen(line, env=env, stdout=said, stderr=said, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def table_of(place: Any, export: Mapping[str, Any]) -> pa.Table:
    """The rows of an export, read from the store by its manifest alone."""
    prefix = str(export["gcs_path"]).removeprefix(f"gs://{BUCKET}/").rstrip("/")
    files = [place.get_object(Bucket=BUCKET, Key=f"{prefix}/{file['path']}")["Body"].read() for file in export["files"]]
    return pa.concat_tables([pq.read_table(io.BytesIO(file)) for file in files])


def test_w_24_from_a_mapping_to_parquet_on_trino_behind_a_proxy_with_a_worker_killed_half_way(
    surroundings: dict[str, str], database: str, place: Any, tmp_path: Path
) -> None:
    """W-24, but for Starburst Galaxy, which is nowhere to be had."""
    (tmp_path / "map.yaml").write_text(MAPPING)
    command(surroundings, "mapping", "apply", "-f", str(tmp_path / "map.yaml"))
    snapshot = command(surroundings, "snapshot", "create", "shop", "--runtime", "direct")
    number = str(snapshot["id"])

    log = tmp_path / "workers.log"
    with worker({**surroundings, "HOLDFAST_CRASH_AT": "export.uploaded"}, log) as first, psycopg.connect(database) as conn:
        deadline = time.monotonic() + 240
        while not conn.execute("SELECT FROM holdfast.jobs WHERE crashes > 0").fetchall():
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            conn.rollback()
            time.sleep(0.1)
        os.killpg(first.pid, signal.SIGKILL)
    with worker(surroundings, log):
        watch(surroundings, number)
    seen = command(surroundings, "snapshot", "show", number)

    assert seen["status"] == "ready", (seen, log.read_text()[-3000:])
    found = {one["entity_name"]: table_of(place, one) for one in seen["exports"]}
    assert {name: table.num_rows for name, table in found.items()} == {
        "Customer": CUSTOMERS,
        "Nation": 25,
        "LIVES_IN": CUSTOMERS,
    }
    assert len(set(found["Customer"]["custkey"].to_pylist())) == CUSTOMERS, "every row once"
    assert found["Customer"].column_names == ["custkey", "name", "acctbal"]
