"""F-28, F-29, F-30, F-40: a standby takes over, with everything that was acknowledged or without the last of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from proof.processes.fork_server import ForkServer, until
from proof.processes.handlers import FOLDER
from proof.processes.postgres import OwnPostgres
from tests.factories import start_worker

from holdfast.database.cluster import ROLE
from holdfast.database.pool import Link, connect
from holdfast.errors import ClaimLost
from holdfast.jobs.claim import claim_by_id
from holdfast.jobs.enqueue import enqueue, enqueue_sync
from holdfast.jobs.finish import finish
from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import decide

pytestmark = pytest.mark.processes

PATIENCE = 120.0
RECEIVER = "SELECT pid FROM pg_stat_wal_receiver"
FOLLOWS = "SELECT count(*) > 0 FROM pg_stat_replication WHERE state = 'streaming' AND replay_lsn >= %s::pg_lsn"


@dataclass(slots=True)
class Pair:
    """A server and the standby that follows it."""

    primary: OwnPostgres
    standby: OwnPostgres

    @property
    def url(self) -> str:
        """Whichever of the two takes writes."""
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        password = self.primary.cluster.password()
        return f"postgresql://{ROLE}:{password}@{hosts}/holdfast?target_session_attrs=read-write&sslmode=disable"

    def wait_until_it_follows(self) -> None:
        """All that was committed so far is on the standby."""
        with psycopg.connect(self.primary.url, autocommit=True) as conn:
            reached = conn.execute("SELECT pg_current_wal_lsn()::text").fetchone()
            until(lambda: conn.execute(FOLLOWS, reached).fetchone() == (True,), PATIENCE)

    def fail_over(self) -> None:
        """The primary is gone, the standby takes its place."""
        self.primary.end(signal.SIGQUIT)
        with psycopg.connect(self.standby.url, autocommit=True) as conn:
            assert conn.execute("SELECT pg_promote(true, 60)").fetchone() == (True,)

    def stop_following(self) -> None:
        """From here on the standby misses everything."""
        with psycopg.connect(self.standby.url, autocommit=True) as conn:
            conn.execute("ALTER SYSTEM SET primary_conninfo = ''")
            conn.execute("SELECT pg_reload_conf()")
            until(lambda: conn.execute(RECEIVER).fetchone() is None, PATIENCE)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with OwnPostgres(tmp_path / "primary", settings={"hot_standby": "on", "synchronous_commit": "remote_apply"}) as primary:
        backup = Path(primary.binaries.program("pg_basebackup"))
        if not backup.exists():
            pytest.skip(f"{primary.binaries.folder} has no pg_basebackup to make a standby with")
        standby = a_standby_of(primary, backup, tmp_path / "standby")
        standby.start()
        try:
            yield Pair(primary, standby)
        finally:
            standby.close()


def a_standby_of(primary: OwnPostgres, backup: Path, folder: Path) -> OwnPostgres:
    password = primary.cluster.password() or ""
    follow = f"host=127.0.0.1 port={primary.port} user={ROLE} password={password}"
    standby = OwnPostgres(folder, settings={"hot_standby": "on", "primary_conninfo": follow})
    shutil.copy(primary.cluster.root / "password", folder / "password")
    address = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", ROLE, "-c", "fast"]
    subprocess.run(
        [backup, *address, "-D", standby.cluster.data, "-R"], env={"PGPASSWORD": password, "PATH": os.defpath}, check=True
    )
    account = standby.cluster.account
    if account is not None:
        for path in [standby.cluster.data, *standby.cluster.data.rglob("*")]:
            os.chown(path, account.pw_uid, account.pw_gid)
    return standby


@pytest.fixture
def forks() -> Iterator[ForkServer]:
    with ForkServer() as forks:
        yield forks


def count(url: str, statement: str) -> Any:
    with psycopg.connect(url, autocommit=True) as conn:
        row = conn.execute(statement).fetchone()
    return None if row is None else row[0]


@pytest.mark.more
def test_f_28_a_failover_to_a_synchronous_standby_loses_nothing(pair: Pair, forks: ForkServer, tmp_path: Path):
    with psycopg.connect(pair.primary.url, autocommit=True) as conn:
        conn.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        conn.execute("SELECT pg_reload_conf()")
        until(lambda: conn.execute("SHOW synchronous_standby_names").fetchone() == ("*",), PATIENCE)
        acknowledged = [enqueue_sync(conn, NewJob("proof.publish", {"n": n}, max_crashes=50)).id for n in range(20)]
    forks.start(pair.url, tmp_path, lease=5.0, environment={FOLDER: str(tmp_path)})
    until(lambda: count(pair.primary.url, "SELECT count(*) FROM holdfast.history") or None, PATIENCE)

    pair.fail_over()

    left = "SELECT count(*) FROM holdfast.jobs WHERE state <> 'completed'"
    until(lambda: count(pair.standby.url, left) == 0, PATIENCE)
    assert count(pair.standby.url, "SELECT count(*) FROM holdfast.jobs") == len(acknowledged)
    assert count(pair.standby.url, "SELECT count(*) FROM proof.published") == len(acknowledged)
    assert count(pair.standby.url, "SELECT count(*) FROM holdfast.history WHERE move = 'complete'") == len(acknowledged)


@pytest.mark.more
async def test_f_29_lost_tail_never_accepts_a_stale_attempt(pair: Pair):
    """The claim is lost with the old primary, and its number is given out again. Its id is not: the fence holds."""
    async with await psycopg.AsyncConnection.connect(pair.primary.url, autocommit=True) as conn:
        await conn.execute("SET synchronous_commit = local")
        worker = await start_worker(conn)
        job = (await enqueue(conn, NewJob("proof.quick", {"n": 1}))).id
        pair.wait_until_it_follows()
        pair.stop_following()
        stale = await claim_by_id(conn, worker, job)
    assert stale is not None
    pair.fail_over()

    async with await psycopg.AsyncConnection.connect(pair.standby.url, autocommit=True) as conn:
        current = await claim_by_id(conn, await start_worker(conn), job)
        assert current is not None
        assert current.attempt_no == stale.attempt_no, "the number is the same, so it must not be the fence"
        assert current.attempt_id != stale.attempt_id

        with pytest.raises(ClaimLost):
            await finish(conn, stale, decide(stale, "stale"))
        await finish(conn, current, decide(current, "current"))

        row = await (await conn.execute("SELECT state, result FROM holdfast.jobs WHERE id = %s", [job])).fetchone()
        assert row == ("completed", "current")


@pytest.mark.more
async def test_f_30_old_primary_is_refused_by_processes_that_saw_its_successor(pair: Pair):
    """It takes writes, and the address names it first: what is written there would be lost."""
    pair.wait_until_it_follows()
    before = await connect(pair.url)
    assert before.info.port == pair.primary.port
    await before.close()
    pair.fail_over()
    after = await connect(pair.url)
    assert after.info.port == pair.standby.port
    await after.close()

    pair.primary.start()

    with psycopg.connect(pair.url, autocommit=True) as anybody:
        assert anybody.info.port == pair.primary.port, "the old one is back, and takes writes"
    with pytest.raises(psycopg.OperationalError, match="timeline 1, and was replaced by one on 2"):
        await connect(pair.url)
    link = Link(pair.url)
    with pytest.raises(psycopg.OperationalError, match="was replaced"):
        async with link:
            pass


@pytest.mark.more
def test_f_40_a_worker_does_not_start_on_a_standby(pair: Pair, forks: ForkServer, tmp_path: Path):
    pair.wait_until_it_follows()

    worker = forks.start(pair.standby.url, tmp_path)

    assert worker.wait(PATIENCE) != 0
    assert "read-only" in (tmp_path / "log").read_text()


SCRIPT = Path(__file__).resolve().parents[2] / "deploy/scripts/failover.sh"


async def test_f_29_promote_script_reuses_no_number(pair: Pair) -> None:
    """The lost tail: an enqueue that was acknowledged and not replicated is gone; its id and fence token stay unused."""
    path = f"{pair.primary.binaries.folder}{os.pathsep}{os.environ['PATH']}"

    def fail_over() -> subprocess.CompletedProcess[str]:
        words = [SCRIPT, pair.primary.url, pair.standby.url]
        return subprocess.run(words, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False)

    async with await connect(pair.primary.url) as conn:
        kept = (await enqueue(conn, NewJob("kept"))).id
    pair.wait_until_it_follows()
    pair.stop_following()
    async with await connect(pair.primary.url) as conn:
        lost = (await enqueue(conn, NewJob("lost"))).id
        claim = await claim_by_id(conn, await start_worker(conn), lost)
    assert claim is not None

    refused = fail_over()
    assert (refused.returncode, "the primary still answers; stop it" in refused.stderr) == (1, True)
    pair.primary.end(signal.SIGQUIT)
    done = fail_over()

    assert done.returncode == 0, done.stderr
    assert "promoted; the last transaction that it has is of " in done.stdout
    async with await connect(pair.standby.url) as conn:
        assert count(pair.standby.url, "SELECT array_agg(id) FROM holdfast.jobs") == [kept]
        successor = await claim_by_id(conn, await start_worker(conn), (await enqueue(conn, NewJob("next"))).id)
        assert successor is not None
        assert (successor.id > lost, successor.fence_token > claim.fence_token) == (True, True)
        with pytest.raises(ClaimLost):
            await finish(conn, claim, decide(claim, None))
