"""UNLOAD end to end on an open-source Trino: a proxy translates it to a CTAS of Hive, into a real object store's protocol."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from test_real_end_to_end import BUCKET, CUSTOMERS, MAPPING, command, place, table_of, watch, worker
from trino_cluster import Store, TrinoCluster
from unload_proxy import UnloadProxy

__all__ = ["place"]  # a fixture


def run(url: str, sql: str) -> None:
    """One statement, to its end."""
    answer = httpx2.post(f"{url}/v1/statement", content=sql, headers={"X-Trino-User": "test"}, timeout=120).json()
    while "nextUri" in answer:
        answer = httpx2.get(answer["nextUri"], timeout=120).json()
    assert "error" not in answer, answer["error"]


@pytest.fixture
def proxy(cluster: TrinoCluster) -> Iterator[UnloadProxy]:
    run(cluster.url, "CREATE SCHEMA IF NOT EXISTS hive.unloads")
    opened = UnloadProxy(cluster.url, "hive.unloads")
    yield opened
    opened.close()


@pytest.fixture
def surroundings(database: str, proxy: UnloadProxy, store: Store) -> dict[str, str]:
    return {
        **os.environ,
        "HOLDFAST_DATABASE_URL": database,
        "HOLDFAST_TRINO_URL": proxy.url,
        "HOLDFAST_TRINO_USER": "export",
        "HOLDFAST_TRINO_ROLE_REQUIRED": "false",
        "HOLDFAST_SNAPSHOTS_TO": f"s3://{BUCKET}/unloaded",
        "HOLDFAST_S3_ENDPOINT": store.endpoint,
        "HOLDFAST_S3_REGION": "us-east-1",
        "HOLDFAST_S3_ACCESS_KEY_ID": "test",
        "HOLDFAST_S3_SECRET_ACCESS_KEY": "test",
        "HOLDFAST_BEAT_SECONDS": "1",
        "HOLDFAST_LEASE_SECONDS": "30",
        "HOLDFAST_POLL_SECONDS": "1",
    }


def test_a_snapshot_is_unloaded_by_the_engine_itself(
    surroundings: dict[str, str], proxy: UnloadProxy, place: Any, tmp_path: Path
) -> None:
    """B-06: the columns are asked for, UNLOAD is submitted, polled to its end, and counted by the files' own footers."""
    (tmp_path / "map.yaml").write_text(MAPPING.replace("acctbal FROM", "CAST(acctbal AS REAL) AS acctbal FROM"))
    command(surroundings, "mapping", "apply", "-f", str(tmp_path / "map.yaml"))
    number = str(command(surroundings, "snapshot", "create", "shop", "--runtime", "unload")["id"])

    log = tmp_path / "worker.log"
    with worker(surroundings, log):
        watch(surroundings, number)
    seen = command(surroundings, "snapshot", "show", number)

    assert seen["status"] == "ready", (seen, log.read_text()[-3000:])
    assert len(proxy.translations) == 3, "each export was one UNLOAD"
    found = {
        one["entity_name"]: table_of(place, {**one, "gcs_path": str(one["gcs_path"]).replace("s3://", "gs://")})
        for one in seen["exports"]
    }
    assert {name: table.num_rows for name, table in found.items()} == {
        "Customer": CUSTOMERS,
        "Nation": 25,
        "LIVES_IN": CUSTOMERS,
    }
    assert str(found["Customer"].schema.field("acctbal").type) == "double", "REAL was widened to what the mapping declares"
