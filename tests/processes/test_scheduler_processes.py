"""Three real schedulers on one database: every tick once, and SIGKILL, SIGSTOP and SIGTERM at the worst moments.

No lease ends by itself, however slow the machine is: a test that needs one to be over moves the row of the loop.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

import programs
from holdfast import catalog
from holdfast.settings import settings
from programs import Started

pytestmark = pytest.mark.processes

TABLES = """
    CREATE TABLE public.witness (id serial PRIMARY KEY, loop text, key text, term bigint, pid int);
    CREATE TABLE public.items (id int PRIMARY KEY, done boolean NOT NULL DEFAULT false);
    CREATE TABLE public.gates (name text PRIMARY KEY);
"""
WRITE = "INSERT INTO public.witness (loop, key, term, pid) VALUES (%s, %s, %s, %s)"

TICKING = """
import os
from datetime import timedelta
from holdfast import Pass, reconciler

@reconciler("ticking", every=timedelta(milliseconds=500), first_run="at_once", lease=timedelta(minutes=10))
async def ticking(ctx: Pass) -> list[str]:
    return [ctx.due_at.isoformat()]

@ticking.act
async def note(ctx: Pass, key: str) -> None:
    async with ctx.transaction() as conn:
        await conn.execute("INSERT INTO public.witness (loop, key, term, pid) VALUES (%s, %s, %s, %s)",
                           [ctx.name, key, ctx.term, os.getpid()])
"""

# 500 things are due. In the first term the pass never gets beyond the 250th.
MANY = """
import asyncio, os
from datetime import timedelta
from holdfast import Pass, reconciler

@reconciler("many", every=timedelta(hours=1), first_run="at_once", lease=timedelta(minutes=10))
async def many(ctx: Pass) -> list[int]:
    async with ctx.connection() as conn:
        found = await conn.execute("SELECT id FROM public.items WHERE NOT done ORDER BY id")
        return [row[0] for row in await found.fetchall()]

@many.act
async def do(ctx: Pass, key: int) -> None:
    if ctx.term == 1 and key == 250:
        await asyncio.Event().wait()
    async with ctx.transaction() as conn:
        await conn.execute("UPDATE public.items SET done = true WHERE id = %s", [key])
        await conn.execute("INSERT INTO public.witness (loop, key, term, pid) VALUES (%s, %s, %s, %s)",
                           [ctx.name, key, ctx.term, os.getpid()])
"""

# The first term comes to its write only when the gate is open, in a thread that does not look left or right.
FROZEN = """
import os, time
from datetime import timedelta
import psycopg
from holdfast import SyncPass, TermLost, reconciler

INSERT = "INSERT INTO public.witness (loop, key, term, pid) VALUES (%s, %s, %s, %s)"

@reconciler("frozen", every=timedelta(hours=1), first_run="at_once", lease=timedelta(minutes=10))
def frozen(ctx: SyncPass) -> list[str]:
    return ["key"]

@frozen.act
def write(ctx: SyncPass, key: str) -> None:
    with psycopg.connect(os.environ["HOLDFAST_DATABASE_URL"], autocommit=True) as conn:
        if ctx.term == 1:
            conn.execute(INSERT, [ctx.name, "about to write", ctx.term, os.getpid()])
            while conn.execute("SELECT 1 FROM public.gates").fetchone() is None:
                time.sleep(0.02)
        try:
            with conn.transaction():
                ctx.write(conn)
                conn.execute(INSERT, [ctx.name, "written", ctx.term, os.getpid()])
        except TermLost:
            conn.execute(INSERT, [ctx.name, "refused", ctx.term, os.getpid()])
            raise
"""

# As TICKING, but the first term comes to its write only when the gate is open.
GATED = """
import asyncio, os
from datetime import timedelta
from holdfast import Pass, reconciler

INSERT = "INSERT INTO public.witness (loop, key, term, pid) VALUES (%s, %s, %s, %s)"

@reconciler("gated", every=timedelta(milliseconds=500), first_run="at_once", lease=timedelta(minutes=10))
async def gated(ctx: Pass) -> list[str]:
    return [ctx.due_at.isoformat()]

@gated.act
async def note(ctx: Pass, key: str) -> None:
    if ctx.term == 1:
        async with ctx.connection() as conn:
            await conn.execute(INSERT, [ctx.name, "about to write", ctx.term, os.getpid()])
            while await (await conn.execute("SELECT 1 FROM public.gates")).fetchone() is None:
                await asyncio.sleep(0.02)
    async with ctx.transaction() as conn:
        await conn.execute(INSERT, [ctx.name, key, ctx.term, os.getpid()])
"""

MODULES = {"ticking": TICKING, "many": MANY, "frozen": FROZEN, "gated": GATED}


@pytest.fixture
def conn(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as opened:
        opened.execute(TABLES)
        yield opened


@pytest.fixture
def start(tmp_path: Path, database: str, conn: psycopg.Connection[Any]) -> Iterator[Callable[..., Started]]:
    """Starts schedulers on the test's own database; whatever is left of them is killed afterwards."""
    for name, text in MODULES.items():
        (tmp_path / f"loops_{name}.py").write_text(text)
    started: list[Started] = []

    def run(module: str, **environment: str) -> Started:
        own = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        path = os.pathsep.join([str(tmp_path), own.get("PYTHONPATH", "")])
        settings = {"HOLDFAST_SCHEDULER_LOOK_SECONDS": "0.2", "HOLDFAST_DATABASE_URL": database, **environment}
        with (tmp_path / f"log.{len(started)}").open("w") as log:
            process = programs.start(
                *("scheduler", "run", "--import", f"loops_{module}", "--log-format", "json"),
                env={**own, "PYTHONPATH": path, **settings},
                folder=tmp_path,
                out=log,
                err=log,
            )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def until(reached: Callable[[], Any], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def column(conn: psycopg.Connection[Any], statement: str, *parameters: Any) -> list[Any]:
    return [row[0] for row in conn.execute(statement, parameters).fetchall()]


def holder_of(conn: psycopg.Connection[Any], name: str) -> int:
    """The process id of whoever runs this loop."""
    (holder,) = column(conn, "SELECT holder FROM holdfast.loops WHERE name = %s", name)
    return int(holder.split(":")[-2])


def end_lease(conn: psycopg.Connection[Any], name: str) -> None:
    """The holder of this loop is dead or stopped; others may take it now."""
    over = "UPDATE holdfast.loops SET held_until = clock_timestamp() WHERE name = %s AND held_until IS NOT NULL"
    ended = conn.execute(over, [name])
    assert ended.rowcount == 1, "nobody held it"


def pause(conn: psycopg.Connection[Any], name: str) -> None:
    """Returns when nobody runs the loop, and nobody will."""
    conn.execute("UPDATE holdfast.loops SET paused_at = clock_timestamp() WHERE name = %s", [name])
    until(lambda: column(conn, "SELECT 1 FROM holdfast.loops WHERE name = %s AND held_until IS NULL", name))


@pytest.mark.more
def test_f_59_three_schedulers_run_every_tick_exactly_once(
    conn: psycopg.Connection[Any], start: Callable[..., Started]
) -> None:
    """S-20, K-70: three replicas, each with every loop; no tick twice, every term once, all ticks on one grid."""
    for _ in range(3):
        start("ticking")
    until(lambda: column(conn, "SELECT count(*) FROM public.witness")[0] >= 30)

    keys = column(conn, "SELECT key FROM public.witness ORDER BY id")
    assert [key for key, count in Counter(keys).items() if count > 1] == []
    terms = column(conn, "SELECT term FROM public.witness ORDER BY id")
    assert all(before < after for before, after in pairwise(terms))
    off_the_grid = "SELECT count(*) FROM holdfast.loop_runs WHERE name = 'ticking' AND mod(extract(epoch FROM due_at - ("
    off_the_grid += "SELECT min(due_at) FROM holdfast.loop_runs WHERE name = 'ticking')), 0.5) <> 0"
    assert column(conn, off_the_grid) == [0]


@pytest.mark.more
def test_f_60_tick_of_a_killed_holder_runs_once_in_the_next_process(
    conn: psycopg.Connection[Any], start: Callable[..., Started]
) -> None:
    """500 due; kill -9 in the middle; the rest is done after the lease, under the next term."""
    conn.execute("INSERT INTO public.items (id) SELECT generate_series(1, 500)")
    processes = {process.pid: process for process in (start("many") for _ in range(3))}
    until(lambda: column(conn, "SELECT count(*) FROM public.witness")[0] >= 249)
    leader = holder_of(conn, "many")

    processes[leader].kill()
    processes[leader].wait()
    end_lease(conn, "many")
    until(lambda: column(conn, "SELECT count(*) FROM public.items WHERE NOT done") == [0])

    assert sorted(map(int, column(conn, "SELECT key FROM public.witness"))) == list(range(1, 501)), "each once"
    assert conn.execute("SELECT term, count(*) FROM public.witness GROUP BY term ORDER BY term").fetchall() == [
        (1, 249),
        (2, 251),
    ]
    until(
        lambda: (
            column(conn, "SELECT outcome FROM holdfast.loop_runs WHERE name = 'many' ORDER BY id") == ["abandoned", "success"]
        )
    )


@pytest.mark.more
def test_f_14_resumed_holder_cannot_write(conn: psycopg.Connection[Any], start: Callable[..., Started], tmp_path: Path) -> None:
    """SIGSTOP for longer than the lease, then SIGCONT: somebody else has run the tick, and the write is refused."""
    processes = {process.pid: (process, number) for number, process in enumerate([start("frozen"), start("frozen")])}
    until(lambda: column(conn, "SELECT 1 FROM public.witness WHERE key = 'about to write'"))
    leader, number = processes[holder_of(conn, "frozen")]

    leader.send_signal(signal.SIGSTOP)
    end_lease(conn, "frozen")
    until(lambda: column(conn, "SELECT 1 FROM holdfast.loop_runs WHERE name = 'frozen' AND term = 2 AND outcome = 'success'"))
    conn.execute("INSERT INTO public.gates VALUES ('open')")
    before = conn.execute("SELECT l::text FROM holdfast.loops l WHERE name = 'frozen'").fetchall()
    leader.send_signal(signal.SIGCONT)
    until(lambda: column(conn, "SELECT 1 FROM public.witness WHERE key = 'refused'"))
    until(lambda: '"loop_term_lost"' in (tmp_path / f"log.{number}").read_text())

    written = conn.execute("SELECT term, pid FROM public.witness WHERE key = 'written'").fetchall()
    assert [(term, pid == leader.pid) for term, pid in written] == [(2, False)]
    assert conn.execute("SELECT l::text FROM holdfast.loops l WHERE name = 'frozen'").fetchall() == before
    assert column(conn, "SELECT outcome FROM holdfast.loop_runs WHERE name = 'frozen' ORDER BY id") == ["abandoned", "success"]
    assert leader.poll() is None, "it goes on"


def test_f_14_resumed_process_runs_later_ticks(conn: psycopg.Connection[Any], start: Callable[..., Started]) -> None:
    """It is stopped in the middle of a tick and loses it; the other one runs that tick and later ones, and ends between two."""
    first = start("gated")
    until(lambda: column(conn, "SELECT 1 FROM public.witness WHERE key = 'about to write'"))
    first.send_signal(signal.SIGSTOP)
    second = start("gated")
    end_lease(conn, "gated")
    until(lambda: column(conn, "SELECT count(*) FROM public.witness WHERE pid = %s", second.pid)[0] >= 2)

    pause(conn, "gated")
    second.kill()
    second.wait()
    (seen,) = column(conn, "SELECT max(id) FROM public.witness")
    conn.execute("INSERT INTO public.gates VALUES ('open')")
    conn.execute("UPDATE holdfast.loops SET paused_at = NULL WHERE name = 'gated'")
    first.send_signal(signal.SIGCONT)

    until(lambda: column(conn, "SELECT 1 FROM public.witness WHERE pid = %s AND id > %s", first.pid, seen))
    assert column(conn, "SELECT key FROM public.witness WHERE term = 1") == ["about to write"]
    assert [key for key, count in Counter(column(conn, "SELECT key FROM public.witness")).items() if count > 1] == []


# A loop that begins at once while what it keeps is missing would be the first to come to the crash point.
PAUSED = """
    INSERT INTO holdfast.loops (name, every, next_due_at, paused_at)
    SELECT name, interval '1 day', clock_timestamp() + interval '1 day', clock_timestamp() FROM unnest(%s::text[]) AS name
"""


@pytest.mark.parametrize("point", ["sched.after_read", "sched.in_tx", "sched.after_commit"])
def test_f_59_scheduler_killed_while_taking_a_tick_is_replaced(
    conn: psycopg.Connection[Any], start: Callable[..., Started], point: str
) -> None:
    conn.execute(PAUSED, [[loop.name for loop in catalog.loops(settings())]])
    doomed = start("ticking", HOLDFAST_CRASH_AT=point)
    assert doomed.wait(120) == -signal.SIGKILL
    left = conn.execute("SELECT term, holder IS NOT NULL FROM holdfast.loops WHERE name = 'ticking'").fetchone()
    assert left == ((1, True) if point == "sched.after_commit" else (0, False)), "in one transaction, or not at all"

    if point == "sched.after_commit":
        end_lease(conn, "ticking")
    start("ticking")
    until(lambda: column(conn, "SELECT count(*) FROM public.witness")[0] >= 3)

    assert [key for key, count in Counter(column(conn, "SELECT key FROM public.witness")).items() if count > 1] == []
    if point == "sched.after_commit":
        first = "SELECT outcome, tries, due_at FROM holdfast.loop_runs WHERE name = 'ticking' ORDER BY id LIMIT 2"
        abandoned, resumed = conn.execute(first).fetchall()
        assert (abandoned[0], resumed[0], resumed[1]) == ("abandoned", "success", 2)
        assert abandoned[2] == resumed[2], "the same tick"


@pytest.mark.more
def test_sigterm_releases_the_running_pass_and_exits_with_0(
    conn: psycopg.Connection[Any], start: Callable[..., Started]
) -> None:
    """S-08: a pass gets its grace; what does not end is begun by another at once, and is no failure."""
    conn.execute("INSERT INTO public.items (id) SELECT generate_series(249, 251)")
    leader = start("many", HOLDFAST_GRACE_SECONDS="0.2")
    until(lambda: column(conn, "SELECT count(*) FROM public.witness") == [1])

    leader.terminate()
    assert leader.wait(120) == 0
    assert conn.execute("SELECT last_outcome, failures FROM holdfast.loops WHERE name = 'many'").fetchone() == (
        "interrupted",
        0,
    )

    start("many")
    until(lambda: column(conn, "SELECT count(*) FROM public.items WHERE NOT done") == [0])


def test_sigterm_ends_a_process_with_a_hanging_thread(conn: psycopg.Connection[Any], start: Callable[..., Started]) -> None:
    """S-10: a plain function that never returns keeps neither the others nor the end of the process waiting."""
    stuck = start("frozen", HOLDFAST_GRACE_SECONDS="0.2")
    until(lambda: column(conn, "SELECT 1 FROM public.witness WHERE key = 'about to write'"))

    stuck.terminate()

    assert stuck.wait(60) == 0
    assert column(conn, "SELECT outcome FROM holdfast.loop_runs WHERE name = 'frozen'") == ["interrupted"]
