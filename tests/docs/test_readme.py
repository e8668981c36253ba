"""The README's quickstart runs as printed, in a separate process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def quickstart() -> str:
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.S)
    assert found
    return found.group(1)


def test_the_quickstart_has_fewer_than_15_lines_of_code():
    lines = [line for line in quickstart().splitlines() if line.strip()]
    assert len(lines) < 15, "with the two that start a Postgres"


def test_the_quickstart_runs(tmp_path: Path):
    (tmp_path / "quickstart.py").write_text(quickstart())

    command = [sys.executable, "quickstart.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)

    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\{'pages': 3\} Completed \d+ s ago in attempt 1\.\n", done.stdout)
