"""The embedded engine on tables of many small files: compared with Spark, its peak memory, its growth with the number of files.

    python -m benchmarks.maintenance [--rounds 5] [--out rounds.json] [--write]   # about half an hour
    python -m benchmarks.maintenance --only expire --only orphans                 # some parts
    python -m benchmarks.maintenance --quick                                      # small tables, one round

The figures so far are in `--out` after every round, and a part that is complete is in results.json at once (`--write`): a
failure later loses neither.

`compact_vs_spark`, `expire_vs_spark`, `manifests_vs_spark`, `orphans_vs_spark`: the time of a local Spark 3.5 by ours, start-up
of both included; CPU seconds and a warm Spark are beside it (`maintenance_spark.py`). The Spark is fetched as for
`make test-real`.

`compact_peak_mb`: 1,000 files of `--rows` rows with 8 columns (4 of them texts), 128 MB target; the largest resident set of
the process, imports included; also for 10,000 files. `compact_10k_vs_1k_files`: the time for 10,000 files by that for 1,000
files of `--growth-rows` rows. Every compaction has a process of its own, with a catalog in a file and the tables on the local
disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from benchmarks import maintenance_spark as spark
from benchmarks.keep import keep
from holdfast.services.maintenance.engines.actions import MiB, RewriteDataFiles
from holdfast.services.maintenance.engines.catalogs import Catalogs
from holdfast.services.maintenance.engines.interface import Fence, TableRef
from holdfast.services.maintenance.engines.pyiceberg.engine import PyIcebergEngine
from holdfast.services.maintenance.engines.pyiceberg.write_files import FileWriter

PEAK, PEAK_GOAL = "compact_peak_mb", 800.0
GROWTH, GROWTH_GOAL = "compact_10k_vs_1k_files", 12.0
SIZES = {"peak": ("large", "many"), "growth": ("few", "many")}  # the tables of a part
FIGURE = {name: f"{name}_vs_spark" for name in spark.ACTIONS} | {"peak": PEAK, "growth": GROWTH}
PARTS = tuple(FIGURE)
QUICK_COMMITS = 120  # more than the metadata files that a table keeps in its log: older ones are orphans
Figures = dict[str, dict[str, Any]]
REF = TableRef("lake", "bench", "events")
FILES_PER_COMMIT = 100
WORDS = ("click", "view", "purchase", "refund", "login", "logout", "search", "share")


def catalogs_at(folder: Path) -> Catalogs:
    """A catalog in a file, with its tables beside it."""
    return Catalogs({"lake": {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}})


def rows(start: int, count: int) -> pa.Table:
    """Rows of 8 columns: 4 numbers, 2 texts with few values and 2 with many."""
    ids = np.arange(start, start + count, dtype=np.int64)
    return pa.table(
        {
            "id": pa.array(ids),
            "amount": pa.array(ids * 7919 % 100_003 / 100),
            "shop": pa.array((ids % 977).astype(np.int32)),
            "at": pa.array(1_700_000_000_000_000 + ids * 1_000_003).cast(pa.timestamp("us")),
            "kind": pa.array(WORDS, pa.large_string()).take(pa.array(ids % 8)),
            "country": joined("country-", ids % 60),
            "url": joined("/item/", ids * 2654435761 % 4294967296),
            "note": joined("note ", ids * 40503 % 65536, " of ", ids),
        }
    )


def joined(*parts: Any) -> pa.Array:
    """Texts from constant parts and columns of numbers."""
    texts = [part if isinstance(part, str) else pa.array(part).cast(pa.large_string()) for part in parts]
    return pc.binary_join_element_wise(
        *(pa.scalar(one, pa.large_string()) if isinstance(one, str) else one for one in texts), pa.scalar("", pa.large_string())
    )


def fill(folder: Path, files: int, each: int) -> None:
    """A table of so many files, in commits of 100 files."""
    catalogs = catalogs_at(folder)
    catalog = catalogs.open_for_writers("lake")
    catalog.create_namespace("bench")
    table = catalog.create_table(REF.identifier, rows(0, 1).schema, properties=spark.PROPERTIES)
    add_files(table, files, each, FILES_PER_COMMIT)
    catalogs.close()


def add_files(table: Table, files: int, each: int, per_commit: int) -> None:
    """Append so many files of so many rows."""
    for begin in range(0, files, per_commit):
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as commit:
            for number in range(begin, min(files, begin + per_commit)):
                commit.append_data_file(written(table, rows(number * each, each)))


def written(table: Table, content: pa.Table) -> Any:
    """One data file of the table."""
    arrow = schema_to_pyarrow(table.schema())
    writer = FileWriter(table.io, table.metadata, table.schema(), arrow, 0, Record(), 1 << 40, content.num_rows)
    writer.write([content.cast(arrow)])
    return writer.files[0]


def compact(folder: Path) -> dict[str, Any]:
    """Compact the table in this process."""
    started = time.perf_counter()
    engine = PyIcebergEngine(catalogs_at(folder), lambda: time.time_ns() // 1_000_000)
    fence = Fence(1, "benchmark", 1, check=lambda: None)
    result = engine.run(REF, RewriteDataFiles(target_file_size=128 * MiB), fence)
    engine.close()
    assert result.after is not None
    times = os.times()
    return {
        "seconds": round(time.perf_counter() - started, 2),
        "cpu_seconds": round(times.user + times.system, 2),
        "peak_mb": spark.peak_mb("self"),
        "files": [result.before.data_files, result.after.data_files],
        "mb": [result.before.data_bytes >> 20, result.after.data_bytes >> 20],
        "rows": result.details["rows"],
    }


def apart(*words: str) -> str:
    """Run a part of this program in a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.maintenance", *words], capture_output=True, text=True, check=False
    )
    if ended.returncode != 0:
        raise SystemExit(f"{' '.join(words)} failed:\n{ended.stderr[-3000:]}")
    return ended.stdout


@dataclass(frozen=True)
class Filled:
    """A table that is filled once and compacted often: its files are restored by hard links, its catalog by a copy."""

    folder: Path
    files: int
    each: int

    @property
    def kept(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}-kept")

    def fill(self) -> Filled:
        """Fill it, in a process of its own."""
        self.folder.mkdir(parents=True)
        apart("fill", str(self.folder), str(self.files), str(self.each))
        self.folder.rename(self.kept)
        return self

    def compact(self) -> dict[str, Any]:
        """Restore and compact it, in a process of its own."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.kept, self.folder, copy_function=os.link)
        (self.folder / "catalog.db").unlink()
        shutil.copy(self.kept / "catalog.db", self.folder)
        found: dict[str, Any] = json.loads(apart("compact", str(self.folder)))
        assert found["rows"] == self.files * self.each, "the compaction lost rows"
        print(f"{self.files:6,} files of {self.each:,} rows: {found}", flush=True)
        return found


def compare(chosen: argparse.Namespace) -> Iterator[Figures]:
    """Memory, and growth to ten times as many files: the figures after each round. A ratio is taken within its round; the
    median of the rounds counts."""
    sizes = {
        "large": (chosen.files, chosen.rows),
        "few": (chosen.files, chosen.growth_rows),
        "many": (10 * chosen.files, chosen.growth_rows),
    }
    wanted = {size for part in chosen.only for size in SIZES.get(part, ())}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        tables = {size: Filled(Path(name) / size, *given).fill() for size, given in sizes.items() if size in wanted}
        rounds: list[dict[str, Any]] = []
        for _ in range(chosen.rounds):
            rounds.append({size: table.compact() for size, table in tables.items()})
            yield own_figures(rounds)


def own_figures(rounds: list[dict[str, Any]]) -> Figures:
    """The figures of these rounds, as far as the sizes that they need were measured. Pure."""
    made: Figures = {}
    if "large" in rounds[0]:
        peaks = {size: max(one[size]["peak_mb"] for one in rounds) for size in rounds[0]}
        made[PEAK] = {"value": max(peaks.values()), "goal": PEAK_GOAL, "rounds": len(rounds), "peaks": peaks}
    if "few" in rounds[0]:
        ratios = [round(one["many"]["seconds"] / one["few"]["seconds"], 2) for one in rounds]
        cpu = median(one["many"]["cpu_seconds"] / one["few"]["cpu_seconds"] for one in rounds)
        seconds = {size: median(one[size]["seconds"] for one in rounds) for size in ("few", "many")}
        more = {"ratios": ratios, "cpu_ratio": round(cpu, 2), "seconds": seconds}
        made[GROWTH] = {"value": median(ratios), "goal": GROWTH_GOAL, "rounds": len(rounds), **more}
    return made


def compare_with_spark(chosen: argparse.Namespace) -> Iterator[Figures]:
    """The ratios to Spark after each round. Tables: `files` small files for the compaction; `commits` commits of 10 files for
    the rest."""
    names = [name for name in spark.ACTIONS if name in chosen.only]

    def many_files(catalog: Catalog, ref: TableRef) -> None:
        add_files(create(catalog, ref, folder), chosen.files, chosen.rows, FILES_PER_COMMIT)

    def many_commits(catalog: Catalog, ref: TableRef) -> None:
        table = create(catalog, ref, folder)
        add_files(table, chosen.commits * 10, 100, 10)
        for number in range(chosen.commits * 10):
            (folder / ref.name / "data" / f"orphan-{number}.parquet").write_bytes(b"x" * 1000)

    fills = {"events": many_files, "commits": many_commits}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        with spark.bench(folder) as made:
            for scene in {spark.SCENES[name] for name in names}:
                made.scene(scene, fills[scene])
            rounds = []
            for _ in range(chosen.rounds):
                rounds.append(spark.round_of(made, names))
                yield spark.figures(rounds)


def create(catalog: Catalog, ref: TableRef, folder: Path) -> Table:
    """An empty table in the folder of its name."""
    location = f"file://{folder}/{ref.name}"
    return catalog.create_table(ref.identifier, rows(0, 1).schema, location=location, properties=spark.PROPERTIES)


def main() -> None:
    match sys.argv[1:2]:
        case ["fill"]:
            fill(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
        case ["compact"]:
            print(json.dumps(compact(Path(sys.argv[2]))))
        case ["act"]:
            print(json.dumps(spark.act(*sys.argv[2:])))
        case _:
            measure(arguments())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.maintenance", description=str(__doc__).splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000, help="rows of a file for the comparison and the peak of memory")
    parser.add_argument("--growth-rows", type=int, default=1000, help="rows of a file for the growth")
    parser.add_argument("--commits", type=int, default=500, help="commits of the table whose snapshots are expired")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; may be repeated (default: all)")
    parser.add_argument("--quick", action="store_true", help="small tables and one round: does it run?")
    parser.add_argument(
        "--out", type=Path, help="where to write the figures after each round (default: a file in the temporary folder)"
    )
    parser.add_argument(
        "--write", action="store_true", help="complete parts into results.json, beside the figures of `make bench`"
    )
    chosen = parser.parse_args()
    if chosen.quick and chosen.write:
        parser.error("--quick is no figure for results.json; leave --write or --quick out")
    chosen.files, chosen.only = 1000, chosen.only or PARTS
    if chosen.quick:
        chosen.files, chosen.rows, chosen.growth_rows, chosen.commits, chosen.rounds = 100, 2000, 100, QUICK_COMMITS, 1
    chosen.out = chosen.out or Path(tempfile.gettempdir()) / f"holdfast-maintenance-{os.getpid()}.json"
    return chosen


def measure(chosen: argparse.Namespace) -> None:
    """Measure the chosen parts. What fails is reported at the end, after everything else was measured and written."""
    found: Figures = {}
    note(found, chosen)  # a folder that cannot be written to is found out now
    parts = {compare_with_spark: spark.ACTIONS, compare: SIZES}
    for measure_part, names in parts.items():
        if not set(names) & set(chosen.only):
            continue
        try:
            for figures in measure_part(chosen):
                found |= figures
                note(found, chosen)
        except (Exception, SystemExit):
            traceback.print_exc()
        if chosen.write:
            write(found, chosen)
    print(chosen.out.read_text())
    incomplete = [part for part in chosen.only if found.get(FIGURE[part], {}).get("rounds") != chosen.rounds]
    if incomplete:
        raise SystemExit(f"not all {chosen.rounds} rounds were measured of: {', '.join(incomplete)}; see {chosen.out}")


def note(found: Figures, chosen: argparse.Namespace) -> None:
    """Keep the figures so far."""
    chosen.out.write_text(json.dumps(found, indent=1) + "\n")


def write(found: Figures, chosen: argparse.Namespace) -> None:
    """Write the figures with all rounds into results.json."""
    load = round(os.getloadavg()[0], 1)
    for name, one in found.items():
        better: Any = "higher" if name.endswith("_vs_spark") else "lower"
        more = {key: value for key, value in one.items() if key not in ("value", "goal")}
        if one["rounds"] == chosen.rounds:
            keep(name, one["value"], one["goal"], better, rows_per_file=chosen.rows, load=load, **more)


if __name__ == "__main__":
    main()
