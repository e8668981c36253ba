"""`python -m benchmarks.exports`: rows from Trino's protocol into Arrow, beside the official client, in one run.

Server and clients each have a process; both clients read the same bytes on the same cores, one after the other, in turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median
from typing import Any

from benchmarks.trino_pages import PAGE_ROWS, TABLES

CLIENTS = ("ours", "official")
WAYS = ("plain", "spooled")


def export_trino_vs_official(rows: int, rounds: int, file: str | None = None) -> dict[str, Any]:
    """Per table and way: rows a second and peak memory of both, and how many times as fast we are."""
    found: dict[str, Any] = {}
    for table in TABLES:
        for way in WAYS:
            samples: dict[str, list[dict[str, float]]] = {name: [] for name in CLIENTS}
            with subprocess.Popen(
                [sys.executable, "-m", "benchmarks.trino_pages", table, str(rows)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as server:
                assert server.stdout is not None
                url = server.stdout.readline().strip()
                for _ in range(rounds):
                    for name in CLIENTS:
                        samples[name].append(client(name, url, table, way, file))
                server.communicate()
            found[f"{table}_{way}"] = figure(samples, rows)
            say(f"{table}, {way}", found[f"{table}_{way}"])
    return found


def client(name: str, url: str, table: str, way: str, file: str | None) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.trino_clients", name, url, table, way, *([file] if file else [])]
    result: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result


def figure(samples: dict[str, list[dict[str, float]]], rows: int) -> dict[str, Any]:
    """The medians, and the ratio of the rates."""
    for name in CLIENTS:
        assert all(one["rows"] == rows for one in samples[name]), f"{name} did not read every row"
    middle = {name: {key: median(one[key] for one in samples[name]) for key in samples[name][0]} for name in CLIENTS}
    ratio = middle["ours"]["rows_per_second"] / middle["official"]["rows_per_second"]
    per_cpu = middle["official"]["cpu_seconds"] / middle["ours"]["cpu_seconds"]
    return {**middle, "ratio": round(ratio, 2), "ratio_per_cpu_second": round(per_cpu, 2)}


def say(title: str, found: dict[str, Any]) -> None:
    print(f"{title}: {found['ratio']} times as fast ({found['ratio_per_cpu_second']} by CPU)")
    for name in CLIENTS:
        one = found[name]
        print(f"  {name:9} {one['rows_per_second']:12,.0f} rows/s  {one['cpu_seconds']:7.2f} s CPU  {one['peak_mib']:7.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.exports", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help=f"rows of each table, a multiple of {PAGE_ROWS:,}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parquet", metavar="FILE", help="go on into a Parquet file, both alike")
    chosen = parser.parse_args()
    rows = max(1, chosen.rows // PAGE_ROWS) * PAGE_ROWS
    print(json.dumps({"export_trino_vs_official": export_trino_vs_official(rows, chosen.rounds, chosen.parquet)}))


if __name__ == "__main__":
    main()
