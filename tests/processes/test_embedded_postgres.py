"""The embedded Postgres: its settings, its owner and its user. Real processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from embedded_owners import (
    CHILD_ENVIRONMENT,
    OWNER,
    eventually,
    folder_for_everybody,
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

from holdfast.database import embedded
from holdfast.database.binaries import find_binaries, wheel_places
from holdfast.database.embedded import THROWAWAY, EmbeddedPostgres
from holdfast.errors import DatabaseProblem, DataFolderInUse, UsageError, WrongMajorVersion

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc"),
]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="is about running as root")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return used_folder(tmp_path_factory)


@pytest.fixture
def root(folder: Path) -> Iterator[Path]:
    with nothing_left_behind(folder):
        yield folder


@pytest.fixture
def open_folder() -> Iterator[Path]:
    with folder_for_everybody() as folder:
        yield folder


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a server says; however long its start takes, it does not say so."""
    monkeypatch.setattr(embedded, "LONG_START", float("inf"))
    return []


# --- one server ------------------------------------------------------------------------------------------------------


@pytest.mark.more
def test_new_folder_gets_a_durable_database(tmp_path: Path) -> None:
    root = tmp_path / "new" / ".holdfast"

    with EmbeddedPostgres(root) as server:
        assert server.owner
        assert server.data_dir.parent == root
        assert server.url.startswith("postgresql://holdfast:")
        assert server.url.endswith(f"@127.0.0.1:{server.port}/holdfast")
        assert value(server.url, "SHOW fsync") == "on"
        assert value(server.url, "SHOW synchronous_commit") == "on"
        assert value(server.url, "SHOW max_connections") == "200"
        assert value(server.url, "SHOW password_encryption") == "scram-sha-256"

    assert processes(root) == set()
    assert sorted(path.name for path in root.iterdir()) == ["owner.lock", "password", "postgres", "postgres.log"]


@pytest.mark.more
def test_password_is_required_and_readable_by_its_owner_only(root: Path) -> None:
    with EmbeddedPostgres(root) as server:
        assert stat.S_IMODE((root / "password").stat().st_mode) == 0o600
        assert stat.S_IMODE(server.data_dir.stat().st_mode) == 0o700
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(f"postgresql://holdfast:guess@127.0.0.1:{server.port}/holdfast")
        with pytest.raises(psycopg.OperationalError, match="no password supplied"):
            psycopg.connect(f"postgresql://holdfast@127.0.0.1:{server.port}/holdfast")


def test_server_listens_on_loopback_only(root: Path) -> None:
    with EmbeddedPostgres(root) as server:
        tables = [Path("/proc/net/tcp").read_text(), Path("/proc/net/tcp6").read_text()]
        listening = [line.split()[1] for table in tables for line in table.splitlines() if line.split()[3] == "0A"]
        ours = [address for address in listening if address.endswith(f":{server.port:04X}")]

        assert ours == [f"0100007F:{server.port:04X}"]
        assert value(server.url, "SHOW unix_socket_directories") == ""


def test_settings_can_be_overridden_without_line_injection(root: Path) -> None:
    with EmbeddedPostgres(root, settings={**THROWAWAY, "work_mem": "5MB", "cluster_name": "it''s \\ 'x'"}) as server:
        assert value(server.url, "SHOW fsync") == "off"
        assert value(server.url, "SHOW work_mem") == "5MB"

    with EmbeddedPostgres(root) as server:
        assert value(server.url, "SHOW fsync") == "on", "what was not passed must not stay"

    with pytest.raises(UsageError):
        EmbeddedPostgres(root, settings={"work_mem": "5MB'\nfsync = 'off"}).start()


def test_busy_port_is_replaced_and_reported(root: Path, said: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = holder.getsockname()[1]
        with EmbeddedPostgres(root, port=taken, on_message=said.append) as server:
            assert server.port != taken
            assert server.answers()
            assert said == [f"port {taken} is taken; the database listens on {server.port}"]


def test_failed_start_names_the_cause_and_leaves_nothing(root: Path) -> None:
    with pytest.raises(DatabaseProblem, match="shared_buffers"):
        EmbeddedPostgres(root, settings={"shared_buffers": "plenty"}).start()
    assert processes(root) == set()

    (root / "password").rename(root / "kept")
    with pytest.raises(DatabaseProblem, match="needs the password"):
        EmbeddedPostgres(root).start()
    (root / "password").write_text("another")
    with pytest.raises(DatabaseProblem, match="refuses the password"):
        EmbeddedPostgres(root).start()
    assert processes(root) == set()

    (root / "kept").replace(root / "password")
    with EmbeddedPostgres(root) as server:
        assert server.answers()


def test_other_major_version_is_refused_and_unchanged(root: Path) -> None:
    other = find_binaries([wheel_places()[-1]])
    before = (root / "postgres" / "PG_VERSION").read_text().strip()
    assert str(other.major) != before

    with pytest.raises(WrongMajorVersion) as refused:
        EmbeddedPostgres(root, binaries=other).start()

    for part in (f"Postgres {before}", f"Postgres {other.major}", "HOLDFAST_DATABASE_URL", str(root), "pg_dump"):
        assert part in str(refused.value)
    with EmbeddedPostgres(root) as server:
        assert server.answers()


# --- owner and adopters ----------------------------------------------------------------------------------------------


def test_a_second_process_adopts_the_server_and_leaves_it_running(root: Path) -> None:
    with python(OWNER, root) as owner:
        url = read_line(owner)
        adopter = EmbeddedPostgres(root, port=1)

        adopter.start()

        assert (adopter.owner, adopter.url) == (False, url)
        adopter.stop()
        assert value(url, "SELECT 1") == "1"
        tell(owner, "stop")
        assert owner.wait() == 0
        assert processes(root) == set()


@pytest.mark.more
def test_concurrent_starts_share_one_server(root: Path) -> None:
    with contextlib.ExitStack() as stack:
        everyone = [stack.enter_context(python(OWNER, root)) for _ in range(4)]

        urls = {read_line(process) for process in everyone}

        assert len(urls) == 1
        for process in everyone:
            tell(process, "stop")
        assert [process.wait() for process in everyone] == [0, 0, 0, 0]


def test_owner_without_a_server_is_named(root: Path) -> None:
    with (root / "owner.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4242")
        lock.flush()

        with pytest.raises(DataFolderInUse, match=r"process 4242 owns .*HOLDFAST_DATA_DIR"):
            EmbeddedPostgres(root, patience=timedelta(seconds=0.1)).start()


def test_forked_child_neither_stops_the_server_nor_keeps_the_lock(root: Path) -> None:
    with python(OWNER, root) as owner:
        read_line(owner)
        tell(owner, "fork")
        child = int(read_line(owner))
        owner.kill()
        owner.wait()

        try:
            with EmbeddedPostgres(root) as successor:
                assert successor.owner
        finally:
            os.kill(child, signal.SIGKILL)


# --- users and folders -----------------------------------------------------------------------------------------------


@as_root
def test_root_needs_no_extra_user_and_changes_no_folder(root: Path, said: list[str]) -> None:
    assert stat.S_IMODE(root.parent.stat().st_mode) == 0o700
    parents = [root, *root.parents]
    modes, users = [path.stat().st_mode for path in parents], Path("/etc/passwd").read_bytes()

    with EmbeddedPostgres(root, on_message=said.append) as server:
        assert Path(f"/proc/{postmaster(root)}").stat().st_uid == pwd.getpwnam("nobody").pw_uid
        assert Path(f"/proc/{postmaster(root)}/cwd").samefile(server.data_dir)
        run(server.url, "CREATE TABLE IF NOT EXISTS big AS SELECT generate_series(1, 100000) AS n")
        run(server.url, "ALTER SYSTEM SET work_mem = '6MB'")
        run(server.url, "SELECT pg_reload_conf()")
        run(server.url, "DROP DATABASE IF EXISTS another")
        run(server.url, "CREATE DATABASE another")
        eventually(lambda: value(server.url, "SHOW work_mem") == "6MB", "the settings to be read again")

    assert [path.stat().st_mode for path in parents] == modes
    assert Path("/etc/passwd").read_bytes() == users
    assert said == []


@pytest.mark.more
@as_root
def test_accessible_folder_is_used_directly(open_folder: Path) -> None:
    with EmbeddedPostgres(open_folder / "data", settings=THROWAWAY) as server:
        assert value(server.url, "SHOW data_directory") == str(server.data_dir)


@pytest.mark.more
@as_root
def test_ordinary_user_with_a_closed_home_can_start(open_folder: Path) -> None:
    nobody, interpreter = pwd.getpwnam("nobody"), _interpreter_for_everybody()
    home = open_folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    script = f"""if 1:
        import os, psycopg
        from pathlib import Path
        from holdfast.database.embedded import EmbeddedPostgres
        assert os.getuid() != 0
        for attempt in range(2):
            with EmbeddedPostgres(Path({str(home)!r}) / ".holdfast") as server:
                with psycopg.connect(server.url) as connection:
                    print(connection.execute("SHOW data_directory").fetchone()[0])
    """

    answer = subprocess.run(
        [interpreter, "-c", script],
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        env=CHILD_ENVIRONMENT,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )

    assert answer.stdout.split() == [str(home / ".holdfast" / "postgres")] * 2, answer.stderr
    assert processes(home / ".holdfast") == set()


def _interpreter_for_everybody() -> str:
    """This interpreter may lie in root's home; the system's does as well if it is of the same version."""
    nobody = pwd.getpwnam("nobody")
    for candidate in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            program = [candidate, "-c", "import psycopg"]
            subprocess.run(program, user=nobody.pw_uid, env=CHILD_ENVIRONMENT, cwd="/", check=True, capture_output=True)
            return candidate
    pytest.skip("no Python here that an ordinary user can run")
