"""Pods that really run: the node starts the real graph server as a process, and a Cypher query passes through it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from graph_factories import a_pass, finish_exports, get, status, until_status, worker
from holdfast.services.graphs.setup import Graphs
from kube.node import ProcessNode
from kube.scenarios import pod_of
from kube.stage import Stage, until

pytest.importorskip("ladybug")
Client = httpx2.AsyncClient
QUERY = "MATCH (c:Customer)-[:OWNS]->(a:Account) WHERE c.id = $id RETURN c.name AS name, a.number AS number"


async def test_a_cypher_query_passes_through_a_pod(
    analyst: Client, conn: Any, database: str, mapping_id: int, stage: Stage, process_node: ProcessNode, here: Graphs
):
    """From a mapping to a pod that answers Cypher; then the kernel kills it for its memory, and that is noticed."""
    async with worker(database):
        made = (await analyst.post("/api/instances", json={"name": "bank", "mapping_id": mapping_id})).json()["data"]
        await finish_exports(conn, made["snapshot_id"])
        await until_status(conn, made["id"], "running")

        answer = await analyst.post(f"/api/instances/{made['id']}/graph/query", json={"query": QUERY, "parameters": {"id": 7}})
    assert answer.status_code == 200, answer.text
    assert answer.json()["rows"] == [["customer 7", "a8"]]

    await process_node.kill_for_memory(pod_of(made["id"]))

    async def has_failed() -> bool:
        return (await process_node.pod(pod_of(made["id"])))["status"]["phase"] == "Failed"

    await until(has_failed)
    await a_pass(conn, database, "reconciliation")
    failed = await get(conn, made["id"])
    assert (failed.status, failed.error_code) == ("failed", "OOM_KILLED")


async def test_a_load_that_fails_in_a_pod_fails_the_instance_with_its_own_code(
    analyst: Client,
    conn: Any,
    database: str,
    mapping_id: int,
    stage: Stage,
    process_node: ProcessNode,
    here: Graphs,
    tmp_path: Path,
):
    """The graph server goes on running and says why; the pod never becomes ready."""
    made = (await analyst.post("/api/instances", json={"name": "bank", "mapping_id": mapping_id})).json()["data"]
    await finish_exports(conn, made["snapshot_id"])
    for file in (tmp_path / "snapshots").rglob("*.parquet"):
        file.write_bytes(b"no parquet")

    async with worker(database):
        await until_status(conn, made["id"], "failed")

    failed = await get(conn, made["id"])
    assert failed.error_code == "DATA_LOAD_ERROR", failed.error
    assert await status(conn, made["id"]) == "failed"
