"""Seconds from POST to `running` for a small graph on the local runtime, with a breakdown.

    python -m benchmarks.graph_ready [--rounds 5] [--write]

A real control plane, a real worker and real graph servers, each a process; the snapshot is ready, so no export is in the
figure. Each round creates an instance, waits until it runs, and deletes it. The clock is that of the database: the times of the
instance, of its start job and of its events; the load is what the graph server says of itself. About a minute.
"""

from __future__ import annotations

import argparse
import os
import re
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
import psycopg

from benchmarks.keep import keep
from holdfast.client import Connection, connect
from holdfast.database import migrate
from holdfast.database.embedded import EmbeddedPostgres
from holdfast.services.graphs.client.graphs import Graph

LONGEST = 120.0
GOAL = 5.0  # seconds
PERSON = {
    "label": "Person",
    "sql": "SELECT range AS id, 'person ' || range AS name FROM range(1000)",
    "primary_key": {"name": "id", "type": "INT64"},
    "properties": [{"name": "name", "type": "STRING"}],
}
KNOWS = {
    "type": "KNOWS",
    "from_node": "Person",
    "to_node": "Person",
    "sql": "SELECT range AS a, range // 2 AS b FROM range(1, 1000)",
    "from_key": "a",
    "to_key": "b",
}
# When the start job had started the process of the graph server, and when the instance ran.
TIMES = """
    SELECT extract(epoch FROM (SELECT min(h.at) FROM holdfast.history h WHERE h.job_id = g.job_id AND h.move = 'submit')
                              - g.created_at)::float8,
           extract(epoch FROM g.started_at - g.created_at)::float8
    FROM holdfast.graph_instances g WHERE g.id = %s
"""


def until(condition: Any, what: str) -> Any:
    """What a condition returns as soon as it is true."""
    deadline = time.monotonic() + LONGEST
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} took longer than {LONGEST:g} s")
        time.sleep(0.01)
    return found


@contextmanager
def planes(url: str, folder: Path) -> Iterator[Connection]:
    """A control plane and a worker; the client of an administrator."""
    own = {
        "HOLDFAST_GRAPHS_DIR": str(folder / "graphs"),
        "HOLDFAST_SNAPSHOTS_TO": str(folder / "snapshots"),
        "HOLDFAST_EXPORT_DIRS": str(folder),
    }
    log = folder / "serve.log"
    started: list[subprocess.Popen[bytes]] = []
    with log.open("w") as out:
        for words in (("serve", "--port", "0", "--log-format", "json"), ("worker", "run")):
            command = [sys.executable, "-m", "holdfast", *words, "--dsn", url]
            started.append(subprocess.Popen(command, env=os.environ | own, cwd=folder, stdout=out, stderr=out))
    try:
        link = until(
            lambda: re.search(r"\n *(http://\S+)/login\?code=(\S+)", log.read_text()), "the start of the control plane"
        )
        with connect(link[1], _token(link[0].strip()), timeout=LONGEST) as hf:
            yield hf
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait()


def _token(link: str) -> str:
    return str(httpx2.get(link, timeout=LONGEST, trust_env=False).json()["data"]["token"])


def one_round(hf: Connection, conn: psycopg.Connection[Any], snapshot_id: int) -> dict[str, float]:
    """Create an instance, wait until it runs, and delete it."""
    began = time.monotonic()
    graph = hf.graphs.create(snapshot=snapshot_id, name="small")
    try:
        return _measured(hf, conn, graph, began)
    finally:
        graph.delete()


def _measured(hf: Connection, conn: psycopg.Connection[Any], graph: Graph, began: float) -> dict[str, float]:
    answered = time.monotonic() - began
    state = "SELECT state FROM holdfast.graph_instances WHERE id = %s"
    until(lambda: (conn.execute(state, [graph.id]).fetchone() or ("",))[0] in ("running", "failed"), "the start")
    ready = time.monotonic() - began
    if conn.execute(state, [graph.id]).fetchone() != ("running",):
        raise SystemExit(f"the graph failed: {hf.graphs.get(graph.id).error_message}")
    started, running = conn.execute(TIMES, [graph.id]).fetchone() or (0.0, 0.0)
    load = float(hf.graphs.status(graph)["load_seconds"])
    return {
        "ready": ready,
        "request": answered,
        "claim_and_start_of_process": started,
        "imports_and_polls": running - started - load,
        "load": load,
    }


def measure(rounds: int) -> dict[str, Any]:
    """The median of some rounds, with its breakdown."""
    with tempfile.TemporaryDirectory(prefix="holdfast-ready-") as name:
        folder = Path(name)
        with EmbeddedPostgres(folder / "postgres", port=0, on_message=lambda _: None) as postgres:
            migrate.migrate(postgres.url)
            with planes(postgres.url, folder) as hf, psycopg.connect(postgres.url, autocommit=True) as conn:
                mapping = hf.mappings.create("small", nodes=[PERSON], edges=[KNOWS])
                snapshot = hf.snapshots.create(mapping).wait(show=False)
                made = [one_round(hf, conn, snapshot.id) for _ in range(rounds)]
    for number, found in enumerate(made, 1):
        print(f"ready {number}: " + "  ".join(f"{part} {seconds:.3f} s" for part, seconds in found.items()))
    breakdown = {part: round(median(one[part] for one in made), 3) for part in made[0]}
    return {"value": breakdown.pop("ready"), "breakdown": breakdown, "rounds": made}


def write(found: dict[str, Any]) -> None:
    """Into results.json."""
    keep("graph_ready_seconds", found["value"], GOAL, "lower", breakdown=found["breakdown"], load=os.getloadavg()[0])


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.graph_ready", description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="into results.json")
    chosen = parser.parse_args()
    found = measure(chosen.rounds)
    print({"graph_ready_seconds": found["value"]})
    if chosen.write:
        write(found)


if __name__ == "__main__":
    main()
