"""The embedded Postgres when things are killed, and when something is left from before. Real processes, real kills."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from embedded_owners import (
    OWNER,
    WRITER,
    cluster_of,
    eventually,
    kill,
    nothing_left_behind,
    postmaster,
    processes,
    python,
    read_line,
    run,
    tell,
    used_folder,
    value,
)

from holdfast.database import embedded, launch
from holdfast.database.binaries import find_binaries
from holdfast.database.embedded import THROWAWAY, EmbeddedPostgres

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return used_folder(tmp_path_factory)


@pytest.fixture
def root(folder: Path) -> Iterator[Path]:
    with nothing_left_behind(folder):
        yield folder


@pytest.fixture
def said() -> list[str]:
    return []


# --- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.more
def test_server_stops_when_its_owner_is_killed(root: Path) -> None:
    with python(OWNER, root) as owner:
        read_line(owner)
        assert processes(root)

        owner.kill()

        eventually(lambda: not processes(root), "the server should have ended with its owner")


def test_server_stops_with_its_owner_during_recovery(root: Path) -> None:
    with python(OWNER, root) as owner:
        read_line(owner)
        log, children = root / "postgres.log", processes(root) - {postmaster(root)}
        before = log.stat().st_size

        kill(*children)
        eventually(lambda: "reinitializing" in log.read_bytes()[before:].decode(), "the recovery")
        owner.kill()

        eventually(lambda: not processes(root), "the server should have ended with its owner")


def test_program_that_does_not_stop_the_server_leaves_no_process(root: Path) -> None:
    with python(OWNER, root) as owner:
        read_line(owner)
        tell(owner, "exit")

        assert owner.wait() == 0

        assert processes(root) == set()


def test_the_server_outlives_the_thread_that_called_start(root: Path) -> None:
    server = EmbeddedPostgres(root)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    first = postmaster(root)

    assert server.answers()
    assert postmaster(root) == first
    server.stop()


@pytest.mark.more
def test_acknowledged_writes_survive_killing_everything(root: Path) -> None:
    with python(OWNER, root) as owner:
        url = read_line(owner)
        run(url, "CREATE TABLE written (number bigint)")
        with python(WRITER, url, 0) as one, python(WRITER, url, 10**6) as two:
            acknowledged = {int(read_line(writer)) for _ in range(150) for writer in (one, two)}
            # Held still first: the owner would start a killed server again.
            owner.send_signal(signal.SIGSTOP)
            while alive := processes(root):
                kill(*alive)
            owner.kill()
            for writer in (one, two):
                assert writer.stdout is not None
                acknowledged |= {int(line) for line in writer.stdout.read().split()}
    assert (root / "postgres" / "postmaster.pid").exists()

    with EmbeddedPostgres(root) as server, psycopg.connect(server.url) as connection:
        kept = {row[0] for row in connection.execute("SELECT number FROM written")}

    assert acknowledged <= kept


def test_killed_server_is_restarted_by_its_owner(root: Path, said: list[str]) -> None:
    with EmbeddedPostgres(root, on_message=said.append) as server:
        run(server.url, "CREATE TABLE IF NOT EXISTS kept AS SELECT 1 AS one")
        first = postmaster(root)

        kill(first)

        eventually(lambda: postmaster(root) != first and server.answers(), "a new server")
        assert not Path(f"/proc/{first}").exists(), "a zombie was left"
        assert value(server.url, "SELECT one FROM kept") == "1"
        assert "Postgres ended with code -9; starting it again" in said


def test_unresponsive_server_is_killed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "GRACE", 0.2)
    server = EmbeddedPostgres(root)
    server.start()
    kill(postmaster(root), number=signal.SIGSTOP)

    server.stop()

    assert processes(root) == set()
    with EmbeddedPostgres(root) as again:
        assert again.answers()


# --- what others left behind -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["recycled", "zombie"])
def test_stale_pid_is_not_a_server(root: Path, state: str) -> None:
    account = launch.server_account()
    rights = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
    stranger = subprocess.Popen(["sleep", "60"], **rights)  # type: ignore[call-overload]
    if state == "zombie":
        stranger.send_signal(signal.SIGKILL)
        eventually(lambda: " Z " in Path(f"/proc/{stranger.pid}/stat").read_text(), "a zombie")
    record = root / "postgres" / "postmaster.pid"
    record.write_text(f"{stranger.pid}\n{record.parent}\n1700000000\n1\n\n127.0.0.1\n  1  1\nready   \n")
    if account:
        os.chown(record, account.pw_uid, account.pw_gid)

    with EmbeddedPostgres(root) as server:
        assert server.answers()

    assert stranger.poll() == (None if state == "recycled" else -signal.SIGKILL)
    stranger.kill()
    stranger.wait()


def test_server_without_an_owner_is_stopped_first(root: Path, said: list[str]) -> None:
    cluster_of(root).write_settings({"listen_addresses": "", "unix_socket_directories": "."})  # its last port may be taken
    orphan = cluster_of(root).spawn(find_binaries())
    eventually(lambda: (found := cluster_of(root).recorded()) and found.ready, "the orphan")

    with EmbeddedPostgres(root, on_message=said.append) as server:
        assert orphan.wait() == 0
        assert server.answers()

    assert "a server without an owner was still running" in said[0]


def test_leftover_backend_without_a_server_is_stopped_first(root: Path) -> None:
    with python(OWNER, root) as owner:
        url = read_line(owner)
        with psycopg.connect(url) as busy:
            server, backend = postmaster(root), busy.info.backend_pid
            # Computes and never waits, so it does not notice that its server is gone.
            busy.pgconn.send_query(b"DO $$ BEGIN LOOP END LOOP; END $$")
            owner.send_signal(signal.SIGSTOP)
            kill(server)
            owner.kill()
            busy.pgconn.finish()
    eventually(lambda: processes(root) == {backend}, "all but the busy one to end by themselves")

    with EmbeddedPostgres(root) as server:
        assert backend not in processes(root)
        assert server.answers()


@pytest.mark.more
def test_incomplete_cluster_is_never_used(tmp_path: Path) -> None:
    root = tmp_path / ".holdfast"
    with python(OWNER, root) as owner:
        eventually(lambda: list(root.glob("initdb-*/data/global")), "initdb at work")
        owner.kill()
    assert not (root / "postgres").exists()
    assert list(root.glob("initdb-*"))

    with EmbeddedPostgres(root, settings=THROWAWAY) as server:
        assert server.answers()

    eventually(lambda: not _at_work_in(root), "initdb to be gone")
    with EmbeddedPostgres(root, settings=THROWAWAY):
        assert not list(root.glob("initdb-*"))


def _at_work_in(root: Path) -> list[str]:
    """Command lines that name the folder; ours are not among them."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            lines.append((entry / "cmdline").read_bytes().decode(errors="replace"))
    return [line for line in lines if str(root / "initdb-") in line]
