"""Graph servers as real processes, and the small graphs that they load: `with graph_server(plan, tmp_path) as served:`"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq

import programs

SECRET = "s" * 43
TOKEN = "00000000-0000-4000-8000-000000000001"
PATIENCE = 120.0
CITIES = [("bern", "Bern"), ("basel", "Basel"), ("chur", "Chur")]
PEOPLE = [(1, "Ada", 36.0), (2, "Bob", None), (3, "Cy", 51.5), (4, "Dee", 22.0)]
KNOWS = [(1, 2, 1.0), (2, 3, 2.0), (3, 1, 4.0), (3, 4, 0.5)]
LIVES_IN = [(1, "bern"), (2, "bern"), (3, "basel")]


def write(file: Path, columns: dict[str, Any]) -> dict[str, Any]:
    """A Parquet file, and its entry in a plan."""
    table = pa.table(columns)
    pq.write_table(table, file)
    return {"path": str(file), "rows": table.num_rows, "bytes": file.stat().st_size}


def column(name: str, kind: str) -> dict[str, str]:
    return {"name": name, "type": kind}


def node(label: str, key: dict[str, str], properties: list[dict[str, str]], *files: dict[str, Any]) -> dict[str, Any]:
    rows = sum(file["rows"] for file in files)
    return {"label": label, "primary_key": key, "properties": properties, "files": list(files), "rows": rows}


def edge(name: str, ends: tuple[str, str], properties: list[dict[str, str]], *files: dict[str, Any]) -> dict[str, Any]:
    rows = sum(file["rows"] for file in files)
    keys = {"from_node": ends[0], "to_node": ends[1], "from_key": "a", "to_key": "b"}
    return {"type": name, **keys, "properties": properties, "files": list(files), "rows": rows}


def plan_of(nodes: list[dict[str, Any]], edges: list[dict[str, Any]] = [], engine: str = "ladybug") -> dict[str, Any]:  # noqa: B006
    head = {"instance_id": 7, "start_token": TOKEN, "engine": engine, "mapping_id": 1, "mapping_version": 2, "snapshot_id": 3}
    return {**head, "location": "/nowhere", "nodes": nodes, "edges": edges}


def social(folder: Path, engine: str = "ladybug") -> dict[str, Any]:
    """People who know each other and live in cities; the people are in two files."""
    folder.mkdir(parents=True, exist_ok=True)
    people = [
        write(
            folder / f"people-{number}.parquet",
            {
                "id": pa.array([one[0] for one in some], pa.int64()),
                "name": [one[1] for one in some],
                "age": pa.array([one[2] for one in some], pa.float64()),
            },
        )
        for number, some in enumerate((PEOPLE[:3], PEOPLE[3:]))
    ]
    cities = write(folder / "cities.parquet", {"code": [one[0] for one in CITIES], "title": [one[1] for one in CITIES]})
    knows = write(folder / "knows.parquet", dict(zip(("a", "b", "weight"), map(list, zip(*KNOWS, strict=True)), strict=True)))
    lives = write(folder / "lives.parquet", dict(zip(("a", "b"), map(list, zip(*LIVES_IN, strict=True)), strict=True)))
    return plan_of(
        [
            node("Person", column("id", "INT64"), [column("name", "STRING"), column("age", "DOUBLE")], *people),
            node("City", column("code", "STRING"), [column("title", "STRING")], cities),
        ],
        [
            edge("KNOWS", ("Person", "Person"), [column("weight", "DOUBLE")], knows),
            edge("LIVES_IN", ("Person", "City"), [], lives),
        ],
        engine,
    )


def ring(folder: Path, size: int, more: int = 7, engine: str = "ladybug") -> dict[str, Any]:
    """A ring of `size` nodes, and edges to the `more`th next node: paths of some length are many."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = list(range(size))
    nodes = write(folder / "nodes.parquet", {"id": ids})
    targets = [(one + step) % size for step in range(1, more + 1) for one in ids]
    edges = write(folder / "edges.parquet", {"a": ids * more, "b": targets})
    return plan_of([node("N", column("id", "INT64"), [], nodes)], [edge("E", ("N", "N"), [], edges)], engine)


class Served:
    """A running graph server."""

    def __init__(self, process: programs.Started, folder: Path) -> None:
        self.process, self.folder = process, folder
        self._wait((folder / "port").exists, "it does not listen")
        url = f"http://127.0.0.1:{(folder / 'port').read_text()}"
        self.http = httpx2.Client(
            base_url=url, headers={"Authorization": f"Bearer {SECRET}"}, timeout=PATIENCE, trust_env=False
        )
        self.url = url

    def until_loaded(self) -> dict[str, Any]:
        """Its status when the load has ended."""
        self._wait(lambda: self.status()["phase"] != "loading", "it loads for ever")
        return self.status()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get("/status").json()
        return found

    def query(self, cypher: str, *, accept: str = "application/json", **body: Any) -> httpx2.Response:
        return self.http.post("/query", json={"query": cypher, **body}, headers={"Accept": accept})

    def rows(self, cypher: str, **body: Any) -> list[list[Any]]:
        answer = self.query(cypher, **body)
        assert answer.status_code == 200, answer.text
        found: list[list[Any]] = answer.json()["rows"]
        return found

    def until_ended(self, run: int) -> dict[str, Any]:
        """A run of an algorithm when it has ended."""
        self._wait(lambda: self.http.get(f"/algorithms/runs/{run}").json()["state"] != "running", "the run does not end")
        found: dict[str, Any] = self.http.get(f"/algorithms/runs/{run}").json()
        return found

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def _wait(self, condition: Any, message: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, f"it has ended: {self.log()}"
            assert time.monotonic() < deadline, f"{message}: {self.log()}"
            time.sleep(0.02)


@contextmanager
def graph_server(plan: dict[str, Any] | None, folder: Path, **environment: str) -> Iterator[Served]:
    """A graph server with this plan; it listens, and may still load."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "port").unlink(missing_ok=True)
    own = {
        "HOLDFAST_GRAPH_SECRET": SECRET,
        "HOLDFAST_GRAPH_PORT_FILE": str(folder / "port"),
        "HOLDFAST_GRAPH_DATA_DIR": str(folder / "data"),
        "HOLDFAST_GRAPH_MEMORY_MB": "512",
    }
    if plan is not None:
        (folder / "plan.json").write_text(json.dumps(plan))
        own["HOLDFAST_GRAPH_PLAN"] = str(folder / "plan.json")
    with (folder / "log").open("w") as log:
        process = programs.start("graph-server", env=os.environ | own | environment, folder=folder, out=log, err=log)
    try:
        served = Served(process, folder)
        with served.http:
            yield served
    finally:
        process.terminate()
        try:
            process.wait()
        finally:
            process.kill()
