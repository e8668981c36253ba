"""The tutorial runs as one bash script, with `holdfast up` beside it: its worker is really killed with SIGKILL."""

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

from blocks import as_script, blocks, check_outputs, play  # noqa: E402

TUTORIAL = ROOT / "docs/tutorial/first-job.md"
HOWTOS = sorted((ROOT / "docs/howto").glob("*.md"))
WITH_COMMANDS = [page for page in HOWTOS if any(block.has("run") for block in blocks(page))]


@pytest.mark.more
@pytest.mark.processes
def test_tutorial_prints_the_documented_output(database: str, tmp_path: Path) -> None:
    with holdfast_up(database, tmp_path):
        output = play(TUTORIAL, tmp_path, database)

    check_outputs(TUTORIAL, output)


@pytest.mark.more
@pytest.mark.processes
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_commands_of_a_page_work_as_documented(page: Path, database: str, tmp_path: Path) -> None:
    said = play(page, tmp_path, database)

    check_outputs(page, said)


@contextmanager
def holdfast_up(database: str, folder: Path) -> Iterator[None]:
    """What the reader starts in the second terminal, without the demo, until its worker has registered."""
    command = [sys.executable, "-m", "holdfast", "up", "--no-demo", "--stay", "--port", "0"]
    environment = {**os.environ, "HOLDFAST_DATABASE_URL": database}
    with (folder / "up.log").open("w") as log:
        up = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
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


def test_every_file_and_command_of_the_tutorial_is_run() -> None:
    shown = {block.line for block in blocks(TUTORIAL) if block.language in ("python", "sh")}
    ran = {block.line for block in blocks(TUTORIAL) if block.value("file") or block.has("run") or block.has("no-run")}

    assert shown == ran, "a block of the tutorial is neither a file, nor run, nor marked no-run"


def test_tutorial_worker_is_killed() -> None:
    script, _ = as_script(TUTORIAL)

    assert "kill -9" in script
    assert "HOLDFAST_LEASE_SECONDS=4" in script
