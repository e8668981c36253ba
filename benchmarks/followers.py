"""What the trigger of followers costs jobs whose kind has none.

    python -m benchmarks.followers --jobs 20000 --rounds 9

Completes batches of 500 jobs with the worker's statement, with no trigger, with one followed kind and with eight, by turns. It
compares the CPU time of the server process, which does not depend on what else the machine does. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from holdfast.database.embedded import EmbeddedPostgres
from holdfast.database.migrate import migrate
from holdfast.database.pool import connect
from holdfast.jobs.finish import COMPLETE_PLAIN

BATCH = 500
VARIANTS = {"no trigger": 0, "1 followed kind": 1, "8 followed kinds": 8}
FUNCTION = """
    CREATE FUNCTION holdfast.follow_nothing(job holdfast.jobs, old_state text) RETURNS void LANGUAGE sql AS 'SELECT'
"""
FOLLOW = """
    INSERT INTO holdfast.job_followers
    SELECT 'service.kind' || n, 'holdfast.follow_nothing' FROM generate_series(1, %s) AS n
"""
HOLD = """
    INSERT INTO holdfast.jobs (kind, payload, state, attempt_id, attempt_no, fence_token, worker_id, claimed_at, begun_at)
    SELECT 'another.kind', '{}', 'running', gen_random_uuid(), 1, nextval('holdfast.fence_token'), %s, clock_timestamp(),
           clock_timestamp()
    FROM generate_series(1, %s) RETURNING id::text, attempt_id::text
"""
WORKER = """
    INSERT INTO holdfast.workers (id, name, host, pid, version, lease_until)
    VALUES (gen_random_uuid(), 'w', 'h', 1, '1', 'infinity') RETURNING id::text
"""


async def measure(conn: Any, worker: str, jobs: int, followed: int) -> float:
    """CPU seconds of the server to complete this many jobs while so many other kinds are followed."""
    await conn.execute("DELETE FROM holdfast.job_followers")
    await conn.execute(FOLLOW, [followed])
    held = await (await conn.execute(HOLD, [worker, jobs])).fetchall()
    await conn.execute("VACUUM ANALYZE holdfast.jobs")
    began = cpu_seconds(conn.info.backend_pid)
    for start in range(0, jobs, BATCH):
        ids, attempts = zip(*held[start : start + BATCH], strict=True)
        parameters = {"ids": list(ids), "attempts": list(attempts), "results": [], "worker_id": worker}
        await conn.execute(COMPLETE_PLAIN, parameters, prepare=True)
    taken = cpu_seconds(conn.info.backend_pid) - began
    await conn.execute("TRUNCATE holdfast.jobs, holdfast.history CASCADE")
    return taken


def cpu_seconds(pid: int) -> float:
    """How long a process has been on a CPU so far."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


async def run(url: str, jobs: int, rounds: int) -> None:
    conn = await connect(url)
    await conn.execute("SET synchronous_commit = off")
    await conn.execute(FUNCTION)
    worker = (await (await conn.execute(WORKER)).fetchall())[0][0]
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for number in range(rounds + 1):
        for name in random.sample(list(VARIANTS), len(VARIANTS)):
            taken = await measure(conn, worker, jobs, VARIANTS[name])
            if number:  # the first round fills caches
                found[name].append(taken)
    await conn.close()
    without = statistics.median(found["no trigger"])
    for name, seconds in found.items():
        ratios = [one / other for one, other in zip(seconds, found["no trigger"], strict=True)]
        median = statistics.median(seconds)
        print(f"{name:17} {median / jobs * 1e6:6.2f} µs of CPU a job, ratio {median / without:.3f}"
              f" (per round: median {statistics.median(ratios):.3f})")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, EmbeddedPostgres(Path(folder)) as server:
        migrate(server.url)
        asyncio.run(run(server.url, given.jobs, given.rounds))


if __name__ == "__main__":
    main()
