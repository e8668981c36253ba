"""A reconciler is typed: its keys, and what may be done with a pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
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


def test_what_is_right_passes_and_what_is_wrong_is_named(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(CODE)
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\ncache_dir = cache\nfollow_imports = silent\n")
    command = [sys.executable, "-m", "mypy", "code.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    def line(words: str) -> int:
        return CODE[: CODE.index(words)].count("\n") + 1

    for name, key in (("a", "int"), ("b", "str"), ("c", "str")):
        revealed = (
            f'code.py:{line(f"reveal_type({name})")}: note: Revealed type is "holdfast.schedule.reconcile.Reconciler[{key}'
        )
        assert revealed.replace("builtins.", "") in done.stdout.replace("builtins.", ""), done.stdout
    errors = sorted({int(text.split(":")[1]) for text in done.stdout.splitlines() if ": error:" in text})
    assert errors == [
        line('reconciler("d"'),
        line('reconciler("e"'),
        line("@a.act\nasync def wrong"),
        line('@reconciler("f"'),
    ], done.stdout
