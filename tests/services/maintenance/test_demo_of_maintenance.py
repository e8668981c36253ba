"""The demo of `holdfast up`: small files become one, by a worker that is a process of its own."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from factories import rows
from holdfast.services.maintenance import demo
from holdfast.services.maintenance.setup import Maintenance

pytestmark = [pytest.mark.processes, pytest.mark.more]  # tests/processes/test_up.py plays it as a whole


async def test_demo_compacts_a_table_and_prints_before_and_after(
    database: str, conn: Any, here: Maintenance, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(demo, "FILES", 100)  # `holdfast up` has 1,000
    text = io.StringIO()
    console = Console(file=text, width=120)

    succeeded = await demo.play(database, console, here.settings)

    said = text.getvalue()
    assert succeeded, said
    assert "10,000 rows" in said
    assert "every row exactly once" in said
    ((before, after),) = await rows(
        conn,
        """SELECT before ->> 'data_files', after ->> 'data_files' FROM holdfast.maintenance_actions
           WHERE action = 'rewrite_data_files'""",
    )
    assert (before, after) == ("100", "1")


async def test_second_run_replaces_the_table_without_a_warning_for_each_deleted_file(
    database: str, here: Maintenance, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(demo, "FILES", 10)
    console = Console(file=io.StringIO(), width=120)

    played = [await demo.play(database, console, here.settings) for _ in range(2)]

    assert played == [True, True]
    assert [line for line in caplog.messages if "Failed to delete" in line] == []
