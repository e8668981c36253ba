"""What users write is checked by their type checker: enqueues with the plugin that we ship, and reconcilers with their keys."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAD = """
from typing import Any
from holdfast import Context, job

@job("invoice.render")
async def render(ctx: Context, invoice_id: int, colour: str = "red") -> None: ...

@job("invoice.count")
def count(year: int) -> int:
    return year

async def main(session: Any) -> None:
"""

RIGHT = """
    await render.enqueue(invoice_id=7, tx=session)
    await render.enqueue(7, "blue", priority=3)
    await count.enqueue(year=2026)
    count.enqueue_sync(year=2026, tx=session)
    render.new(invoice_id=1)
    await render.using(tx=session).enqueue(invoice_id=7)
"""

WRONG = {
    'await render.enqueue(invoice_id="seven")': "arg-type",
    "await render.enqueue(invoice=7)": "call-arg",
    "await render.enqueue()": "call-arg",
    'await render.enqueue(invoice_id=7, priority="high")': "arg-type",
    "await render.enqueue(invoice_id=7, prio=1)": "call-arg",
    'render.new(invoice_id="seven")': "arg-type",
    "count.enqueue_sync(tx=session)": "call-arg",
}

RECONCILERS = """
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

from holdfast import Loop, Pass, Result, SyncPass, reconciler

@reconciler("a", every=timedelta(minutes=5))
async def a(ctx: Pass) -> list[int]:
    return [1]

@a.act
async def act_on_a(ctx: Pass, key: int) -> None:
    async with ctx.transaction() as conn:
        await conn.execute("SELECT %s", [key])

@reconciler("b", cron="0 2 * * *", timezone="Europe/Zurich")
async def b(ctx: Pass) -> AsyncIterator[str]:
    yield "k"

@reconciler("c", every=timedelta(minutes=5))
def c(ctx: SyncPass) -> Iterator[str]:
    yield "k"

@c.act
def act_on_c(ctx: SyncPass, key: str) -> None:
    with ctx.transaction() as conn:
        conn.execute("SELECT %s", [key])

async def sweep(ctx: Pass) -> Result:
    return Result(items=1)

Loop("sweep", sweep, every=timedelta(seconds=5))
reveal_type(a)
reveal_type(b)
reveal_type(c)
reconciler("d", every=5)
reconciler("e", evry=timedelta(minutes=5))

@a.act
async def wrong_key(ctx: Pass, key: bytes) -> None: ...

@reconciler("f", every=timedelta(minutes=5))
async def f(ctx: Pass) -> list[float]:
    return []
"""

CONFIG = "[mypy]\nstrict = True\nplugins = holdfast.mypy_plugin\ncache_dir = cache\nfollow_imports = silent\n"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What mypy says to all of it: once, because most of its time goes into our own types."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "enqueues.py").write_text(HEAD + RIGHT + "".join(f"    {call}\n" for call in WRONG))
    (folder / "reconcilers.py").write_text(RECONCILERS)
    (folder / "mypy.ini").write_text(CONFIG)
    command = [sys.executable, "-m", "mypy", "enqueues.py", "reconcilers.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def errors_in(said: str, file: str) -> dict[int, str]:
    """The errors of one file by their line."""
    found = [line.split(":", 2) for line in said.splitlines() if line.startswith(f"{file}:") and ": error:" in line]
    return {int(number): words for _, number, words in found}


def test_right_enqueues_pass_and_each_wrong_one_is_named(said: str) -> None:
    """`await render.enqueue(invoice_id=7, tx=session)`"""
    found = errors_in(said, "enqueues.py")

    first = (HEAD + RIGHT).count("\n") + 1
    assert sorted(found) == list(range(first, first + len(WRONG))), said
    for number, (call, code) in enumerate(WRONG.items(), first):
        assert f"[{code}]" in found[number], f"{call}: {found[number]}"


def test_right_reconcilers_pass_and_each_wrong_one_is_named(said: str) -> None:
    def line(words: str) -> int:
        return RECONCILERS[: RECONCILERS.index(words)].count("\n") + 1

    for name, key in (("a", "int"), ("b", "str"), ("c", "str")):
        at = f"reconcilers.py:{line(f'reveal_type({name})')}: note: Revealed type is "
        assert f'{at}"holdfast.schedule.reconcile.Reconciler[{key}' in said.replace("builtins.", ""), said
    assert sorted(errors_in(said, "reconcilers.py")) == [
        line('reconciler("d"'),
        line('reconciler("e"'),
        line("@a.act\nasync def wrong"),
        line('@reconciler("f"'),
    ], said
