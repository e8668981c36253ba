"""The memory of an export does not grow with its result. Twenty million rows: `benchmarks.duckdb_copy --memory`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[4]
POD_MIB = 512
LONG_TEXTS_MIB = 420  # 340 to 380 were measured; some 530 where freed memory is kept
WIDE = "SELECT i AS id, md5(i::VARCHAR) AS a, md5((i + 1)::VARCHAR) AS b, md5((i + 2)::VARCHAR) AS c FROM range({}) t(i)"
LONG_TEXTS = "SELECT i AS id, repeat(md5(i::VARCHAR), 625) AS a FROM range({}) t(i)"


def export_in_a_process(rows: int, to: Path, sql: str = WIDE, *options: str) -> dict[str, Any]:
    """One export, alone in its process; what it says of itself."""
    command = [sys.executable, "-m", "benchmarks.export_child", "ours", "--sql", sql.format(rows), "--to", str(to), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["rows"] == rows
    return found


def test_an_export_fits_into_a_small_pod_however_many_rows_it_has(tmp_path: Path):
    """Some 300 MB as Arrow has them: held whole, they would not fit beside the rest."""
    small = export_in_a_process(100_000, tmp_path / "small")
    large = export_in_a_process(2_500_000, tmp_path / "large")

    assert large["peak_mib"] < POD_MIB
    assert large["peak_mib"] - small["peak_mib"] < 160, "what DuckDB may keep, and two row groups"


@pytest.mark.parametrize("threads", ["2", "4"])
def test_an_export_of_long_texts_leaves_room_in_a_small_pod(tmp_path: Path, threads: str):
    """Texts of 20 kB, 800 MB of them: DuckDB works on vectors of 2,048, 40 MB each, and what it has freed goes back at once."""
    many = export_in_a_process(40_000, tmp_path / "many", LONG_TEXTS, "--threads", threads)

    assert many["peak_mib"] < LONG_TEXTS_MIB


def test_the_memory_of_long_texts_does_not_grow_with_their_number(tmp_path: Path):
    few = export_in_a_process(8_000, tmp_path / "few", LONG_TEXTS, "--threads", "2")
    many = export_in_a_process(40_000, tmp_path / "many", LONG_TEXTS, "--threads", "2")

    assert many["peak_mib"] - few["peak_mib"] < 100
