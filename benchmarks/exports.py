"""Rows from Trino's protocol into Arrow, ours beside the official client's, in one run.

    python -m benchmarks.exports [--rows 5000000] [--rounds 3] [--out results.json]
    python -m benchmarks.exports --rows 500000 --rounds 1      # a quick figure

Server and clients each have a process. Both clients read the same bytes on the same cores, in turn: a wide table (8 columns of
7 types) and a narrow one (2 integers), by plain pages and by spooled segments. A ratio is taken within each round, the median
of the rounds counts, and `export_trino_vs_official` is the worst of the four.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.keep import keep
from benchmarks.trino_pages import PAGE_ROWS, TABLES

NAME, GOAL = "export_trino_vs_official", 5.0
WAYS = ("plain", "spooled")


def compare(rows: int, rounds: int, file: str | None = None) -> dict[str, Any]:
    """Both clients in turn, for each table and each way."""
    found: dict[str, Any] = {}
    for table in TABLES:
        for way in WAYS:
            with serving(table, rows) as url:
                found[f"{table}, {way}"] = turns(f"{table}, {way}", rows, rounds, [url, table, way, *([file] if file else [])])
    value = min(one["ratio"] for one in found.values())
    return {"name": NAME, "rows": rows, "value": value, "goal": GOAL, "is_met": value >= GOAL, "tables": found}


def turns(title: str, rows: int, rounds: int, arguments: list[str]) -> dict[str, Any]:
    """So many rounds of one comparison."""
    made = []
    for number in range(rounds):
        official, ours = (client(who, arguments) for who in ("official", "ours"))
        assert official["rows"] == ours["rows"] == rows, "a client did not read every row"
        ratio = round(ours["rows_per_second"] / official["rows_per_second"], 2)
        by_cpu = round(official["cpu_seconds"] / ours["cpu_seconds"], 2)
        made.append({"official": official, "ours": ours, "ratio": ratio, "ratio_by_cpu": by_cpu})
        print(
            f"{title} {number + 1}: official {told(official)} | ours {told(ours)} | ratio {ratio}, by CPU {by_cpu}", flush=True
        )
    return {"rounds": made, "ratio": median(one["ratio"] for one in made)}


@contextmanager
def serving(table: str, rows: int) -> Iterator[str]:
    """The address of a server with this table, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.trino_pages", table, str(rows)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.communicate()  # it ends with its input


def client(who: str, arguments: list[str]) -> dict[str, Any]:
    """One client, in a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.trino_clients", who, *arguments], capture_output=True, text=True, check=False
    )
    if ended.returncode != 0:
        raise SystemExit(f"{who} failed:\n{ended.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def told(one: dict[str, Any]) -> str:
    return f"{one['rows_per_second']:10,.0f} rows/s {one['cpu_seconds']:6.2f} s CPU {one['peak_mib']:4.0f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.exports", description=str(__doc__).splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000, help=f"rows of each table, a multiple of {PAGE_ROWS:,}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parquet", metavar="FILE", help="go on into a Parquet file, both alike")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    parser.add_argument("--write", action="store_true", help="into results.json, beside the figures of `make bench`")
    chosen = parser.parse_args()
    measured = compare(max(1, chosen.rows // PAGE_ROWS) * PAGE_ROWS, chosen.rounds, chosen.parquet)
    text = json.dumps(measured, indent=1)
    if chosen.out:
        chosen.out.write_text(text + "\n")
    if chosen.write:
        ratios = {table: one["ratio"] for table, one in measured["tables"].items()}
        keep(NAME, measured["value"], GOAL, rows=measured["rows"], ratios=ratios)
    print(text)


if __name__ == "__main__":
    main()
