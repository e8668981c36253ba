"""The embedded engine on tables of many small files: compared with Spark, its peak memory, its growth with the number of files.

    python -m benchmarks.maintenance [--rounds 5] [--out results.json] [--write]   # about half an hour
    python -m benchmarks.maintenance --quick                                       # small tables, one round
    python -m benchmarks.maintenance --without-spark                               # memory and growth only

`compact_vs_spark`, `expire_vs_spark`, `manifests_vs_spark`, `orphans_vs_spark`: the time of a local Spark 3.5 by ours, start-up
of both included; CPU seconds and a warm Spark are beside it (`maintenance_spark.py`). The Spark is fetched as for
`make test-real`.

`compact_peak_mb`: 1,000 files of `--rows` rows with 8 columns (4 of them texts), 128 MB target; the largest resident set of
the process, imports included. `compact_10k_vs_1k_files`: the time for 10,000 files by that for 1,000 files of
`--growth-rows` rows. Every compaction has a process of its own, with a catalog in a file and the tables on the local disk.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
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
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
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


def compare(files: int, each: int, growth_each: int, rounds: int) -> dict[str, Any]:
    """Memory, and growth to ten times as many files. A ratio is taken within each round; the median of the rounds counts."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        sizes = {"large": (files, each), "few": (files, growth_each), "many": (10 * files, growth_each)}
        large, few, many = (Filled(Path(name) / size, *given).fill() for size, given in sizes.items())
        peak, growth = [], []
        for _ in range(rounds):
            peak.append(large.compact())
            growth.append((few.compact(), many.compact()))
    ratios = [round(many["seconds"] / few["seconds"], 2) for few, many in growth]
    peaks = [one["peak_mb"] for one in (*peak, *(side for pair in growth for side in pair))]
    return {
        PEAK: {"value": max(peaks), "goal": PEAK_GOAL, "rounds": peak},
        GROWTH: {"value": median(ratios), "goal": GROWTH_GOAL, "ratios": ratios, "rounds": growth},
    }


def compare_with_spark(files: int, each: int, commits: int, rounds: int) -> dict[str, Any]:
    """The ratios to Spark. Tables: `files` small files for the compaction; `commits` commits of 10 files for the rest."""

    def many_files(catalog: Catalog, ref: TableRef) -> None:
        add_files(create(catalog, ref, folder), files, each, FILES_PER_COMMIT)

    def many_commits(catalog: Catalog, ref: TableRef) -> None:
        table = create(catalog, ref, folder)
        add_files(table, commits * 10, 100, 10)
        for number in range(commits * 10):
            (folder / ref.name / "data" / f"orphan-{number}.parquet").write_bytes(b"x" * 1000)

    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        with spark.bench(folder) as made:
            made.scene("events", many_files)
            made.scene("commits", many_commits)
            return spark.figures([spark.round_of(made) for _ in range(rounds)])


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
    parser.add_argument("--quick", action="store_true", help="small tables and one round: does it run?")
    parser.add_argument("--without-spark", action="store_true", help="only memory and growth")
    parser.add_argument("--only-spark", action="store_true", help="only the comparison")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    parser.add_argument("--write", action="store_true", help="into results.json, beside the figures of `make bench`")
    chosen = parser.parse_args()
    if chosen.quick and chosen.write:
        parser.error("--quick is no figure for results.json; leave --write or --quick out")
    return chosen


def measure(chosen: argparse.Namespace) -> None:
    files, found = 1000, {}
    if chosen.quick:
        files, chosen.rows, chosen.growth_rows, chosen.commits, chosen.rounds = 100, 2000, 100, 40, 1
    if not chosen.without_spark:
        found |= noted(compare_with_spark(files, chosen.rows, chosen.commits, chosen.rounds), chosen)
    if not chosen.only_spark:
        found |= noted(compare(files, chosen.rows, chosen.growth_rows, chosen.rounds), chosen)
    text = json.dumps(found, indent=1)
    if chosen.out:
        chosen.out.write_text(text + "\n")
    print(text)


def noted(found: dict[str, Any], chosen: argparse.Namespace) -> dict[str, Any]:
    """The figures of a part, in results.json at once: a failure of the next part does not lose them."""
    for name, one in found.items() if chosen.write else ():
        better = "higher" if name.endswith("_vs_spark") else "lower"
        more = {key: value for key, value in one.items() if key not in ("value", "goal", "rounds")}
        load = round(os.getloadavg()[0], 1)
        keep(name, one["value"], one["goal"], better, rows_per_file=chosen.rows, load=load, **more)  # type: ignore[arg-type]
    return found


if __name__ == "__main__":
    main()
