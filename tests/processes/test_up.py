"""`holdfast up` and `holdfast db`, as a person runs them: real processes, a real SIGKILL, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import psycopg
import pytest
from keepers import PATIENCE, until

import programs

pytestmark = pytest.mark.processes


def holdfast(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    return programs.run(*arguments, env={**settings, "COLUMNS": "200", **environment}, folder=folder, timeout=600)


def processes_in(folder: Path) -> list[str]:
    """The command lines of processes that mention this folder, or work in it as Postgres does."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                place = str((entry / "cwd").readlink())
            except OSError:
                continue
            if (str(folder) in line or place.startswith(str(folder))) and int(entry.name) != os.getpid():
                found.append(line)
    return found


@pytest.mark.more  # each service has a test of its demo
def test_up_runs_the_demos_and_leaves_no_process(tmp_path: Path):
    done = holdfast("up", folder=tmp_path, HOLDFAST_DATA_DIR=str(tmp_path / "data"))

    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIGKILL to worker-" in done.stdout
    assert "REFUSED" in done.stdout
    assert "correct" in done.stdout
    assert "each of 6 parts was published exactly once" in done.stdout
    assert "SIGKILL to exporter-1 during the export" in done.stdout
    assert "every row exactly once" in done.stdout
    assert "270,000 nodes and 350,000 edges" in done.stdout
    assert "the graph server and the instance are removed" in done.stdout
    assert processes_in(tmp_path) == []


@pytest.mark.more
def test_ctrl_c_ends_every_process(tmp_path: Path):
    data = tmp_path / "data"
    settings = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    running = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "up"],
        cwd=tmp_path,
        env={**settings, "HOLDFAST_DATA_DIR": str(data)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until(lambda: _workers(running.pid), "the demo never started its workers")
        workers = _workers(running.pid)

        running.send_signal(signal.SIGINT)
        output, _ = running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
        running.wait()
        assert running.stdout is not None
        running.stdout.close()

    assert "Stopped." in output
    assert running.returncode == 1
    assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == []
    assert processes_in(tmp_path) == []


@pytest.mark.more
def test_control_plane_runs_until_ctrl_c(tmp_path: Path):
    """Its port is in use here, so it says so and takes another."""
    settings = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        running = subprocess.Popen(
            [sys.executable, "-u", "-m", "holdfast", "up", "--stay", "--no-demo"],
            cwd=tmp_path,
            env={**settings, "COLUMNS": "200", "HOLDFAST_DATA_DIR": str(tmp_path / "data"), "HOLDFAST_HTTP_PORT": port},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert running.stdout is not None
        try:
            said: list[str] = []
            for line in running.stdout:  # ends with the process, whatever happens
                said.append(line)
                if "/login?code=" in line:
                    break
            told = "".join(said)
            assert f"port {port} is in use" in told, told
            address = re.search(r"listens on (http://\S+)", told)
            link = re.search(r"(http://\S+/login\?code=\S+)", told)
            assert address, told
            assert link, told
            signed_in = httpx2.get(link[1], timeout=60, trust_env=False).json()["data"]
            assert httpx2.get(link[1], timeout=60, trust_env=False).status_code == 401, "it works once"
            credentials = {"Authorization": f"Bearer {signed_in['token']}"}
            counted = httpx2.get(f"{address[1]}/api/ops/state", headers=credentials, timeout=60, trust_env=False)
            assert counted.status_code == 200, counted.text
            assert httpx2.get(f"{address[1]}/api/ops/state", timeout=60, trust_env=False).status_code == 401

            running.send_signal(signal.SIGINT)
            running.communicate(timeout=120)
        finally:
            running.kill()
            running.wait()
            running.stdout.close()

    assert running.returncode == 0
    assert processes_in(tmp_path) == []


def _workers(owner: int) -> list[int]:
    """The worker processes that this demo started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().decode()
            except OSError:
                continue
            if f"holdfast.apps.demo\0{owner}\0" in line:
                found.append(int(entry.name))
    return found


@pytest.mark.more
def test_db_migrates_up_and_down_and_reports_the_revision(tmp_path: Path, server: str):
    name = f"holdfast_cli_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
        info = conn.info
        secret = f":{info.password}" if info.password else ""
        url = f"postgresql://{info.user}{secret}@{info.host}:{info.port}/{name}"
    try:
        before = holdfast("db", "status", "--json", "--dsn", url, folder=tmp_path)
        assert before.returncode == 1
        told = json.loads(before.stdout)
        newest = told["wanted"]
        assert told["current"] is None
        assert told["pending"][0] == "0001"
        assert told["pending"][-1] == newest

        assert f"Created the schema at revision {newest}." in holdfast("db", "migrate", "--dsn", url, folder=tmp_path).stdout
        assert holdfast("db", "status", "--dsn", url, folder=tmp_path).returncode == 0
        assert "nothing to do" in holdfast("db", "migrate", folder=tmp_path, HOLDFAST_DATABASE_URL=url).stdout
        removed = holdfast("db", "migrate", "base", "--dsn", url, folder=tmp_path).stdout
        assert f"Removed the schema, which was at revision {newest}." in removed
        assert "CREATE TABLE holdfast.jobs" in holdfast("db", "sql", folder=tmp_path).stdout
    finally:
        with psycopg.connect(server, autocommit=True) as conn:
            conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_unreachable_database_gives_a_message_without_traceback(tmp_path: Path):
    done = holdfast("db", "status", "--dsn", "postgresql://nobody@127.0.0.1:1/none", folder=tmp_path)

    assert done.returncode == 6
    assert "Traceback" not in done.stderr
    assert "error:" in done.stderr
    assert "127.0.0.1" in done.stderr
