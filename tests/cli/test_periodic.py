"""`holdfast periodic …` by both ways: what a person sees and does, and that what they do is audited."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from running import Result, Run

from factories import rows
from holdfast.cli.periodic import schedule_of
from holdfast.jobs.declare import Declaration, as_json
from holdfast.jobs.kinds import publish
from holdfast.jobs.periodic.schedule import Schedule
from holdfast.schedule.term import ensure
from holdfast.toolkit.cli.exit_codes import Exit
from loop_factories import loop


@pytest.fixture(autouse=True)
def loops(do: Callable[..., Any]) -> Iterator[None]:
    """A database that knows two loops."""
    nightly = loop(name="nightly", every=None, cron="0 2 * * *")
    do(lambda conn: ensure(conn, [loop(first_run="after_interval"), nightly]))
    return


def data(result: Result) -> Any:
    assert result.code == 0, result.err
    return json.loads(result.out)


def audited(do: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = do(
        lambda conn: rows(
            conn, "SELECT action, object, outcome, reason FROM holdfast.audit WHERE object LIKE 'periodic/%' ORDER BY id"
        )
    )
    return found


def test_list_shows_every_loop(command: Run) -> None:
    said = command("periodic", "list", "-o", "table").out

    assert "tidy" in said
    assert "every 1h" in said
    assert schedule_of({"interval_seconds": 5.0, "cron": None, "timezone": "UTC"}) == "every 5s"
    assert "0 2 * * *" in said
    assert [one["job_name"] for one in data(command("periodic", "list", "-o", "json"))] == ["nightly", "tidy"]


@pytest.mark.parametrize("format", ["table", "wide", "json", "jsonl", "yaml", "name", "csv", "tsv"])
def test_every_form_of_output_is_there(direct: Run, format: str) -> None:
    assert "tidy" in direct("periodic", "list", "-o", format).out


def test_p_01_a_run_is_queued_shown_and_audited(command: Run, do: Any) -> None:
    """P-04, Q-05: the documents' answer, the number of the run, and who asked why."""
    said = data(command("periodic", "run", "tidy", "--reason", "smoke test", "-o", "json"))

    assert (said["job_name"], said["status"], said["reason"]) == ("tidy", "queued", "smoke test")
    (queued,) = data(command("periodic", "history", "tidy", "-o", "json"))
    assert (queued["id"], queued["outcome"], queued["actor"]) == (said["run_id"], "queued", said["triggered_by"])
    assert audited(do) == [("periodic.trigger", "periodic/tidy", "done", "smoke test")]


def test_p_03_a_run_needs_a_reason_and_waits_a_minute(command: Run, do: Any) -> None:
    assert command("periodic", "run", "tidy").code == Exit.USAGE
    data(command("periodic", "trigger", "tidy", "--reason", "once", "-o", "json"))

    again = command("periodic", "run", "tidy", "--reason", "twice")

    assert again.code == Exit.RATE_LIMITED
    assert "wait" in again.err
    assert [reason for *_, reason in audited(do)][:1] == ["once"]


def test_pause_and_resume_are_audited_with_their_reason(command: Run, do: Any) -> None:
    command("periodic", "pause", "tidy", "--reason", "upgrade")

    shown = data(command("periodic", "show", "tidy", "-o", "json"))
    assert (shown["status"], shown["paused_reason"]) == ("paused", "upgrade")
    assert "upgrade" in command("periodic", "show", "tidy", "-o", "table").out
    command("periodic", "resume", "tidy", "--reason", "done")
    assert not data(command("periodic", "show", "tidy", "-o", "json"))["paused"]
    assert audited(do) == [
        ("periodic.control", "periodic/tidy", "done", "upgrade"),
        ("periodic.control", "periodic/tidy", "done", "done"),
    ]


def test_a_name_that_is_not_there_is_said(command: Run) -> None:
    for words in (["show", "tidi"], ["history", "tidi"], ["pause", "tidi", "--reason", "x"], ["run", "tidi", "--reason", "x"]):
        result = command("periodic", *words)
        assert (result.code, "tidi" in result.err) == (Exit.NOT_FOUND, True)


def test_an_unhealthy_loop_is_seen_by_its_exit_code(direct: Run, do: Any) -> None:
    do(lambda conn: conn.execute("UPDATE holdfast.loops SET failures = 3 WHERE name = 'tidy'"))

    shown = direct("periodic", "show", "tidy", "-o", "json")

    assert (shown.code, json.loads(shown.out)["healthy"]) == (1, False)


def test_a_periodic_job_is_shown_run_and_paused_like_a_loop(command: Run, do: Any) -> None:
    schedule = Schedule(cron="0 2 * * *", timezone="Europe/Zurich")
    do(lambda conn: publish(conn, [as_json(Declaration("report.daily", periodic=schedule))], worker="a worker"))

    said = data(command("periodic", "show", "report.daily", "-o", "json"))
    assert (said["type"], said["timezone"], len(said["next_runs"])) == ("job", "Europe/Zurich", 5)
    assert "0 2 * * * Europe/Zurich" in command("periodic", "list", "-o", "table").out

    run = data(command("periodic", "run", "report.daily", "--reason", "a test", "-o", "json"))
    assert [one["id"] for one in data(command("periodic", "history", "report.daily", "-o", "json"))] == [run["run_id"]]
    assert data(command("periodic", "pause", "report.daily", "--reason", "r", "-o", "json"))["status"] == "paused"
    assert data(command("periodic", "resume", "report.daily", "--reason", "r", "-o", "json"))["status"] == "no worker"
    missing = command("periodic", "show", "nothing")
    assert (missing.code, "no periodic job or loop 'nothing'" in missing.err) == (Exit.NOT_FOUND, True)
