"""The demo of ingestion: its worker is really killed inside the load, and its result is correct."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.services.ingestion import demo
from holdfast.services.ingestion.settings import IngestionSettings


@pytest.mark.processes
async def test_the_demo_is_correct_although_its_worker_is_killed(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "ROWS", 500)
    said = io.StringIO()
    settings = IngestionSettings(data_dir=tmp_path / ".holdfast")

    assert await demo.play(database, Console(file=said, width=160), settings), said.getvalue()

    assert "SIGKILL to ingester-1 inside the transaction that loads the rows" in said.getvalue()
    assert "every row exactly once" in said.getvalue()
    assert list((tmp_path / ".holdfast-demo").iterdir()) == []
