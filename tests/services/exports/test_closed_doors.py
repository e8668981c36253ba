"""What nobody gets by way of exports: the files of others or of the machine, and a control plane that stands still."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from psycopg.types.json import Jsonb

from export_factories import mapping
from factories import rows, state_of, value
from holdfast.services.exports.engines.opened import Engines
from holdfast.services.exports.engines.opening import open_engine
from holdfast.services.exports.kinds import KINDS
from holdfast.services.exports.setup import Exports
from holdfast.settings import settings
from holdfast.testing import Harness, harness

Client = httpx.AsyncClient
OVER_RANGES = {
    "nodes": [
        {
            "label": "Number",
            "sql": "SELECT i AS id FROM range(10) t(i)",
            "primary_key": {"name": "id", "type": "INT64"},
        }
    ],
    "edges": [],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where exports may write."""
    monkeypatch.setenv("HOLDFAST_EXPORT_DIRS", str(tmp_path))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


@pytest.fixture
def here(folder: Path) -> Exports:
    """Our own DuckDB engine, as the settings have it."""
    return Exports(Engines({"duckdb": lambda: open_engine("duckdb", settings())}), root=str(folder / "snapshots"))


@pytest.fixture
async def h(database: str, folder: Path) -> Any:
    async with harness(database, KINDS) as made:
        yield made


def files_below(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file())


async def ready_snapshot(ops: Client, h: Harness) -> dict[str, Any]:
    """A snapshot with its files, by a mapping of one node."""
    made = (await ops.post("/api/mappings", json=mapping(**OVER_RANGES))).json()["data"]
    answer = await ops.post("/api/snapshots", json={"mapping_id": made["id"]})
    await h.drain()
    data: dict[str, Any] = (await ops.get(answer.headers["Location"])).json()["data"]
    assert data["snapshot"]["status"] == "ready", data
    return data


# ---------------------------------------------------------------------------------------------------------------------
# Kinds of a service are made by its own doors
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["exports.remove", "exports.export", "exports.anything"])
async def test_a_kind_of_a_service_cannot_be_enqueued_by_hand(admin: Client, analyst: Client, conn: Any, kind: str) -> None:
    """Else an analyst would remove anybody's files, and export without a mapping or a snapshot."""
    for client in (analyst, admin):
        answer = await client.post("/api/jobs", json={"kind": kind, "payload": {"places": ["/data"], "snapshot_id": 1}})

        assert (answer.status_code, answer.json()["code"]) == (403, "RESERVED_KIND")
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 0


async def test_a_worker_cannot_smuggle_one_in_as_a_child(as_role: Any, analyst: Client, conn: Any) -> None:
    job_id = (await analyst.post("/api/jobs", json={"kind": "mine"})).json()["data"]["id"]
    worker = await as_role("worker")
    me = "/api/worker/11111111-1111-4111-8111-111111111111"
    about = {"name": "w", "host": "w", "pid": 1, "version": "1", "kinds": {"mine": 1}, "lease": 60}
    assert (await worker.put(me, json=about)).status_code == 204
    claims = (await worker.post(f"{me}/claims", json={"kinds": {"mine": 1}, "queues": ["default"]})).json()["claims"]
    shows = {"If-Match": f'"{claims[0]["attempt_id"]}"'}
    child = {"kind": "exports.remove", "payload": {"snapshot_id": 1}}
    ends = {"move": "complete", "state": "completed"}

    for path, said in [("finish", ends | {"then": [child]}), ("finish", ends | {"join": child}), ("chain", {"child": child})]:
        answer = await worker.post(f"/api/worker/jobs/{job_id}/{path}", json=said, headers=shows)
        assert (answer.status_code, answer.json()["code"]) == (403, "RESERVED_KIND"), said

    assert await state_of(conn, job_id) == "running", "nothing was written"


async def test_the_files_of_a_deleted_snapshot_are_removed_by_what_the_ledger_says_and_nothing_a_payload_says(
    ops: Client, h: Harness, conn: Any, folder: Path
) -> None:
    """A job of this kind that came from anywhere else names no file, and so removes none."""
    found = await ready_snapshot(ops, h)
    place = Path(found["exports"][0]["gcs_path"])
    assert files_below(place)
    snapshot_id = found["snapshot"]["id"]
    await conn.execute(
        "INSERT INTO holdfast.jobs (kind, payload) VALUES ('exports.remove', %s), ('exports.remove', %s)",
        [Jsonb({"snapshot_id": snapshot_id}), Jsonb({"places": [str(place)]})],
    )
    await h.drain()
    assert files_below(place), "there is no word about it in the ledger"

    gone = (await ops.delete(f"/api/snapshots/{snapshot_id}")).json()["data"]
    await h.drain()

    assert not files_below(place)
    result = await value(conn, "SELECT result FROM holdfast.jobs WHERE id = %s", gone["removal_job_id"])
    assert result == {"places": 1, "files": 1}


async def test_files_are_removed_also_when_the_job_that_should_is_cancelled(ops: Client, h: Harness, conn: Any) -> None:
    found = await ready_snapshot(ops, h)
    place = Path(found["exports"][0]["gcs_path"])
    gone = (await ops.delete(f"/api/snapshots/{found['snapshot']['id']}")).json()["data"]
    assert (await ops.post(f"/api/jobs/{gone['removal_job_id']}/cancel", json={"reason": "no"})).status_code == 202

    await h.clean()

    assert not files_below(place)
    assert await rows(conn, "SELECT state FROM holdfast.effects WHERE kind = 'export.files'") == [("gone",)]
