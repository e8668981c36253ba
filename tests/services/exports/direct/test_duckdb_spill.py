"""Where DuckDB spills: each sandbox to a folder of its own, which no other reads, and which goes with it."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import duckdb
import pytest

from holdfast.engines.duckdb import spill
from holdfast.engines.duckdb.engine import DuckDbEngine, open_duckdb
from holdfast.engines.duckdb.options import DuckDbOptions
from holdfast.engines.duckdb.sandbox import Sandbox, open_sandbox
from holdfast.engines.duckdb.spill import PREFIX
from holdfast.engines.port import EngineUnavailable, Query, QueryRefused
from holdfast.engines.settings import EngineSettings as Settings
from holdfast.errors import InvalidSetting, UsageError

# More than the memory below holds, so it goes to disk; every row says whose it is.
ROWS = 1_000_000
SORTED = "SELECT hash(i) AS k, {mine}::BIGINT AS whose FROM range({rows}) t(i) ORDER BY k"


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


@pytest.fixture
def two(scratch: Path) -> Iterator[tuple[Sandbox, Sandbox]]:
    """Two that are open at the same time, with little memory."""
    with ExitStack() as stack:
        one, other = (stack.enter_context(closing(open_sandbox(memory="12MB", threads=1, scratch=scratch))) for _ in range(2))
        yield one, other


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.more
def test_two_that_spill_at_the_same_time_have_each_their_own_rows(two: tuple[Sandbox, Sandbox], scratch: Path):
    readers = [
        sandbox.database.sql(SORTED.format(mine=mine, rows=ROWS)).to_arrow_reader(10_000) for mine, sandbox in enumerate(two)
    ]
    batches = [[reader.read_next_batch()] for reader in readers]  # both have sorted, and have more to read

    assert two[0].spill.path != two[1].spill.path
    assert all(any(name.startswith("duckdb_temp") for name in names_in(sandbox.spill.path)) for sandbox in two)
    for mine, reader in enumerate(readers):
        batches[mine] += list(reader)
        assert sum(batch.num_rows for batch in batches[mine]) == ROWS
        assert {whose for batch in batches[mine] for whose in batch.column("whose").unique().to_pylist()} == {mine}


# Some 110 MB.
LONG = "SELECT hash(i) AS k, repeat('x', 100) || i AS long FROM range(1000000) t(i) ORDER BY k"


@pytest.mark.more
async def test_a_query_that_spills_more_than_it_may_fails_and_says_what_to_set(scratch: Path):
    async def exported(**limits: str) -> int:
        engine = DuckDbEngine(partial(open_sandbox, memory="32MB", threads=1, scratch=scratch, **limits))
        async with engine.stream(Query(LONG, "tag")) as rows:
            return sum([batch.num_rows async for batch in rows.batches()])

    assert await exported() == 1_000_000

    with pytest.raises(QueryRefused, match="more disk than HOLDFAST_DUCKDB_MAX_SPILL allows; raise it"):
        await exported(max_spill="1MB")
    assert names_in(scratch) == set()


async def test_the_settings_say_how_much_may_be_spilled(scratch: Path):
    engine = open_duckdb(DuckDbOptions.from_settings(Settings(duckdb_max_spill="64MiB", scratch_dir=scratch)))
    with closing(engine._opening()) as sandbox:
        found = sandbox.database.execute("SELECT current_setting('max_temp_directory_size')").fetchone()

    assert found == ("64.0 MiB",)
    with pytest.raises(InvalidSetting, match="HOLDFAST_DUCKDB_MAX_SPILL"):
        Settings(duckdb_max_spill="a lot")


def test_a_folder_is_for_its_user_alone_and_goes_with_its_sandbox(scratch: Path):
    sandbox = open_sandbox(scratch=scratch)
    folder = sandbox.spill.path
    (folder / "duckdb_temp_storage_DEFAULT-0.tmp").write_bytes(b"rows")

    assert sandbox.database.execute("SELECT current_setting('temp_directory')").fetchone() == (str(folder),)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    sandbox.close()
    sandbox.close()  # twice is once

    assert names_in(scratch) == set()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM glob('{scratch}/*')",
        "SELECT * FROM glob('{scratch}/*/*')",
        "SELECT * FROM glob('{mine}/../*')",
        "SELECT * FROM glob('{mine}*/*')",
        "SELECT * FROM read_text('{other}/rows')",
        "SELECT * FROM read_text('{mine}/../{name}/rows')",
        "SELECT * FROM read_blob('{other}/*')",
    ],
)
def test_nobody_reads_or_lists_what_another_spills(two: tuple[Sandbox, Sandbox], scratch: Path, sql: str):
    mine, other = (sandbox.spill.path for sandbox in two)
    (other / "rows").write_text("of another export")

    with pytest.raises(duckdb.PermissionException):
        two[0].database.execute(sql.format(scratch=scratch, mine=mine, other=other, name=other.name))


def test_a_folder_of_data_in_which_exports_would_spill_is_refused(tmp_path: Path, scratch: Path):
    with pytest.raises(UsageError, match="HOLDFAST_SCRATCH_DIR"):
        open_duckdb(DuckDbOptions.from_settings(Settings(duckdb_dirs=str(tmp_path), scratch_dir=scratch)))

    assert not scratch.exists()


# ---------------------------------------------------------------------------------------------------------------------
# What dead processes left
# ---------------------------------------------------------------------------------------------------------------------

CHILD = """
import sys, time
from pathlib import Path
from holdfast.engines.duckdb.sandbox import open_sandbox
sandbox = open_sandbox(scratch=Path(sys.argv[1]))
(sandbox.spill.path / "duckdb_temp_storage_DEFAULT-0.tmp").write_bytes(b"rows")
print(sandbox.spill.path, flush=True)
sys.stdin.read()
"""


def test_the_next_one_removes_what_a_killed_process_left_and_nothing_of_a_living_one(scratch: Path):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(scratch)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        left = Path(child.stdout.readline().strip())
        with closing(open_sandbox(scratch=scratch)) as while_it_lives:
            assert left.is_dir()
            assert names_in(scratch) == {left.name, while_it_lives.spill.path.name}
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert left.is_dir()

    with closing(open_sandbox(scratch=scratch)) as after_its_death:
        assert names_in(scratch) == {after_its_death.spill.path.name}


def test_what_is_not_a_dead_folder_of_ours_stays(scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    elsewhere, files = tmp_path / "elsewhere", scratch / "holdfast-files"
    elsewhere.mkdir()
    files.mkdir(parents=True)
    (scratch / f"{PREFIX}link").symlink_to(elsewhere)
    (scratch / f"{PREFIX}file").write_text("x")
    closed = scratch / f"{PREFIX}closed"
    closed.mkdir(mode=0)
    before = names_in(scratch)

    open_sandbox(scratch=scratch).close()
    assert names_in(scratch) - {closed.name} == before - {closed.name}  # root may open it all the same
    assert elsewhere.is_dir()

    foreign = scratch / f"{PREFIX}foreign"
    foreign.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    open_sandbox(scratch=scratch).close()
    assert foreign.is_dir()


def test_a_folder_that_was_swept_before_it_was_locked_is_made_again(scratch: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []
    real = fcntl.flock

    def swept(lock: int, how: int) -> None:
        made.extend(names_in(scratch))
        if len(made) == 1:
            (scratch / made[0]).rmdir()
        real(lock, how)

    monkeypatch.setattr(spill.fcntl, "flock", swept)

    with closing(open_sandbox(scratch=scratch)) as sandbox:
        assert made == [made[0], sandbox.spill.path.name]
        assert sandbox.spill.path.is_dir()


def test_a_scratch_that_cannot_be_written_says_what_to_set(tmp_path: Path):
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(EngineUnavailable, match="HOLDFAST_SCRATCH_DIR"):
        open_sandbox(scratch=tmp_path / "file" / "scratch")
