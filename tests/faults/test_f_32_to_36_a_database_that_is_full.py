"""F-32, F-35, F-36: a database without free connections, WAL space, or with rows that vacuum cannot remove."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from proof.processes.fork_server import ForkServer, until
from proof.processes.postgres import OwnPostgres
from tests.faults.conftest import PATIENCE, Scene

from holdfast.jobs.enqueue import enqueue_sync
from holdfast.jobs.model import NewJob
from holdfast.jobs.views.figures import figures

pytestmark = pytest.mark.processes


CLIENTS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
IS_FULL = f"SELECT ({CLIENTS}) >= current_setting('max_connections')::int"
OF_WORKERS = f"{CLIENTS} AND application_name = 'holdfast'"


@contextmanager
def no_connection_left(scene: Scene) -> Iterator[None]:
    """Whoever is connected stays so, and nobody else gets in."""
    taken: list[psycopg.Connection[Any]] = []

    def is_full() -> bool:
        with contextlib.suppress(psycopg.OperationalError):  # the place of a connection that ends is free a moment later
            taken.append(psycopg.connect(scene.postgres.admin_url))
        return bool(scene.value(IS_FULL))

    try:
        scene.until(is_full, what="a full server")
        yield
    finally:
        for one in taken:
            one.close()


@pytest.mark.more
def test_f_35_worker_without_a_free_connection_keeps_its_lease(scene: Scene):
    """Its heartbeat, its claims and its ends have connections of their own, which they keep."""
    held = scene.add("proof.steps", steps=100_000, pause=0.05)
    worker = scene.worker(lease=5.0, concurrency=2)
    scene.until(lambda: scene.lines("effect", held))
    scene.add("proof.quick")
    scene.until(lambda: len(scene.lines("finish")) == 1)

    with no_connection_left(scene):
        beats = scene.value("SELECT beat_at FROM holdfast.workers WHERE pid = %s", worker.pid)
        late = scene.worker(name="late")
        quick = scene.add("proof.quick")
        scene.until(lambda: scene.job(quick)[0] == "completed", what="a job of a worker that is connected")
        moved = "SELECT beat_at > %s + interval '6 s' FROM holdfast.workers WHERE pid = %s"
        scene.until(lambda: scene.value(moved, beats, worker.pid), what="beats for longer than a lease")
        assert scene.job(held) == ("running", 1, 0, 0)
        assert worker.is_alive
        assert scene.value("SELECT count(*) FROM holdfast.workers WHERE name = 'late'") == 0

    late.bury()
    worker.kill()
    scene.conn.execute("UPDATE holdfast.jobs SET payload = payload || '{\"steps\": 1}' WHERE id = %s", [held])


@pytest.mark.more
def test_f_35_worker_whose_connections_are_cut_waits_for_free_ones(scene: Scene):
    """As when a pooler is restarted: it has to come back while there is no room, and burns nothing on the way."""
    worker = scene.worker(by_proxy=True, lease=60.0)
    scene.until(lambda: scene.said("worker_started"))

    scene.proxy.refuse()  # so that it does not come back before its connections are taken
    scene.proxy.cut_all()
    scene.until(lambda: scene.value(OF_WORKERS) == 0, what="a server without connections of the worker")
    with no_connection_left(scene):
        scene.proxy.heal()
        job = scene.add("proof.quick")
        scene.until(lambda: [one for one in scene.said("heartbeat_failed") if "too many clients" in one["error"]])
        assert scene.job(job) == ("pending", 0, 0, 0)
        assert worker.is_alive

    scene.until(lambda: scene.job(job) == ("completed", 1, 0, 0), what="the job, once there is room")
    scene.all_is_well()


@pytest.mark.more
def test_f_32_full_wal_disk_is_an_outage_and_loses_nothing(tmp_path: Path):
    """The server panics, and stays down until there is space and somebody starts it."""
    with ForkServer() as forks, OwnPostgres(tmp_path / "postgres") as postgres, wal_on_a_small_disk(postgres) as disk:
        _outlive_a_full_disk(forks, postgres, disk, tmp_path)


@contextmanager
def wal_on_a_small_disk(postgres: OwnPostgres) -> Iterator[Path]:
    """The server is up again, and its write-ahead log has 80 MB."""
    wal, aside = postgres.cluster.data / "pg_wal", postgres.cluster.root / "aside"
    postgres.end(signal.SIGINT)
    shutil.copytree(wal, aside)
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m,mode=700", "tmpfs", wal], check=False).returncode
    ):
        pytest.skip("no small file system can be mounted here")
    try:
        shutil.copytree(aside, wal, dirs_exist_ok=True)
        if (account := postgres.cluster.account) is not None:
            for path in [wal, *wal.rglob("*")]:
                os.chown(path, account.pw_uid, account.pw_gid)
        postgres.start()
        yield wal
    finally:
        postgres.end(signal.SIGQUIT)
        subprocess.run(["umount", wal], check=True)


def _outlive_a_full_disk(forks: ForkServer, postgres: OwnPostgres, disk: Path, tmp_path: Path) -> None:
    worker = forks.start(postgres.url, tmp_path, lease=60.0)
    acknowledged: list[int] = []
    filler = disk / "filler"
    with psycopg.connect(postgres.url, autocommit=True) as conn:
        until(lambda: conn.execute("SELECT FROM holdfast.workers").rowcount == 1, PATIENCE)  # it has begun
        acknowledged.append(enqueue_sync(conn, NewJob("proof.publish", {"n": 0}, max_crashes=50)).id)

    def is_down() -> bool:
        """Fill the disk once more: a server that recovers from its crash may find a log file to use again, and come back."""
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(postgres.url, autocommit=True) as conn:
            with contextlib.suppress(OSError), filler.open("ab") as full:
                while True:
                    full.write(b"\0" * (1 << 20))
            while True:  # each switch needs a new file of 16 MB, and there is no room for one
                acknowledged.append(enqueue_sync(conn, NewJob("proof.publish", {"n": len(acknowledged)}, max_crashes=50)).id)
                conn.execute("SELECT pg_switch_wal()")
        return postgres._process is not None and postgres._process.poll() is not None

    until(is_down, PATIENCE, every=0.05)
    assert worker.is_alive

    filler.unlink()
    postgres.restart()

    done = "SELECT count(*) FILTER (WHERE state <> 'completed'), count(*) FROM holdfast.jobs"
    with psycopg.connect(postgres.url, autocommit=True) as conn:
        until(lambda: (conn.execute(done).fetchone() or (1, 0))[0] == 0, PATIENCE)
        assert {row[0] for row in conn.execute("SELECT id FROM holdfast.jobs").fetchall()} >= set(acknowledged)
        ((published, distinct),) = conn.execute("SELECT count(*), count(DISTINCT job_id) FROM proof.published").fetchall()
        ((jobs,),) = conn.execute("SELECT count(*) FROM holdfast.jobs").fetchall()
        assert published == distinct == jobs
        assert conn.execute("SELECT max(attempt_no) FROM holdfast.jobs").fetchone() == (1,), "an outage burnt an attempt"
    assert worker.is_alive


def test_f_36_long_held_snapshot_is_reported_and_claims_stay_correct(scene: Scene):
    """Dead rows cannot be removed meanwhile. That is told by a metric, the table stays in bounds, and no job is begun twice."""
    rounds, many = 3, 300
    with psycopg.connect(scene.postgres.url) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM holdfast.jobs")
        scene.worker(lease=30.0, concurrency=8)
        for _ in range(rounds):
            for _ in range(many // rounds):
                scene.add("proof.quick")
            scene.until(lambda: scene.value("SELECT count(*) FROM holdfast.jobs WHERE state <> 'completed'") == 0)
        scene.conn.execute("VACUUM holdfast.jobs")
        told = scene.value("SELECT max(age(backend_xmin)) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL")
        found = asyncio.run(_figures(scene.postgres.url))
        assert found["xmin_age"] >= told - 1 > many / 10
        size = scene.value("SELECT pg_total_relation_size('holdfast.jobs')")
        assert size < 4000 * many, f"{size} bytes for {many} jobs"
        holder.rollback()
    starts = [line.job for line in scene.lines("start")]
    assert len(starts) == len(set(starts)) == many, "a job was begun twice, or never"
    scene.all_is_well()


async def _figures(url: str) -> dict[str, Any]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        return dict((await figures(conn)).plain)
