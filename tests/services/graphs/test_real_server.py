"""The whole path with the real graph server: three tables become a graph that answers Cypher through the control plane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from graph_factories import finish_exports, get, until_status, worker
from holdfast.services.graphs.runtimes.local.runtime import LocalRuntime

pytest.importorskip("ladybug")
Client = httpx2.AsyncClient


@pytest.fixture
async def runtime(tmp_path: Path) -> Any:
    """The local runtime as it is installed: it starts `holdfast graph-server`."""
    made = LocalRuntime(tmp_path / "graphs")
    yield made
    for instance_id in made.folders.instances():
        assert await made.remove(instance_id)
    await made.close()


async def test_a_mapping_becomes_a_graph_that_answers_cypher_and_is_gone_after_its_deletion(
    analyst: Client, conn: Any, database: str, mapping_id: int, runtime: LocalRuntime
) -> None:
    """I-01, I-03, I-04: from POST to a Cypher result through the control plane, to a DELETE that leaves nothing."""
    async with worker(database):
        made = (await analyst.post("/api/instances", json={"name": "bank", "mapping_id": mapping_id})).json()["data"]
        await finish_exports(conn, made["snapshot_id"])
        await until_status(conn, made["id"], "running")

        query = "MATCH (c:Customer)-[:OWNS]->(a:Account) WHERE c.id = $id RETURN c.name AS name, a.number AS number"
        asked = {"query": query, "parameters": {"id": 7}}
        answer = await analyst.post(f"/api/instances/{made['id']}/graph/query", json=asked)
        assert answer.status_code == 200, answer.text
        assert answer.json()["rows"] == [["customer 7", "a8"]], answer.text
        progress = (await analyst.get(f"/api/instances/{made['id']}/progress")).json()["data"]
        assert {one["name"]: one["loaded"] for one in progress["steps"]["tables"]} == {
            "Customer": 100,
            "Account": 50,
            "OWNS": 100,
        }
        assert (await get(conn, made["id"])).progress["rows"] == {"nodes": 150, "edges": 100}

        gone = await analyst.delete(f"/api/instances/{made['id']}")

    assert gone.status_code == 204, gone.text
    assert await runtime.observe() == []
    assert (await analyst.get(f"/api/instances/{made['id']}")).status_code == 404
