"""The direct export beside DuckDB's own COPY of the same rows to Parquet, zstd and row groups of the same size.

    python -m benchmarks.duckdb_copy [--rows 5000000] [--rounds 3] [--out results.json]
    python -m benchmarks.duckdb_copy --memory          # 20 million rows, and the most memory that they took
    python -m benchmarks.duckdb_copy --text            # texts of 20 kB: the most memory, beside that of COPY

A narrow and a wide table lie in a database file. Each export runs in a process of its own, theirs and ours in turn; a ratio is
taken within each round, and the median of the rounds is the figure: `export_duckdb_vs_copy` is the worse of the two tables.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import duckdb

from benchmarks.keep import keep

NAME, GOAL = "export_duckdb_vs_copy", 0.8
MEMORY_ROWS, MEMORY_GOAL = 20_000_000, 512.0  # rows, MiB
TEXT_NAME, TEXT_GOAL, TEXT_ROWS = "export_text_peak_vs_copy", 1.0, 40_000
TEXT = "SELECT i AS id, repeat(md5(i::VARCHAR), 625) AS body FROM range({rows}) t(i)"

NARROW = """
    SELECT i AS id, (i * 7919) % 100003 / 100.0::DOUBLE AS amount, 'customer ' || (i * 31) % 5000 AS name,
           DATE '2020-01-01' + (i % 1500)::INTEGER AS day
    FROM range({rows}) t(i)
"""
WIDE = "SELECT i AS id, {columns} FROM range({rows}) t(i)"
GROUP = (
    "(i * {a}) % 1000003 AS n{k}, (i * {b}) % 100003 / 100.0::DOUBLE AS d{k}, "
    "'text ' || (i * {a}) % 2000 AS s{k}, md5((i * {b})::VARCHAR) AS h{k}"
)


def tables(rows: int) -> dict[str, str]:
    """The SQL that makes each table."""
    groups = ", ".join(GROUP.format(a=7919 + 2 * k, b=104729 + 2 * k, k=k) for k in range(5))
    return {"narrow": NARROW.format(rows=rows), "wide": WIDE.format(columns=groups, rows=rows)}


def child(who: str, sql: str, folder: Path, *options: str) -> dict[str, Any]:
    """One export in a process of its own, into a folder that is gone afterwards."""
    to = folder / "out"
    command = [sys.executable, "-m", "benchmarks.export_child", who, "--sql", sql, "--to", str(to), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    shutil.rmtree(to, ignore_errors=True)
    if ended.returncode != 0:
        raise SystemExit(f"{who} failed:\n{ended.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def compare(rows: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Both sides in turn, for each table."""
    database = folder / "source.duckdb"
    with duckdb.connect(str(database)) as source:
        for name, sql in tables(rows).items():
            source.execute(f"CREATE TABLE {name} AS {sql}")
    found: dict[str, Any] = {}
    for name in tables(rows):
        sql, attach = f"SELECT * FROM source.{name}", ("--attach", f"source={database}")
        turns = []
        for number in range(rounds):
            copy, ours = (child(who, sql, folder, *attach) for who in ("copy", "ours"))
            assert copy["rows"] == ours["rows"] == rows
            turns.append({"copy": copy, "ours": ours, "ratio": round(copy["seconds"] / ours["seconds"], 3)})
            print(f"{name} {number + 1}: copy {told(copy)} | ours {told(ours)} | ratio {turns[-1]['ratio']}", flush=True)
        found[name] = {"rounds": turns, "ratio": median(turn["ratio"] for turn in turns)}
    value = min(table["ratio"] for table in found.values())
    return {"name": NAME, "rows": rows, "value": value, "goal": GOAL, "is_met": value >= GOAL, "tables": found}


def told(one: dict[str, Any]) -> str:
    return f"{one['seconds']:6.2f} s {one['bytes'] / 1e6:7.1f} MB {one['peak_mib']:6.0f} MiB"


def memory(rows: int, folder: Path) -> dict[str, Any]:
    """The most memory that an export of so many rows took, in a process that does nothing else."""
    one = child("ours", tables(rows)["narrow"], folder)
    return {"name": "export_peak_mib", "rows": rows, "goal": MEMORY_GOAL, "is_met": one["peak_mib"] <= MEMORY_GOAL, **one}


def text(rows: int, folder: Path) -> dict[str, Any]:
    """The most memory that an export of long texts took, as a ratio to COPY, which has no limit: ours is too little for it."""
    copy, ours = (child(who, TEXT.format(rows=rows), folder, "--threads", "2") for who in ("copy", "ours"))
    assert copy["rows"] == ours["rows"] == rows
    value = round(ours["peak_mib"] / copy["peak_mib"], 3)
    return {
        "name": TEXT_NAME,
        "rows": rows,
        "value": value,
        "goal": TEXT_GOAL,
        "is_met": value <= TEXT_GOAL,
        "copy": copy,
        "ours": ours,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.duckdb_copy", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="measure memory instead of speed")
    parser.add_argument("--text", action="store_true", help="measure the memory of long texts instead of speed")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    parser.add_argument("--write", action="store_true", help="into results.json, beside the figures of `make bench`")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        if chosen.memory:
            measured = memory(chosen.rows or MEMORY_ROWS, Path(folder))
        elif chosen.text:
            measured = text(chosen.rows or TEXT_ROWS, Path(folder))
        else:
            measured = compare(chosen.rows or 5_000_000, chosen.rounds, Path(folder))
    shown = json.dumps(measured, indent=1)
    if chosen.out:
        chosen.out.write_text(shown + "\n")
    if chosen.write and chosen.text:
        keep(TEXT_NAME, measured["value"], TEXT_GOAL, "lower", rows=measured["rows"])
    elif chosen.write and not chosen.memory:
        ratios = {table: one["ratio"] for table, one in measured["tables"].items()}
        keep(NAME, measured["value"], GOAL, rows=measured["rows"], ratios=ratios)
    print(shown)


if __name__ == "__main__":
    main()
