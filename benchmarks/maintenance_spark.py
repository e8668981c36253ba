"""The same maintenance by the embedded engine and by a local Spark 3.5, on the same tables in one REST catalog.

Called by: `benchmarks.maintenance`. In each round a Spark is started. Each action runs there twice on a restored table: the
first run with the start of the JVM is the cold figure, the second the warm one. The embedded engine runs each action in a
process of its own, and its figure includes the start of that process. A table is restored by hard links, so every run has the
same files.

The first runs of the actions after the compaction have the compaction's warm JVM: that is to Spark's advantage.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pyiceberg.catalog import Catalog

from holdfast.services.maintenance.engines.actions import (
    DAY,
    Action,
    ExpireSnapshots,
    MiB,
    RemoveOrphanFiles,
    RewriteDataFiles,
    RewriteManifests,
)
from holdfast.services.maintenance.engines.catalogs import Catalogs
from holdfast.services.maintenance.engines.interface import Fence, TableRef
from holdfast.services.maintenance.engines.pyiceberg.engine import PyIcebergEngine

sys.path.append(str(Path(__file__).parents[1] / "tests" / "real"))

ACTIONS: dict[str, Action] = {
    "compact": RewriteDataFiles(target_file_size=128 * MiB),
    "expire": ExpireSnapshots(older_than=0, retain_last=10),
    "manifests": RewriteManifests(),
    "orphans": RemoveOrphanFiles(older_than=8 * DAY),
}
SCENES = {name: "events" if name == "compact" else "commits" for name in ACTIONS}
SIDES = ("ours", "cold", "ours_again", "warm")
SAME_FILES = ("expire", "orphans")  # their work is to delete files, so all sides must leave the same ones
GOALS = {"compact": 3.0, "expire": 4.0, "manifests": 3.0, "orphans": 2.0}
# One level of compression for both: the defaults of the two libraries differ.
PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "3",
    "commit.manifest-merge.enabled": "false",
}
Fill = Callable[[Catalog, TableRef], None]


@dataclass
class Scene:
    """A table that can be restored: a copy of its folder by hard links, and the location of its metadata."""

    catalogs: Catalogs
    table: TableRef
    folder: Path
    metadata: str = ""
    rows: int = 0

    @property
    def catalog(self) -> Catalog:
        return self.catalogs.open_for_writers("lake")

    def keep(self) -> None:
        """Remember the table as it is now, with files that are old."""
        loaded = self.catalog.load_table(self.table.identifier)
        self.metadata, self.rows = loaded.metadata_location, count(self.catalog, self.table)
        then = time.time() - 30 * DAY
        for path in self.folder.rglob("*"):
            if path.is_file():
                os.utime(path, (then, then))
        shutil.copytree(self.folder, self.kept, copy_function=os.link)

    @property
    def kept(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}-kept")

    def restore(self) -> None:
        """The table as it was, under its name."""
        self.catalog.drop_table(self.table.identifier)
        shutil.rmtree(self.folder)
        shutil.copytree(self.kept, self.folder, copy_function=os.link)
        self.catalog.register_table(self.table.identifier, self.metadata)


def count(catalog: Catalog, table: TableRef) -> int:
    """The rows of the table, from its metadata: it has no delete files."""
    return int(catalog.load_table(table.identifier).scan().count())


@dataclass
class Bench:
    """A REST catalog with the scenes of one run."""

    folder: Path
    rest: Any
    catalogs: Catalogs
    scenes: dict[str, Scene] = field(default_factory=dict)

    def scene(self, name: str, fill: Fill) -> Scene:
        """Make a table and keep it."""
        table = TableRef("lake", "bench", name)
        location = self.folder / name
        self.catalogs.open_for_writers("lake").create_namespace_if_not_exists("bench")
        made = Scene(self.catalogs, table, location)
        fill(made.catalog, table)
        made.keep()
        self.scenes[name] = made
        return made


@contextmanager
def bench(folder: Path) -> Iterator[Bench]:
    """A REST catalog on the loopback; its work is counted for nobody."""
    from lake_servers import RestServer

    rest = RestServer(folder / "rest")
    rest.start()
    catalogs = catalogs_of(rest.url)
    try:
        yield Bench(folder, rest, catalogs)
    finally:
        catalogs.close()
        rest.kill()


def catalogs_of(url: str) -> Catalogs:
    return Catalogs({"lake": {"type": "rest", "uri": url}})


# ---------------------------------------------------------------------------------------------------------------------
# The two sides
# ---------------------------------------------------------------------------------------------------------------------


def ours(url: str, scene: Scene, name: str) -> dict[str, Any]:
    """Run an action with the embedded engine, in a process of its own."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    words = [sys.executable, "-m", "benchmarks.maintenance", "act", url, str(scene.table), name]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"{name} failed:\n{ended.stderr[-3000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": round(time.perf_counter() - started, 2), "cpu": round(cpu, 2), **json.loads(ended.stdout)}


def act(url: str, table: str, name: str) -> dict[str, Any]:
    """In that process: run the action."""
    catalogs = catalogs_of(url)
    engine = PyIcebergEngine(catalogs, lambda: time.time_ns() // 1_000_000)
    started = time.perf_counter()
    result = engine.run(TableRef.parse(table), ACTIONS[name], Fence(1, str(uuid.uuid4()), 1, check=lambda: None))
    seconds = time.perf_counter() - started
    engine.close()
    return {"action_seconds": round(seconds, 2), "peak_mb": peak_mb("self"), "details": result.details}


def peak_mb(pid: int | str) -> int:
    """The largest resident set of a process. `ru_maxrss` also counts the process that started it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


class Spark:
    """A local Spark, of which the time and the CPU time of each statement are known."""

    def __init__(self, folder: Path, url: str) -> None:
        from lake_servers import SparkServer, compile_class, fetch_client, spark_classpath

        compile_class("LoopbackSparkConnect.java", spark_classpath())  # once, and not a part of its start
        if str(fetch_client()) not in sys.path:
            sys.path.append(str(fetch_client()))
        from holdfast.services.maintenance.engines.spark import SparkMaintenance
        from holdfast.services.maintenance.engines.spark_connect import ConnectLink

        shutil.rmtree(folder, ignore_errors=True)
        catalogs = {"lake": {"type": "rest", "uri": url}}
        self._server = SparkServer(folder, catalogs=catalogs, memory="4g", light=False)
        started = time.perf_counter()
        self._server.start()
        self._link = ConnectLink(self._server.url)
        self._engine = SparkMaintenance(self._link, {"lake": "lake"})
        self._link.run("SELECT 1", "holdfast-look", "", lambda: False)
        self.start = {"seconds": time.perf_counter() - started, "cpu": self._cpu()}

    def act(self, scene: Scene, name: str, *, cold: bool) -> dict[str, Any]:
        """Run the statement of an action; `cold`: with the start of Spark."""
        sql = self._engine.statement(scene.table, ACTIONS[name])
        cpu, started = self._cpu(), time.perf_counter()
        self._link.run(sql, "holdfast-look", "", lambda: False)
        seconds, used = time.perf_counter() - started, self._cpu() - cpu
        if cold:
            seconds, used = seconds + self.start["seconds"], used + self.start["cpu"]
        return {"seconds": round(seconds, 2), "cpu": round(used, 2), "peak_mb": peak_mb(self._pid)}

    def stop(self) -> None:
        self._link.close()
        self._server.kill()

    def _cpu(self) -> float:
        """User and system time of the JVM."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def _pid(self) -> int:
        assert self._server.process is not None
        return int(self._server.process.pid)


# ---------------------------------------------------------------------------------------------------------------------
# Rounds
# ---------------------------------------------------------------------------------------------------------------------


def round_of(made: Bench, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """One round: for each action ours, a cold Spark, ours again and a warm Spark, each on the restored table.

    An action that fails is reported and missing in the answer: the figures of the others are not lost with it.
    """
    found: dict[str, dict[str, Any]] = {}
    spark = Spark(made.folder / "spark", made.rest.url)
    try:
        for name in names:
            try:
                found[name] = runs_of(made, spark, name)
            except (Exception, SystemExit):
                traceback.print_exc()
                continue
            print(f"{name}: {json.dumps({side: one['seconds'] for side, one in found[name].items()})}", flush=True)
    finally:
        spark.stop()
    return found


def runs_of(made: Bench, spark: Spark, name: str) -> dict[str, Any]:
    """The four runs of one action. Both sides must have done the same."""
    scene = made.scenes[SCENES[name]]
    runs: dict[str, Any] = {}
    for side in SIDES:
        scene.restore()
        is_ours = side.startswith("ours")
        runs[side] = ours(made.rest.url, scene, name) if is_ours else spark.act(scene, name, cold=side == "cold")
        assert count(scene.catalog, scene.table) == scene.rows, f"{side} changed the rows in {name}"
        runs[side]["left"] = left(scene)
    both = [runs[side]["left"] for side in SIDES]
    assert name not in SAME_FILES or both == both[:1] * len(both), f"{name}: not the same work: {both}"
    return runs


def left(scene: Scene) -> list[int]:
    """What an action has left: data files, manifests, snapshots, and those files of the scene that it did not delete.

    Sizes of new files differ a little between the engines, and so may the number of files that are compacted into. Metadata
    files are not counted: each commit moves one out of the table's log, and our fence makes two. Hidden files are checksums,
    which Hadoop's file system deletes with their files.
    """
    loaded = scene.catalog.load_table(scene.table.identifier)
    snapshot, snapshots = loaded.current_snapshot(), len(loaded.metadata.snapshots)
    assert snapshot is not None
    manifests = snapshot.manifests(loaded.io)
    files = sum((one.added_files_count or 0) + (one.existing_files_count or 0) for one in manifests)
    kinds = ("*.parquet", "*.avro")
    old = {path.relative_to(scene.kept) for kind in kinds for path in scene.kept.rglob(kind) if not path.name.startswith(".")}
    return [files, len(manifests), snapshots, sum((scene.folder / path).exists() for path in old)]


def figures(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The ratio of each action: the median of the rounds, each within its round."""
    made: dict[str, dict[str, Any]] = {}
    for name in ACTIONS:
        runs = [one[name] for one in rounds if name in one]
        if not runs:
            continue
        both = [(run["ours"], run["ours_again"]) for run in runs]
        mean = [(one["seconds"] + two["seconds"]) / 2 for one, two in both]
        cpu = [(one["cpu"] + two["cpu"]) / 2 for one, two in both]
        inside = [(one["action_seconds"] + two["action_seconds"]) / 2 for one, two in both]
        ratios = [run["cold"]["seconds"] / own for run, own in zip(runs, mean, strict=True)]
        made[f"{name}_vs_spark"] = {
            "value": round(median(ratios), 2),
            "goal": GOALS[name],
            "rounds": len(runs),
            "ratios": [round(one, 2) for one in ratios],
            "cpu_ratio": round(median(run["cold"]["cpu"] / own for run, own in zip(runs, cpu, strict=True)), 2),
            "warm_ratio": round(median(run["warm"]["seconds"] / own for run, own in zip(runs, inside, strict=True)), 2),
            "warm_cpu_ratio": round(median(run["warm"]["cpu"] / own for run, own in zip(runs, cpu, strict=True)), 2),
            "seconds": round(median(mean), 2),
            "cpu_seconds": round(median(cpu), 2),
            "spark_seconds": round(median(run["cold"]["seconds"] for run in runs), 2),
            "spark_warm_seconds": round(median(run["warm"]["seconds"] for run in runs), 2),
            "spark_cpu_seconds": round(median(run["cold"]["cpu"] for run in runs), 2),
            "peak_mb": max(one["peak_mb"] for pair in both for one in pair),
            "spark_peak_mb": max(run["cold"]["peak_mb"] for run in runs),
            "left": {side: runs[-1][side]["left"] for side in ("ours", "cold")},
        }
    return made
