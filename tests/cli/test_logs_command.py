"""`holdfast job logs`, by both ways: which lines, in which form, and until when."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from running import Run

from factories import end, hold, replace
from holdfast.jobs.cancel import cancel
from holdfast.jobs.logs import Numbered, write
from holdfast.jobs.model import Claim
from holdfast.telemetry.kept import Line
from holdfast.toolkit.cli.exit_codes import Exit

Act = Callable[[Any], Awaitable[Any]]
SAID_AT = "2026-01-01T00:00:00+00:00"


async def say(conn: Any, claim: Claim, *messages: str, level: str = "info", first: int = 1, **fields: Any) -> None:
    lines = [Numbered(claim, number, Line(SAID_AT, level, text, fields)) for number, text in enumerate(messages, first)]
    assert await write(conn, lines) == {claim.attempt_id}


@pytest.fixture
def two_attempts(do: Any) -> Claim:
    """A job whose second attempt runs; the first said a and b, the second c."""

    async def make(conn: Any) -> Claim:
        first = await hold(conn, max_crashes=9)
        await say(conn, first, "a", "b")
        second = await replace(conn, first)
        await say(
            conn, second, "c", level="error", first=4, rows=5, why="no such table", exception="Traceback\n  ValueError: x"
        )
        return second

    claim: Claim = do(make)
    return claim


def test_into_a_pipe_go_lines_with_tabs(command: Run, two_attempts: Claim) -> None:
    result = command("job", "logs", str(two_attempts.id))

    assert result.code == 0
    shown = [line.split("\t") for line in result.out.splitlines()]
    assert [(attempt, level, message) for _, attempt, level, message, _ in shown] == [
        ("1", "info", "a"),
        ("1", "info", "b"),
        ("2", "error", "c"),
    ]
    assert json.loads(shown[2][4])["rows"] == 5


def test_people_see_each_line_whole_with_what_was_raised_below_it(command: Run, two_attempts: Claim) -> None:
    result = command("job", "logs", str(two_attempts.id), "-o", "table", "--utc")

    assert result.out.splitlines() == [
        "2026-01-01 00:00:00 info     a",
        "2026-01-01 00:00:00 info     b",
        '2026-01-01 00:00:00 error    c rows=5 why="no such table"',
        "    Traceback",
        "      ValueError: x",
    ]
    assert result.err.splitlines() == ["attempt 1", "attempt 2, after 3 lines"]


def test_no_line_of_a_stranger_looks_like_another_or_moves_the_cursor(command: Run, do: Any) -> None:
    """F-75."""

    async def make(conn: Any) -> int:
        claim = await hold(conn)
        await say(conn, claim, "one\n2026-01-01 00:00:00 info     forged\x1b[2J\r")
        return claim.id

    job_id = do(make)

    shown = command("job", "logs", str(job_id), "-o", "table").out

    assert "\x1b" not in shown
    assert "\r" not in shown
    assert shown.splitlines()[1].startswith("    2026")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ((), "abc"),
        (("--attempt", "1"), "ab"),
        (("--tail", "2"), "bc"),
        (("--level", "warning"), "c"),
        (("--attempt", "1", "--tail", "1"), "b"),
        (("--attempt", "7"), ""),
    ],
)
def test_only_those_that_are_asked_for(command: Run, two_attempts: Claim, asked: tuple[str, ...], told: str) -> None:
    result = command("job", "logs", f"job/{two_attempts.id}", *asked, "-o", "json")

    assert "".join(line["message"] for line in json.loads(result.out)) == told


def test_the_latest_job_has_a_name_and_more_than_a_page_is_shown(command: Run, do: Any) -> None:
    async def make(conn: Any) -> None:
        claim = await hold(conn)
        await say(conn, claim, *map(str, range(450)))

    do(make)

    result = command("job", "logs", "@latest", "-o", "jsonl")

    assert [json.loads(line)["message"] for line in result.out.splitlines()] == [*map(str, range(450))]


def test_a_job_that_said_nothing_is_no_error_and_one_that_is_not_there_is(command: Run, do: Any) -> None:
    job_id = do(hold).id

    silent = command("job", "logs", str(job_id), "-o", "table")

    assert (silent.code, silent.out, silent.err) == (0, "", "No log lines are stored.\n")
    assert command("job", "logs", "4711").code == Exit.NOT_FOUND
    assert command("job", "logs", str(job_id), "--level", "loud").code == Exit.USAGE


@pytest.fixture
def between_looks(monkeypatch: pytest.MonkeyPatch, do: Any) -> Callable[[Act], None]:
    """Something happens after the first look of a command that follows, and before its second."""

    def happens(act: Act) -> None:
        left = [act]
        sleep = SimpleNamespace(sleep=lambda _: do(left.pop()))
        monkeypatch.setattr("holdfast.cli.job_logs.time", sleep)

    return happens


@pytest.mark.parametrize(
    ("ended_with", "code"), [(None, Exit.OK), (ValueError("x"), Exit.FAILED), ("cancel", Exit.CANCELLED)], ids=str
)
def test_who_follows_sees_every_line_and_ends_as_the_job_does(
    command: Run, do: Any, between_looks: Any, ended_with: Any, code: Exit
) -> None:
    claim: Claim = do(lambda conn: hold(conn, max_attempts=1))
    do(lambda conn: say(conn, claim, "first"))

    async def go_on(conn: Any) -> None:
        await say(conn, claim, "second", "third", first=2)
        if ended_with == "cancel":
            await cancel(conn, claim.id, actor="ada", force=True)
        else:
            await end(conn, claim, ended_with)

    between_looks(go_on)
    result = command("job", "logs", str(claim.id), "-f", "-o", "json")

    assert [json.loads(line)["message"] for line in result.out.splitlines()] == ["first", "second", "third"]
    assert result.code == code


def test_who_follows_gets_headings_once(command: Run, do: Any, between_looks: Any) -> None:
    claim: Claim = do(hold)
    do(lambda conn: say(conn, claim, "before", "first"))

    async def go_on(conn: Any) -> None:
        await say(conn, claim, "second", first=3)
        await end(conn, claim)

    between_looks(go_on)
    result = command("job", "logs", str(claim.id), "--follow", "--tail", "1", "-o", "csv")

    shown = list(csv.DictReader(io.StringIO(result.out)))
    assert [line["message"] for line in shown] == ["first", "second"]


def test_a_retry_is_followed_into_its_next_attempt(command: Run, do: Any, between_looks: Any) -> None:
    claim: Claim = do(lambda conn: hold(conn, max_crashes=9))
    do(lambda conn: say(conn, claim, "first"))

    async def go_on(conn: Any) -> None:
        following = await replace(conn, claim)
        await say(conn, following, "second")
        await end(conn, following)

    between_looks(go_on)
    result = command("job", "logs", str(claim.id), "-f", "-o", "table")

    assert [line.split()[-1] for line in result.out.splitlines()] == ["first", "second"]
    assert [line for line in result.err.splitlines() if line.startswith("attempt")] == ["attempt 1", "attempt 2"]


def test_what_a_job_says_before_it_has_begun_to_be_followed_is_not_waited_for(command: Run, do: Any) -> None:
    """A job that has ended: its lines, and its exit code at once."""

    async def make(conn: Any) -> int:
        claim = await hold(conn, max_attempts=1)
        await say(conn, claim, "a", "b")
        await end(conn, claim, ValueError("x"))
        return claim.id

    result = command("job", "logs", str(do(make)), "-f", "-o", "table")

    assert result.code == Exit.FAILED
    assert [line.split()[-1] for line in result.out.splitlines()] == ["a", "b"]
    assert "failed" in result.err
