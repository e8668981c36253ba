"""`holdfast periodic …`: what a person sees and does, straight on the database."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.database.pool import connect
from holdfast.errors import NotFound, TriggeredTooOften
from holdfast.schedule.term import ensure
from loop_factories import loop


@pytest.fixture
def loops(database: str) -> str:
    """A database that knows two loops."""

    async def make() -> None:
        conn = await connect(database)
        await ensure(conn, [loop(first_run="after_interval"), loop(name="nightly", every=None, cron="0 2 * * *")])
        await conn.close()

    asyncio.run(make())
    return database


def run(url: str, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["periodic", *words, "--url", url], env={"COLUMNS": "200", "NO_COLOR": "1"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def test_list_shows_every_loop(loops: str) -> None:
    said = run(loops, "list")

    assert "tidy" in said
    assert "1:00:00" in said
    assert "0 2 * * * UTC" in said
    assert [one["name"] for one in json.loads(run(loops, "list", "--json"))] == ["nightly", "tidy"]


def test_trigger_queues_a_run_that_the_history_shows(loops: str) -> None:
    """The documents' answer, and the number of the run."""
    said: dict[str, Any] = json.loads(run(loops, "trigger", "tidy", "--reason", "smoke test", "--actor", "ada", "--json"))

    assert {key: said[key] for key in ("job_name", "status", "triggered_by", "reason")} == {
        "job_name": "tidy",
        "status": "queued",
        "triggered_by": "ada",
        "reason": "smoke test",
    }
    (queued,) = json.loads(run(loops, "history", "tidy", "--json"))
    assert (queued["id"], queued["outcome"], queued["actor"]) == (said["run_id"], "queued", "ada")
    assert "ada: smoke test" in run(loops, "history", "tidy")


def test_trigger_needs_a_reason_and_waits_a_minute(loops: str) -> None:
    run(loops, "trigger", "tidy", code=2)
    run(loops, "trigger", "tidy", "--reason", "once")

    with pytest.raises(TriggeredTooOften, match="wait .. s before"):
        run(loops, "trigger", "tidy", "--reason", "twice")


def test_pause_and_resume(loops: str) -> None:
    run(loops, "pause", "tidy", "--reason", "upgrade", "--actor", "ada")

    shown = json.loads(run(loops, "show", "tidy", "--json"))
    assert (shown["status"], shown["paused_by"], shown["paused_reason"]) == ("paused", "ada", "upgrade")
    assert "paused reason" in run(loops, "show", "tidy")
    assert run(loops, "resume", "tidy") == "tidy goes on.\n"
    assert run(loops, "resume", "tidy") == "tidy was not paused.\n"


def test_a_name_that_is_not_there_is_an_error(loops: str) -> None:
    for words in (["show", "tidi"], ["history", "tidi"], ["pause", "tidi"], ["trigger", "tidi", "--reason", "typo"]):
        with pytest.raises(NotFound, match="tidi"):
            run(loops, *words)
