"""Users' calls pass mypy and pyright without a plugin, and each wrong call is an error in both.

mypy takes ten times as long as pyright: `make types` runs it, `make test` does not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

HEAD = """
from typing import Any
from holdfast import Client, Context, JobId, SyncContext, job

@job("invoice.render")
async def render(ctx: Context, invoice_id: int, colour: str = "red") -> None: ...

@job("invoice.count")
def count(year: int) -> int:
    return year

@job("invoice.copy")
def copy(ctx: SyncContext, priority: str) -> dict[str, str]:
    return {"priority": priority}

async def main(session: Any, client: Client) -> None:
"""

RIGHT = """
    made = await render.enqueue(invoice_id=7)
    await render.using(tx=session).enqueue(invoice_id=7)
    await render.using(tx=session, priority=3).enqueue(7, "blue")
    await count.enqueue(year=2026)
    count.using(tx=session).enqueue_sync(year=2026)
    await count.using(tx=session).enqueue_many([{"year": 2026}])
    await copy.using(priority=3).enqueue(priority="high")
    render.new(invoice_id=1)
    await client.get(made.id)
    await client.get(7)
    await client.explain(7)
    await client.cancel(7, actor="me")
    number: int = made.id
    known: JobId = made.id
    print(number, known)
"""

WRONG = (
    'await render.enqueue(invoice_id="seven")',
    "await render.enqueue(invoice=7)",
    "await render.enqueue()",
    "await render.enqueue(invoice_id=7, tx=session)",
    'await render.using(priority="high").enqueue(invoice_id=7)',
    "await render.using(prio=1).enqueue(invoice_id=7)",
    'await render.using(tx=session).enqueue(invoice_id="seven")',
    "await render.using(tx=session).enqueue()",
    'render.new(invoice_id="seven")',
    "count.using(tx=session).enqueue_sync()",
    "await copy.enqueue(priority=3)",
    'await client.get("seven")',
)

RECONCILERS = """
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import assert_type

from holdfast import Loop, Pass, Result, SyncPass, reconciler
from holdfast.schedule.reconcile import Reconciler

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
assert_type(a, Reconciler[int])
assert_type(b, Reconciler[str])
assert_type(c, Reconciler[str])
reconciler("d", every=5)  # wrong
reconciler("e", evry=timedelta(minutes=5))  # wrong

@a.act  # wrong
async def wrong_key(ctx: Pass, key: bytes) -> None: ...

@reconciler("f", every=timedelta(minutes=5))  # wrong
async def f(ctx: Pass) -> list[float]:
    return []
"""

FILES = {
    "enqueues.py": HEAD + RIGHT + "".join(f"    {call}  # wrong\n" for call in WRONG),
    "reconcilers.py": RECONCILERS,
}
MYPY = "[mypy]\nstrict = True\ncache_dir = cache\nfollow_imports = silent\n"
PYRIGHT = {"typeCheckingMode": "standard", "include": list(FILES), "pythonVersion": "3.11"}


class Report(NamedTuple):
    """The lines with errors by their file, and everything that a checker printed."""

    errors: dict[str, set[int]]
    text: str


def run_mypy(folder: Path) -> Report:
    (folder / "mypy.ini").write_text(MYPY)
    done = subprocess.run([sys.executable, "-m", "mypy", *FILES], cwd=folder, capture_output=True, text=True, check=False)
    errors: dict[str, set[int]] = {file: set() for file in FILES}
    for line in done.stdout.splitlines():
        file, _, rest = line.partition(":")
        if file in errors and ": error:" in rest:
            errors[file].add(int(rest.partition(":")[0]))
    return Report(errors, done.stdout + done.stderr)


def run_pyright(folder: Path) -> Report:
    """basedpyright: pyright as a wheel with its own Node, so that nothing is downloaded when it runs."""
    (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    errors: dict[str, set[int]] = {file: set() for file in FILES}
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        if one["severity"] == "error":
            errors[Path(one["file"]).name].add(one["range"]["start"]["line"] + 1)
    return Report(errors, done.stdout + done.stderr)


SLOW = pytest.mark.skipif("HOLDFAST_TEST_EVERYTHING" not in os.environ, reason="`make types` runs mypy")


@pytest.fixture(scope="module", params=[pytest.param(run_mypy, marks=SLOW), run_pyright])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """One run over all files, because most of the time goes into our own types."""
    folder = tmp_path_factory.mktemp("typed")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return request.param(folder)


@pytest.mark.more  # `make check` runs it
@pytest.mark.parametrize("file", FILES)
def test_correct_calls_pass_and_each_wrong_call_is_an_error(report: Report, file: str) -> None:
    wrong = {number for number, line in enumerate(FILES[file].splitlines(), 1) if line.endswith("# wrong")}

    assert report.errors[file] == wrong, report.text
