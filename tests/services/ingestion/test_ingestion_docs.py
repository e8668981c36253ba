"""The tutorial about ingestion is run, block by block, with the jobs in processes beside the routes of its application."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.settings import settings

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "docs"))

from blocks import blocks, run  # noqa: E402

TUTORIAL = ROOT / "docs/tutorial/ingest-a-csv.md"


@pytest.fixture
def own_folder(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", database)
    monkeypatch.setenv("HOLDFAST_INGESTION_TO", str(tmp_path / "uploads"))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.usefixtures("own_folder")
async def test_the_tutorial_runs() -> None:
    """K-44, Y-09: the handlers know nothing of where they run; here beside the routes, elsewhere in workers."""
    namespace = {"__name__": "tutorial_ingestion"}
    async with asyncio.timeout(180):
        for block in blocks(TUTORIAL):
            if block.language == "python":
                await run(block, namespace)
