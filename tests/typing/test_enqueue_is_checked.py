"""`await render.enqueue(invoice_id=7, tx=session)` is checked by the type checker, with the plugin that we ship."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def mypy(folder: Path, code: str) -> str:
    (folder / "code.py").write_text(code)
    (folder / "mypy.ini").write_text(
        "[mypy]\nstrict = True\nplugins = holdfast.mypy_plugin\ncache_dir = cache\nfollow_imports = silent\n"
    )
    done = subprocess.run([sys.executable, "-m", "mypy", "code.py"], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_right_calls_pass_and_each_wrong_one_is_named(tmp_path: Path):
    wrong_lines = "".join(f"    {call}\n" for call in WRONG)
    found = mypy(tmp_path, HEAD + RIGHT + wrong_lines)

    first = (HEAD + RIGHT).count("\n") + 1
    for number, (call, code) in enumerate(WRONG.items(), first):
        assert f"code.py:{number}: error" in found, f"not caught: {call}\n{found}"
        assert f"[{code}]" in next(line for line in found.splitlines() if line.startswith(f"code.py:{number}: error"))
    assert f"Found {len(WRONG)} errors" in found
