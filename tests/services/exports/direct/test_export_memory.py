"""The memory of an export does not grow with its result. Twenty million rows: `benchmarks.duckdb_copy --memory`."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.engines.duckdb.sandbox import open_sandbox

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[4]
POD_MIB = 512
MANY_ROWS = "SELECT i AS id, repeat(md5(i::VARCHAR), 4) AS a FROM range({}) t(i)"
LONG_TEXTS = "SELECT i AS id, repeat(md5(i::VARCHAR), 312) AS a FROM range({}) t(i)"


def export_in_a_process(rows: int, to: Path, sql: str, *options: str) -> dict[str, Any]:
    """One export, alone in its process; what it says of itself."""
    command = [sys.executable, "-m", "benchmarks.export_child", "ours", "--sql", sql.format(rows), "--to", str(to), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["rows"] == rows
    return found


@pytest.mark.more
def test_an_export_fits_into_a_small_pod_however_many_rows_it_has(tmp_path: Path):
    """W-06: it is streamed in batches. Some 420 MB as Arrow has them: held whole, they would not fit beside the rest."""
    large = export_in_a_process(3_000_000, tmp_path / "large", MANY_ROWS)

    assert large["peak_mib"] < POD_MIB


@pytest.mark.more
def test_an_export_of_long_texts_fits_into_a_small_pod(tmp_path: Path):
    """Texts of 10 kB, 600 MB of them: more than the pod has. DuckDB works on vectors of 2,048 rows, 20 MB each. How many exist
    at once depends on its threads and on the machine; there is room for eight more than usual (330 MiB)."""
    many = export_in_a_process(60_000, tmp_path / "many", LONG_TEXTS, "--threads", "4")

    assert many["peak_mib"] < POD_MIB


def test_freed_memory_of_long_texts_goes_back_at_once(tmp_path: Path):
    """Kept for a second, as DuckDB does by default, it took 100 MiB more with the texts above."""
    with closing(open_sandbox(scratch=tmp_path)) as sandbox:
        found = sandbox.database.execute("SELECT current_setting('allocator_bulk_deallocation_flush_threshold')").fetchone()

    assert found == ("3.8 MiB",)
