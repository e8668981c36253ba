"""Graph servers beside their own engine, in one run: the load beside COPY, rows over HTTP beside rows in the process, and many
small queries beside one.

    python -m benchmarks.graphs [--nodes 200000] [--edges 1000000] [--rounds 3] [--load-rounds 6] [--write]
    python -m benchmarks.graphs --nodes 20000 --edges 100000 --rounds 1 --load-rounds 2      # a quick figure

Each measurement has its own process; both sides take turns. A ratio is taken within each round, and the median of the rounds
counts. `graph_load_vs_copy` and `graph_arrow_vs_engine` are speeds relative to the engine: 1 is as fast.
`graph_query_50_vs_1_p95` is the 95th percentile of 50 clients at once, relative to that of one client. `graph_ready_seconds` is
the time from POST to `running` (`benchmarks/graph_ready.py`).

A load is almost only the engine's COPY, on either side: about 98 % of the processor time of ours. So the comparison must not
add more than the few percent that it looks for. A round of the load has two loads of each side, COPY, ours, ours, COPY, and
the next round ours, COPY, COPY, ours: a machine that becomes slower or faster during a round affects both sides alike. A
round's ratio is that of the sums. Before the first round each side loads once without being counted, which reads the files
and programs into the page cache. Before each load everything that earlier processes have written is flushed to the disk, so
that no load waits for the writes of another. Both sides use all cores, the same buffer pool and the same files, and begin
with the engine's library loaded. Ours also has what the engine does not do: it checks the footers, counts the rows, and opens
the database again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import graph_ready
from benchmarks.keep import keep

SECRET = "b" * 43
CLIENTS = 50
TURNS = (("copy", "load", "load", "copy"), ("load", "copy", "copy", "load"))  # of a round, and of the next


def make_files(folder: Path, nodes: int, edges: int) -> None:
    """People with a DOUBLE and two STRINGs, and edges with a DOUBLE; and the plan that loads them."""
    random = np.random.default_rng(1)
    people = {
        "id": np.arange(nodes),
        "name": pa.array([f"person {number}" for number in range(nodes)]),
        "city": pa.array([f"city {number % 500}" for number in range(nodes)]),
        "score": random.random(nodes),
    }
    knows = {"a": random.integers(0, nodes, edges), "b": random.integers(0, nodes, edges), "weight": random.random(edges)}
    found = {}
    for name, columns in (("people", people), ("knows", knows)):
        file = folder / f"{name}.parquet"
        pq.write_table(pa.table(columns), file)
        found[name] = {"path": str(file), "rows": len(columns["id" if name == "people" else "a"]), "bytes": file.stat().st_size}
    properties = [{"name": "name", "type": "STRING"}, {"name": "city", "type": "STRING"}, {"name": "score", "type": "DOUBLE"}]
    node = {"label": "Person", "primary_key": {"name": "id", "type": "INT64"}, "properties": properties}
    edge = {"type": "KNOWS", "from_node": "Person", "to_node": "Person", "from_key": "a", "to_key": "b"}
    plan = {
        "instance_id": 1,
        "start_token": "bench",
        "engine": "ladybug",
        "location": str(folder),
        "mapping_id": 1,
        "mapping_version": 1,
        "snapshot_id": 1,
        "nodes": [{**node, "files": [found["people"]], "rows": nodes}],
        "edges": [{**edge, "properties": [{"name": "weight", "type": "DOUBLE"}], "files": [found["knows"]], "rows": edges}],
    }
    (folder / "plan.json").write_text(json.dumps(plan))


def child(*words: str) -> dict[str, Any]:
    """One measurement."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.graph_child", *words], capture_output=True, text=True, check=False
    )
    if ended.returncode != 0:
        raise SystemExit(f"{words[0]} failed:\n{ended.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def one_load(folder: Path, what: str) -> dict[str, Any]:
    """One load by COPY or by us, into a new folder."""
    own = folder / what
    own.mkdir()
    os.sync()  # the load must not wait for what earlier processes have written
    try:
        return child(what, str(own))
    finally:
        shutil.rmtree(own)


def compare_loads(folder: Path, rounds: int) -> dict[str, Any]:
    """COPY and our load, in turn: see the docstring of this module."""
    made = []
    for what in ("copy", "load"):
        one_load(folder, what)  # not counted: it fills the page cache
    for number in range(rounds):
        both: dict[str, list[dict[str, Any]]] = {"copy": [], "load": []}
        for what in TURNS[number % 2]:
            both[what].append(one_load(folder, what))
        sums = {what: {key: sum(one[key] for one in two) for key in ("seconds", "cpu")} for what, two in both.items()}
        ratio, by_cpu = (sums["copy"][key] / sums["load"][key] for key in ("seconds", "cpu"))
        made.append({**both, "ratio": round(ratio, 3), "ratio_by_cpu": round(by_cpu, 3)})
        print(
            f"load {number + 1}: COPY {sums['copy']['seconds'] / 2:.2f} s, ours {sums['load']['seconds'] / 2:.2f} s, "
            f"ratio {ratio:.2f} (by processor time {by_cpu:.2f})"
        )
    values = {"value": median(one["ratio"] for one in made), "by_cpu": median(one["ratio_by_cpu"] for one in made)}
    return {**values, "rounds": made}


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A graph server that has loaded the files; its address."""
    own = {
        "HOLDFAST_GRAPH_PLAN": str(folder / "plan.json"),
        "HOLDFAST_GRAPH_SECRET": SECRET,
        "HOLDFAST_GRAPH_PORT_FILE": str(folder / "port"),
        "HOLDFAST_GRAPH_DATA_DIR": str(folder / "data"),
        "HOLDFAST_GRAPH_MEMORY_MB": "2560",
    }
    command = [sys.executable, "-m", "holdfast", "graph-server"]
    with (folder / "server.log").open("w") as log, subprocess.Popen(command, env=os.environ | own, stderr=log) as server:
        try:
            while not (folder / "port").exists():
                assert server.poll() is None, (folder / "server.log").read_text()
                time.sleep(0.05)
            url = f"http://127.0.0.1:{(folder / 'port').read_text()}"
            while httpx2.get(f"{url}/ready", trust_env=False).status_code != 200:
                time.sleep(0.2)
            yield url
        finally:
            server.terminate()


def compare_rows(url: str, folder: Path, rounds: int) -> dict[str, Any]:
    """The engine's rows in a process and over HTTP, in turn. Both read the same file; the first round warms both up."""
    file = folder / "read.db"
    shutil.copyfile(folder / "data" / "graph-1", file)
    made = []
    for number in range(rounds):
        engine, ours = child("arrow", str(file), "3"), child("http", url, SECRET, "3")
        assert engine["rows"] == ours["rows"]
        ratio = min(engine["seconds"]) / min(ours["seconds"])
        made.append({"engine": engine, "http": ours, "ratio": round(ratio, 3)})
        print(f"rows {number + 1}: engine {min(engine['seconds']):.2f} s, HTTP {min(ours['seconds']):.2f} s, ratio {ratio:.2f}")
    return {"value": median(one["ratio"] for one in made), "rounds": made}


def compare_small(url: str, rounds: int) -> dict[str, Any]:
    """One client, then 50 at once."""
    made = []
    for number in range(rounds):
        one, many = child("small", url, SECRET, "1", "300"), child("small", url, SECRET, str(CLIENTS), "20")
        ratio = many["p95"] / one["p95"]
        made.append({"one": one, "many": many, "ratio": round(ratio, 2)})
        alone, of_many = one["p95"] * 1000, many["p95"] * 1000
        print(f"small {number + 1}: p95 {alone:.1f} ms alone, {of_many:.1f} ms of {CLIENTS}, ratio {ratio:.1f}")
    return {"value": median(one["ratio"] for one in made), "rounds": made}


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.graphs", description=str(__doc__).splitlines()[0])
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load-rounds", type=int, default=6, help="of the load; even, so that each side is first as often")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    parser.add_argument("--write", action="store_true", help="into results.json, beside the figures of `make bench`")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-graphs-") as name:
        folder = Path(name)
        make_files(folder, chosen.nodes, chosen.edges)
        found = {"graph_load_vs_copy": compare_loads(folder, chosen.load_rounds)}
        with serving(folder) as url:
            found["graph_arrow_vs_engine"] = compare_rows(url, folder, chosen.rounds)
            found["graph_query_50_vs_1_p95"] = compare_small(url, chosen.rounds)
    found["graph_ready_seconds"] = graph_ready.measure(chosen.rounds)
    text = json.dumps(found, indent=1)
    if chosen.out:
        chosen.out.write_text(text + "\n")
    if chosen.write:
        size = {"nodes": chosen.nodes, "edges": chosen.edges, "load": os.getloadavg()[0]}
        load = found["graph_load_vs_copy"]
        ratios = [one["ratio"] for one in load["rounds"]]
        keep("graph_load_vs_copy", load["value"], 0.9, **size, rounds=ratios, by_cpu=load["by_cpu"])
        keep("graph_arrow_vs_engine", found["graph_arrow_vs_engine"]["value"], 0.7, **size)
        keep("graph_query_50_vs_1_p95", found["graph_query_50_vs_1_p95"]["value"], CLIENTS, "lower", **size)
        graph_ready.write(found["graph_ready_seconds"])
    print({name: one["value"] for name, one in found.items()})


if __name__ == "__main__":
    main()
