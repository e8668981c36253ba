"""The previous version on the new schema: a real worker of the previous code runs jobs while the schema is migrated. Needs git.

`make release-check` runs it. The previous code is the newest commit of this branch with another newest migration.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from holdfast.database import migrate, revision

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 180.0
FOLDERS = ("src/holdfast/database/migrations/versions", "src/holdfast/services")
JOBS = """
import asyncio
from holdfast import Context, job

@job("old.work")
async def work(ctx: Context) -> dict:
    await asyncio.sleep(0.01)
    return {"done": True}
"""
ENQUEUE = "INSERT INTO holdfast.jobs (kind) VALUES ('old.work') RETURNING id"

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif("HOLDFAST_TEST_RELEASE" not in os.environ, reason="set HOLDFAST_TEST_RELEASE: `make release-check`"),
]


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def newest_migration(commit: str) -> str:
    files = git("ls-tree", "-r", "--name-only", commit, *FOLDERS).splitlines()
    return max(found[1] for name in files if (found := re.search(r"migrations/(?:versions/)?(\d{4})_\w+\.py$", name)))


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The source of the previous version, and its newest migration."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    for commit in git("log", "--format=%H", "-n", "200", "--", *FOLDERS).splitlines():
        if (number := newest_migration(commit)) < revision.wanted():
            folder = tmp_path_factory.mktemp("previous")
            packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True).stdout
            subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)
            return folder / "src", number
    pytest.skip("no commit of this branch has an older schema")


def until(true: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def test_a_worker_of_the_previous_version_runs_jobs_while_the_schema_is_migrated(
    previous: tuple[Path, str], empty_database: str, tmp_path: Path
) -> None:
    """Live traffic: every job that was acknowledged before, during and after the migration is done once."""
    source, number = previous
    (tmp_path / "old_jobs.py").write_text(JOBS)
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{tmp_path}", "HOLDFAST_POLL_SECONDS": "0.2"}
    old = [sys.executable, "-m", "holdfast"]
    subprocess.run(
        [*old, "db", "migrate", "--dsn", empty_database], env=environment, cwd=tmp_path, check=True, capture_output=True
    )
    assert migrate.status(empty_database).current == number

    acknowledged: list[int] = []
    stop = threading.Event()
    log = tmp_path / "log"

    def enqueue() -> None:
        with psycopg.connect(empty_database, autocommit=True) as conn:
            while not stop.wait(0.02):
                row = conn.execute(ENQUEUE).fetchone()
                assert row is not None
                acknowledged.append(row[0])

    with log.open("w") as out, psycopg.connect(empty_database, autocommit=True) as conn:
        words = ["worker", "run", "--dsn", empty_database, "--import", "old_jobs"]
        worker = subprocess.Popen([*old, *words], env=environment, cwd=tmp_path, stdout=out, stderr=out)
        traffic = threading.Thread(target=enqueue)
        traffic.start()
        try:
            done = "SELECT count(*) FROM holdfast.jobs WHERE state = 'completed'"
            until(lambda: conn.execute(done).fetchone() > (5,), log)  # type: ignore[operator]
            migrate.migrate(empty_database)
            after = len(acknowledged)
            until(lambda: len(acknowledged) > after + 5, log)
            stop.set()
            traffic.join(PATIENCE)
            until(lambda: conn.execute(done).fetchone() == (len(acknowledged),), log)
        finally:
            stop.set()
            worker.terminate()
            ended = worker.wait(PATIENCE)
        ends = conn.execute("SELECT count(*), count(DISTINCT job_id) FROM holdfast.history WHERE move = 'complete'").fetchone()

    assert ended == 0, log.read_text()
    assert ends == (len(acknowledged), len(acknowledged))
    assert migrate.status(empty_database).is_current


def test_new_code_does_not_start_on_the_previous_schema(
    previous: tuple[Path, str], empty_database: str, tmp_path: Path
) -> None:
    """The reverse: a pod of the new version waits for the migration, with the reason."""
    migrate.migrate(empty_database, previous[1])

    words = [sys.executable, "-m", "holdfast", "worker", "run", "--dsn", empty_database]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert f"the schema is at {previous[1]}, this code needs {revision.wanted()}; run `holdfast db migrate`" in done.stderr
