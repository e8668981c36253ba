"""Every Python block of a how-to is run, in order, on a real database; every SQL block of any page is run too."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.schedule import registry
from holdfast.worker import kinds

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from blocks import Block, blocks, run  # noqa: E402

HOWTOS = sorted((ROOT / "docs/howto").glob("*.md"))
PAGES = sorted((ROOT / "docs").rglob("*.md"))
PATIENCE = 180  # seconds, for a machine that is busy with other things


@pytest.fixture
def own_kinds() -> Iterator[None]:
    """The kinds and cleaners of a page are forgotten after it."""
    before = dict(kinds._kinds), dict(kinds._cleaners), dict(registry._loops)
    yield
    kinds._kinds.clear()
    kinds._cleaners.clear()
    kinds._kinds.update(before[0])
    kinds._cleaners.update(before[1])
    registry._loops.clear()
    registry._loops.update(before[2])


@pytest.mark.parametrize("page", HOWTOS, ids=lambda page: page.stem)
@pytest.mark.usefixtures("own_kinds")
async def test_the_code_of_a_howto_runs(
    page: Path, database: str, conn: psycopg.AsyncConnection[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = {"__name__": f"howto_{page.stem.replace('-', '_')}", "url": database, "conn": conn}
    monkeypatch.chdir(tmp_path)

    async with asyncio.timeout(PATIENCE):
        for block in blocks(page):
            if _is_runnable(block):
                await run(block, namespace)


def _is_runnable(block: Block) -> bool:
    """A block may name a module that it needs and that is not always there: `needs=greenlet`."""
    needed = block.value("needs")
    is_there = needed is None or importlib.util.find_spec(needed) is not None
    return block.language == "python" and not block.has("no-run") and block.value("file") is None and is_there


SQL_BLOCKS = [block for page in PAGES for block in blocks(page) if block.language == "sql" and not block.has("no-run")]


def test_the_sql_of_every_page_runs(database: str) -> None:
    """Against the current schema, without parameters, and undone afterwards."""
    assert SQL_BLOCKS, "no page has SQL"
    with psycopg.connect(database, autocommit=True) as conn:
        for block in SQL_BLOCKS:
            with conn.transaction(force_rollback=True):
                try:
                    conn.execute(block.text.encode())
                except psycopg.Error as error:
                    pytest.fail(f"{block}: {error}")
