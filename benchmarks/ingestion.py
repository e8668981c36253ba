"""Ingestion compared with raw COPY, with pandas and with hand-written SQL, and what it does to the web application beside it.

    python -m benchmarks.ingestion copy | pandas | memory | recalc | web | chain [--rows 1000000] [--rounds 3] [--write]

One durable Postgres for each command.

copy     `ingest_vs_copy`: a file of flights (6 columns) through the whole job, that is staging, validation of every value,
         duplicate keys, the load and the end of the job, compared with COPY of the same rows into one with the same columns,
         key and durability as the one that the job fills. `plain` is COPY of the file into a table of its own 6 columns.
pandas   `ingest_vs_pandas`: the same file with `read_csv` and `to_sql` and their defaults. Needs pandas.
memory   `ingest_10m_vs_1m_memory`: peak memory of the process that ingests ten times as many rows, compared with once.
recalc   `recalc_vs_sql`: the job that recalculates every emission after all factors changed, compared with one UPDATE … FROM on
         tables of the same content.
web      `web_p95_isolated_vs_idle`, `web_p95_worker_vs_idle`: see ingestion_web.py.
chain    `ingest_chain_step_ms`: from the end of a step to the claim of the next in the web process.

A ratio is taken within each round, and the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Literal

import psycopg

from benchmarks import ingestion_pandas, ingestion_web
from benchmarks.ingestion_scene import (
    PLAIN_COPY,
    PLAIN_TABLE,
    RAW_COPY,
    RAW_TABLE,
    Scene,
    clear,
    factors_file,
    flights_file,
    raw_file,
    raw_tables,
    scene_on,
)
from benchmarks.keep import keep
from benchmarks.postgres import DISK, postgres
from holdfast.database import migrate
from holdfast.services.ingestion.jobs.memory import peak_memory

Found = dict[str, Any]


async def ingest(url: str, file: Path, folder: Path) -> dict[str, Any]:
    """Ingest a file with a worker in this process; how long the job took, and the peak of memory."""
    async with scene_on(url, folder) as scene:
        begun = time.monotonic()
        run = await scene.ingest(file)
        took = time.monotonic() - begun
    assert run.result == "SUCCESS", run.status_message
    assert run.outcome is not None
    return {"seconds": round(took, 2), "rows": run.outcome["rows_loaded"], "peak_mib": round(peak_memory() / 1024**2, 1)}


def in_a_process(url: str, file: Path, folder: Path) -> dict[str, Any]:
    """The same in a process of its own, whose memory nothing else uses."""
    command = [sys.executable, "-m", "benchmarks.ingestion", "--child", url, str(file), str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"the ingestion failed:\n{ended.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def copy_raw(url: str, file: Path, table: str, statement: str) -> float:
    """COPY a file into a new table, as fast as the client can send it; seconds."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(table.encode())
        conn.execute("CHECKPOINT")
        begun = time.monotonic()
        with file.open("rb") as source, conn.cursor().copy(statement.encode()) as copy:
            while piece := source.read(512 * 1024):
                copy.write(piece)
        took = time.monotonic() - begun
        conn.execute("CHECKPOINT")
    return took


def compare_with_copy(url: str, folder: Path, chosen: argparse.Namespace) -> None:
    """Raw COPY and the whole job in turn."""
    file, raw_rows = flights_file(folder, chosen.rows), raw_file(folder, chosen.rows)
    with_job(url, folder)
    made: list[Found] = []
    for number in range(chosen.rounds):
        raw = copy_raw(url, raw_rows, RAW_TABLE, RAW_COPY)
        plain = copy_raw(url, file, PLAIN_TABLE, PLAIN_COPY)
        clear(url)
        ours = in_a_process(url, file, folder)
        seconds = {"copy_seconds": round(raw, 2), "plain_copy_seconds": round(plain, 2)}
        ratios = {"ratio": round(raw / ours["seconds"], 3), "plain_ratio": round(plain / ours["seconds"], 3)}
        made.append({**seconds, **ours, **ratios})
        print(f"ingest {number + 1}: {made[-1]}", flush=True)
    save(chosen, "ingest_vs_copy", median(one["ratio"] for one in made), 0.5, rounds=made)


def with_job(url: str, folder: Path) -> None:
    """One small ingestion: the data entry types exist, and what the first job costs is not measured."""
    in_a_process(url, flights_file(folder, 10), folder)


def compare_with_pandas(url: str, folder: Path, chosen: argparse.Namespace) -> None:
    file = flights_file(folder, chosen.rows)
    with_job(url, folder)
    made = []
    for _ in range(chosen.rounds):
        clear(url)
        made.append(in_a_process(url, file, folder))
        print(f"ingest: {made[-1]}", flush=True)
    found = ingestion_pandas.compare(url, file, made)
    save(chosen, "ingest_vs_pandas", found["value"], 10.0, rounds=found["rounds"])


def compare_memory(url: str, folder: Path, chosen: argparse.Namespace) -> None:
    """The peak of memory with so many rows, and with ten times as many."""
    small = in_a_process(url, flights_file(folder, chosen.rows), folder)
    clear(url)
    large = in_a_process(url, flights_file(folder, chosen.rows * 10), folder)
    save(chosen, "ingest_10m_vs_1m_memory", large["peak_mib"] / small["peak_mib"], 1.2, "lower", small=small, large=large)


def compare_with_sql(url: str, folder: Path, chosen: argparse.Namespace) -> None:
    made = asyncio.run(compare_recalculation(url, flights_file(folder, chosen.rows), folder, chosen.rounds))
    save(chosen, "recalc_vs_sql", median(one["ratio"] for one in made), 0.7, rounds=made)


def compare_web(url: str, folder: Path, chosen: argparse.Namespace) -> None:
    found = ingestion_web.compare(url, flights_file(folder, chosen.rows), folder, chosen.rounds)
    for mode in ("isolated", "worker"):
        save(chosen, f"web_p95_{mode}_vs_idle", found["ratios"][mode], 1.5, "lower", **found)


def measure_chain(url: str, folder: Path, chosen: argparse.Namespace) -> None:
    found = ingestion_web.chains(url, folder)
    save(chosen, "ingest_chain_step_ms", found["p95_ms"], 1000, "lower", **found)


async def compare_recalculation(url: str, file: Path, folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Change every factor, and bring every emission up to date: by hand, and by the job."""
    made = []
    async with scene_on(url, folder) as scene:
        await scene.factors(factors_file(folder, 1.0))
        await scene.ingest(file)
        await scene.run_all()
        raw_tables(url)
        for number in range(rounds):
            by_hand = update_by_hand(url, number + 2)
            ours = await recalculate(scene, folder, number + 2)
            assert same_totals(url), "both ways must have the same result"
            made.append({"sql_seconds": round(by_hand, 2), "seconds": round(ours, 2), "ratio": round(by_hand / ours, 3)})
            print(f"recalculation {number + 1}: SQL {by_hand:.2f} s, job {ours:.2f} s, ratio {made[-1]['ratio']}", flush=True)
    return made


BY_HAND = """
    UPDATE raw_emissions m SET kg = e.amount * f.value FROM raw_entries e, raw_factors f
    WHERE m.entry_id = e.id AND f.id = m.factor_id
"""


def update_by_hand(url: str, factor: float) -> float:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("UPDATE raw_factors SET value = base * %s::numeric", [factor])
        conn.execute("VACUUM (ANALYZE) raw_emissions; ")
        conn.execute("CHECKPOINT")
        begun = time.monotonic()
        conn.execute(BY_HAND)
        return time.monotonic() - begun


async def recalculate(scene: Scene, folder: Path, factor: float) -> float:
    """Upload other factors, then time the recalculation alone."""
    await scene.factors(factors_file(folder, factor), steps=1)
    async with scene.vacuumed("holdfast.data_entry_emissions"):
        begun = time.monotonic()
        await scene.run_one("ingestion.emission_recalc")
        took = time.monotonic() - begun
    await scene.run_all()
    return took


def same_totals(url: str) -> bool:
    with psycopg.connect(url) as conn:
        ours = conn.execute("SELECT sum(kg) FROM holdfast.data_entry_emissions").fetchone()
        theirs = conn.execute("SELECT sum(kg) FROM raw_emissions").fetchone()
    return ours == theirs


COMMANDS: dict[str, Callable[[str, Path, argparse.Namespace], None]] = {
    "copy": compare_with_copy,
    "pandas": compare_with_pandas,
    "memory": compare_memory,
    "recalc": compare_with_sql,
    "web": compare_web,
    "chain": measure_chain,
}


def save(
    chosen: argparse.Namespace, name: str, value: float, goal: float, better: Literal["higher", "lower"] = "higher", **more: Any
) -> None:
    """Print a figure, and write it into results.json, beside the figures of `make bench`, if that is wanted."""
    print(json.dumps({name: round(value, 3), "goal": goal, "rows": chosen.rows, **more}, indent=1), flush=True)
    if chosen.write:
        keep(name, value, goal, better, rows=chosen.rows, **more)


def main() -> None:
    if "--child" in sys.argv:
        url, file, folder = sys.argv[-3:]
        print(json.dumps(asyncio.run(ingest(url, Path(file), Path(folder)))))
        return
    parser = argparse.ArgumentParser(prog="benchmarks.ingestion", description=str(__doc__).splitlines()[0])
    parser.add_argument("commands", nargs="+", choices=list(COMMANDS))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--database-url", help="an empty database on an existing Postgres")
    parser.add_argument("--write", action="store_true", help="into results.json")
    chosen = parser.parse_args()
    for name in chosen.commands:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=DISK) as folder, postgres(chosen.database_url) as url:
            migrate.migrate(url)
            COMMANDS[name](url, Path(folder), chosen)


if __name__ == "__main__":
    main()
