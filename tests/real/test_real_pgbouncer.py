"""A real PgBouncer in front of a real Postgres: refused in transaction mode, fine in session mode.

    HOLDFAST_TEST_REAL=1 python -m pytest tests/real/test_real_pgbouncer.py

`pgbouncer` has to be installed (`apt-get install pgbouncer`); no wheel on PyPI brings the program.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from holdfast.database import pooler
from holdfast.errors import TransactionPooler, UsageError
from holdfast.jobs.enqueue import enqueue_sync
from holdfast.jobs.model import NewJob

PROGRAM = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
pytestmark = pytest.mark.skipif(
    os.environ.get("HOLDFAST_TEST_REAL") != "1" or not Path(PROGRAM).exists(),
    reason="set HOLDFAST_TEST_REAL=1 and install pgbouncer",
)
Pooled = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def pooled(fresh_database: str) -> Iterator[Pooled]:
    folder = Path(mkdtemp())  # readable by the user that PgBouncer runs as, unlike pytest's

    @contextmanager
    def start(mode: str, **more: str) -> Iterator[str]:
        parts = urlsplit(fresh_database)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (folder / "users.txt").write_text(f'"{parts.username}" "{parts.password}"\n')
        options = {
            "listen_addr": "127.0.0.1", "listen_port": port, "unix_socket_dir": "", "auth_type": "plain",
            "auth_file": folder / "users.txt", "pool_mode": mode, "default_pool_size": 20, **more,
        }  # fmt: skip
        lines = "\n".join(f"{name} = {value}" for name, value in options.items())
        database = parts.path.lstrip("/")
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\n{database} = host={parts.hostname} port={parts.port} dbname={database}\n[pgbouncer]\n{lines}\n"
        )
        folder.chmod(0o755)
        user = "nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        running = subprocess.Popen([PROGRAM, "-q", "-u", user, str(folder / "pgbouncer.ini")])
        try:
            _until_open(port, running)
            yield urlunsplit(
                parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}", query="sslmode=disable")
            )
        finally:
            running.terminate()
            running.wait(60)

    yield start
    shutil.rmtree(folder, ignore_errors=True)


def _until_open(port: int, running: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert running.poll() is None, "pgbouncer ended"
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("pgbouncer does not listen")


@pytest.mark.parametrize("robin", ["0", "1"])
def test_transaction_mode_is_refused(robin: str, pooled: Pooled) -> None:
    with pooled("transaction", server_round_robin=robin) as url:
        for _ in range(5):
            with pytest.raises(TransactionPooler):
                pooler.require_own_session(url)
        ended = subprocess.run(
            [sys.executable, "-m", "holdfast", "worker", "run", "--once"],
            env=os.environ | {"HOLDFAST_DATABASE_URL": url},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    assert ended.returncode != 0
    assert "is a pooler in transaction mode" in ended.stderr


@pytest.mark.parametrize("size", ["1", "20"])
def test_session_mode_is_fine(size: str, pooled: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is no second backend to compare with."""
    monkeypatch.setattr(pooler, "LONGEST_WAIT", 2.0)
    with pooled("session", default_pool_size=size) as url:
        pooler.require_own_session(url)


def test_worker_behind_session_mode_with_the_defaults_of_pgbouncer_completes_its_jobs(pooled: Pooled, tmp_path: Path) -> None:
    """PgBouncer refuses startup parameters that it does not know, such as `options`."""
    (tmp_path / "pooled_kinds.py").write_text("from holdfast import job\n\n@job('pooled.quick')\nasync def quick(): ...\n")
    with pooled("session") as url:
        with psycopg.connect(url) as conn:
            for _ in range(20):
                enqueue_sync(conn, NewJob("pooled.quick"))
        ended = subprocess.run(
            [sys.executable, "-m", "holdfast", "worker", "run", "--import", "pooled_kinds", "--drain"],
            env=os.environ | {"HOLDFAST_DATABASE_URL": url, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        with psycopg.connect(url) as conn:
            states = conn.execute("SELECT state, count(*) FROM holdfast.jobs GROUP BY state").fetchall()

    assert (ended.returncode, states) == (0, [("completed", 20)]), ended.stderr


def test_an_enqueue_goes_through_with_the_documented_setting_and_fails_without(pooled: Pooled) -> None:
    with pooled("transaction") as url:
        _enqueue(url, 48, None)
        with pytest.raises(UsageError, match="prepare_threshold=None"):
            _enqueue(url, 200, 5)


def _enqueue(url: str, count: int, threshold: int | None) -> None:
    conns = [psycopg.connect(url, prepare_threshold=threshold) for _ in range(4)]
    try:
        for number in range(count):
            mine, other = conns[number % 4], conns[(number + 1 + number // 4) % 4]
            with mine.transaction():
                mine.execute("SELECT 1")  # it has a backend, so the other one gets another
                if other is not mine:
                    with other.transaction():
                        enqueue_sync(other, NewJob("k", {}))
                enqueue_sync(mine, NewJob("k", {}))
    finally:
        for conn in conns:
            conn.close()
