"""The scripts of an operator: secrets, backup and restore while jobs are enqueued."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from deploy_paths import DEPLOY, documents
from holdfast.database import migrate
from holdfast.database.binaries import find_binaries
from holdfast.jobs.enqueue import enqueue_sync
from holdfast.jobs.model import NewJob

SCRIPTS = DEPLOY / "scripts"
TABLES_OF_ICEBERG = "holdfast_iceberg.iceberg_tables"  # of the embedded catalog: the only pointers to the tables' metadata


def script(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it with the programs of the Postgres that the tests use, which can read a server of the same version."""
    path = f"{find_binaries().folder}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [SCRIPTS / name, *words], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )


@contextmanager
def enqueuing(url: str, acknowledged: list[int]) -> Iterator[None]:
    """Enqueue one job after the other until the end of the block."""
    stop = threading.Event()

    def work() -> None:
        with psycopg.connect(url, autocommit=True) as conn:
            while not stop.is_set():
                acknowledged.append(enqueue_sync(conn, NewJob("load")).id)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


def test_a_backup_under_load_is_restored_with_everything_acknowledged_before_it(
    fresh_database: str, empty_database: str, tmp_path: Path
) -> None:
    acknowledged: list[int] = []
    file = tmp_path / "holdfast.dump"
    pointer = ("default", "sales", "orders", "s3://lake/orders/metadata/1.json")
    with psycopg.connect(fresh_database, autocommit=True) as conn:
        conn.execute(f"INSERT INTO {TABLES_OF_ICEBERG} VALUES (%s, %s, %s, %s)".encode(), pointer)
    with enqueuing(fresh_database, acknowledged):
        while len(acknowledged) < 20:
            pass
        before = list(acknowledged)
        backed_up = script("backup.sh", fresh_database, str(file))
    assert backed_up.returncode == 0, backed_up.stderr

    restored = script("restore.sh", str(file), empty_database)

    assert restored.returncode == 0, restored.stderr
    assert migrate.status(empty_database).is_current
    with psycopg.connect(empty_database, autocommit=True) as conn:
        found = {job for (job,) in conn.execute("SELECT id FROM holdfast.jobs")}
        assert set(before) <= found <= set(acknowledged)
        assert conn.execute(f"SELECT * FROM {TABLES_OF_ICEBERG}".encode()).fetchall() == [(*pointer, None, None)]
        assert restored.stdout == f"restored {len(found)} jobs\n"
        assert enqueue_sync(conn, NewJob("load")).id > max(acknowledged), "an id that was given out is not given out again"
        with psycopg.connect(fresh_database) as lost:
            given_out = lost.execute("SELECT nextval('holdfast.fence_token')").fetchone()
        again = conn.execute("SELECT nextval('holdfast.fence_token')").fetchone()
        assert again is not None
        assert given_out is not None
        assert again > given_out, "an engine that has seen the higher token would refuse a lower one"


def test_a_backup_never_replaces_another_and_a_restore_never_replaces_jobs(fresh_database: str, tmp_path: Path) -> None:
    file = tmp_path / "holdfast.dump"
    assert script("backup.sh", fresh_database, str(file)).returncode == 0

    again = script("backup.sh", fresh_database, str(file))
    over = script("restore.sh", str(file), fresh_database)

    assert (again.returncode, over.returncode) == (1, 1)
    assert "exists; name another file" in again.stderr
    assert "this database has jobs already; restore into an empty one" in over.stderr


@pytest.mark.parametrize("name", ["backup.sh", "restore.sh", "failover.sh"])
def test_a_script_without_arguments_says_how_it_is_used(name: str) -> None:
    done = script(name)

    assert (done.returncode, done.stderr.split()[0]) == (2, "usage:")


def _secrets(*words: str) -> dict[str, dict[str, str]]:
    done = subprocess.run([sys.executable, SCRIPTS / "make_secrets.py", *words], capture_output=True, text=True, check=True)
    return {one["metadata"]["name"]: one["stringData"] for one in yaml.safe_load_all(done.stdout)}


def test_the_secrets_are_those_that_the_manifests_refer_to() -> None:
    """Q-02: random each time, and never in a file of this repository. Y-05: KEDA connects as a user that only reads."""
    made, others = _secrets("--in-cluster"), _secrets("--in-cluster")
    needed: dict[str, set[str]] = {}
    for one in documents("overlays/demo"):
        for ref in _references(one):
            needed.setdefault(ref["name"], set()).add(ref["key"])

    assert needed.pop("holdfast-tokens") == {"worker"}
    assert all(keys <= set(made[name]) for name, keys in needed.items())
    assert made["control-plane-db"] != others["control-plane-db"]
    assert made["control-plane-db"]["url"].startswith("postgresql://holdfast_autoscaler:")
    assert f":{made['holdfast-db-passwords']['worker']}@" in made["control-plane-db"]["worker-url"]


def _references(given: Any) -> Iterator[dict[str, Any]]:
    """Every secretKeyRef that is not optional."""
    if isinstance(given, dict):
        if "secretKeyRef" in given and not given["secretKeyRef"].get("optional"):
            yield given["secretKeyRef"]
        for value in given.values():
            yield from _references(value)
    elif isinstance(given, list):
        for value in given:
            yield from _references(value)
