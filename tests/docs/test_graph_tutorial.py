"""The tutorial on graphs runs as one bash script, with `holdfast up` beside it and a real graph server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from blocks import blocks, check_outputs, play  # noqa: E402

TUTORIAL = ROOT / "docs/tutorial/from-tables-to-pagerank.md"
ATTACH = '{"library": "library.duckdb"}'


@pytest.mark.more
@pytest.mark.processes
def test_graph_tutorial_prints_the_documented_output(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D.16: three tables, a mapping, a graph, Cypher and PageRank, as a reader types it."""
    monkeypatch.setenv("HOLDFAST_DUCKDB_ATTACH", ATTACH)
    with holdfast_up(database, tmp_path):
        output = play(TUTORIAL, tmp_path, database, patience=600)

    check_outputs(TUTORIAL, output)


def test_every_file_and_command_of_the_graph_tutorial_is_run() -> None:
    shown = {block.line for block in blocks(TUTORIAL) if block.language in ("python", "sh", "yaml")}
    ran = {block.line for block in blocks(TUTORIAL) if block.value("file") or block.has("run") or block.has("no-run")}

    assert shown == ran, "a block of the tutorial is neither a file, nor run, nor marked no-run"


@contextmanager
def holdfast_up(database: str, folder: Path) -> Iterator[None]:
    """What the reader starts in the second terminal, without the demo, until its worker has registered."""
    command = [sys.executable, "-m", "holdfast", "up", "--no-demo", "--stay", "--port", "0"]
    own = {"HOLDFAST_DATABASE_URL": database, "HOLDFAST_INSTANCE_ORCHESTRATION_JOB_INTERVAL_SECONDS": "1"}
    with (folder / "up.log").open("w") as log:
        up = subprocess.Popen(command, cwd=folder, env=os.environ | own, stdout=log, stderr=subprocess.STDOUT)
    try:
        with psycopg.connect(database, autocommit=True) as conn:
            deadline = time.monotonic() + 120
            while not conn.execute("SELECT 1 FROM holdfast.workers").fetchone():
                assert up.poll() is None, (folder / "up.log").read_text()
                assert time.monotonic() < deadline, (folder / "up.log").read_text()
                time.sleep(0.1)
        yield
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(60)
