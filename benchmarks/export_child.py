"""One export in a process of its own: ours, or DuckDB's COPY; prints seconds, rows, bytes and the most memory it took.

    python -m benchmarks.export_child ours  --sql "SELECT …" --to /folder [--attach name=file] [--memory 128MB]
    python -m benchmarks.export_child copy  --sql "SELECT …" --to /folder …

No Postgres: what is measured is the way of the rows from the engine into files, with a context that knows nothing to do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow.parquet as pq

from holdfast.engines.duckdb.engine import DuckDbEngine
from holdfast.engines.duckdb.sandbox import open_sandbox
from holdfast.engines.port import Query
from holdfast.engines.settings import EngineSettings
from holdfast.jobs.effects import Effect
from holdfast.jobs.model import AttemptId, Claim, JobId, WorkerId
from holdfast.parquet.files import Shape
from holdfast.services.exports.export.direct import Limits, export_direct
from holdfast.stores.local import LocalStore
from holdfast.stores.paths import location_of
from holdfast.worker.context import Context, Lease

GROUP_ROWS = Shape().group_rows


class Nobody:
    """The other end of a context that nobody listens to."""

    async def progress(self, claim: Claim, done: float | None, message: str | None) -> None: ...

    async def checkpoint(self, claim: Claim) -> None: ...

    async def plan(
        self, claim: Claim, kind: str, *, tag: str | None, detail: Mapping[str, Any] | None, temporary: bool, adoptable: bool
    ) -> Effect:
        return Effect(1, claim.id, claim.attempt_id, 1, kind, "tag", dict(detail or {}), None, "planned")

    async def confirm(self, claim: Claim, effect: Effect, handle: Any) -> Effect:
        return effect

    async def left_behind(self, claim: Claim) -> list[Effect]:
        return []

    async def adopt(self, claim: Claim, effect: Effect, handle: Any) -> Effect:
        return effect

    def connection(self) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError


def a_context() -> Context:
    attempt = AttemptId(str(uuid4()))
    claim = Claim(
        JobId(1), "exports.run", {}, attempt, 1, 1, "default", 0, 0, 1, 0, 3, 0, None, None, None, None, 0, None, WorkerId("w")
    )  # fmt: skip
    return Context(claim, Nobody(), Lease(3600))


async def ours(chosen: argparse.Namespace, to: Path, scratch: Path) -> dict[str, Any]:
    attach = {name: Path(path) for name, path in chosen.attach}
    opening = partial(
        open_sandbox,
        attach=attach,
        memory=chosen.memory or EngineSettings.model_fields["duckdb_memory"].default,
        threads=chosen.threads,
        scratch=scratch,
    )
    engine = DuckDbEngine(opening)
    store = LocalStore(location_of(str(to)), allowed=[to])
    begun = time.perf_counter()
    written = await export_direct(a_context(), engine, Query(chosen.sql, "tag"), store, Limits())
    seconds = time.perf_counter() - begun
    await engine.close()
    return {"seconds": seconds, "rows": written.rows, "bytes": written.bytes, "files": len(written.files)}


def copied(chosen: argparse.Namespace, to: Path, scratch: Path) -> dict[str, Any]:
    config: dict[str, Any] = {"temp_directory": str(scratch)}
    if chosen.memory:
        config["memory_limit"] = chosen.memory
    if chosen.threads:
        config["threads"] = chosen.threads
    database = duckdb.connect(":memory:", config=config)
    for name, path in chosen.attach:
        database.execute(f"ATTACH '{path}' AS {name} (READ_ONLY)")
    file = to / "copy.parquet"
    begun = time.perf_counter()
    database.execute(
        f"COPY ({chosen.sql}) TO '{file}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {GROUP_ROWS})"
    )  # fmt: skip
    seconds = time.perf_counter() - begun
    return {"seconds": seconds, "rows": pq.read_metadata(file).num_rows, "bytes": file.stat().st_size, "files": 1}


def peak_mib() -> float:
    """The most memory that this process ever held, as the kernel counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.export_child")
    parser.add_argument("who", choices=["ours", "copy"])
    parser.add_argument("--sql", required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--attach", type=lambda text: tuple(text.split("=", 1)), action="append", default=[])
    parser.add_argument("--memory")
    parser.add_argument("--threads", type=int)
    chosen = parser.parse_args()
    chosen.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=chosen.to) as scratch:
        if chosen.who == "ours":
            measured = asyncio.run(ours(chosen, chosen.to, Path(scratch)))
        else:
            measured = copied(chosen, chosen.to, Path(scratch))
    print(json.dumps({**measured, "peak_mib": round(peak_mib(), 1)}))


if __name__ == "__main__":
    main()
