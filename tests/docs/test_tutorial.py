"""The tutorial is one bash script: its files are written, its commands run, its worker is killed with SIGKILL."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from blocks import as_script, blocks, check_outputs, play  # noqa: E402

TUTORIAL = ROOT / "docs/tutorial/first-job.md"
HOWTOS = sorted((ROOT / "docs/howto").glob("*.md"))
WITH_COMMANDS = [page for page in HOWTOS if any(block.has("run") for block in blocks(page))]


@pytest.mark.processes
@pytest.mark.parametrize("page", [TUTORIAL, *WITH_COMMANDS], ids=lambda page: page.stem)
def test_the_commands_of_a_page_do_what_it_says(page: Path, database: str, tmp_path: Path) -> None:
    said = play(page, tmp_path, database)

    check_outputs(page, said)


def test_every_file_and_command_of_the_tutorial_is_run() -> None:
    shown = {block.line for block in blocks(TUTORIAL) if block.language in ("python", "sh")}
    ran = {block.line for block in blocks(TUTORIAL) if block.value("file") or block.has("run") or block.has("no-run")}

    assert shown == ran, "a block of the tutorial is neither a file, nor run, nor marked no-run"


def test_the_worker_of_the_tutorial_is_really_killed() -> None:
    script, _ = as_script(TUTORIAL)

    assert "kill -9" in script
    assert "HOLDFAST_LEASE_SECONDS=4" in script
