"""What people see, and what programs get."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from running import Run

from factories import add, end, hold
from holdfast.distribution import VERSION
from holdfast.errors import UsageError
from holdfast.jobs.effects import confirm, plan
from holdfast.toolkit.cli.arguments import filters_of, payload_of
from holdfast.toolkit.cli.times import duration, length, relative

NOW = datetime(2026, 1, 1, tzinfo=UTC)


# ---------------------------------------------------------------------------------------------------------------------
# Forms
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def jobs(do: Any) -> tuple[int, int]:
    """One that waits, and one that failed."""

    async def make(conn: Any) -> tuple[int, int]:
        waits = await add(conn, "export", payload={"table": "orders"})
        failed = await hold(conn, "recalc", max_attempts=1)
        await end(conn, failed, ValueError("no rows for month 5"))
        await conn.execute("UPDATE holdfast.jobs SET created_at = clock_timestamp() - interval '310 s'")
        return waits, failed.id

    found: tuple[int, int] = do(make)
    return found


def test_a_table_fits_the_terminal_and_only_the_last_column_gives_way(jobs: Any, direct: Run, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "58")

    lines = [line.rstrip() for line in direct("job", "list", "-o", "table").out.splitlines()]

    assert lines == [
        "ID  KIND    STATE    ATTEMPT  DONE  CREATED  NOTE",
        "2   recalc  failed         1     –  5m ago   ValueError: …",
        "1   export  pending        0     –  5m ago   –",
    ]


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize("words", [("job", "show"), ("job", "explain"), ("job", "history")])
def test_no_command_shows_the_handle_of_an_effect(command: Run, do: Any, words: tuple[str, str], form: str) -> None:
    """A handle may have a secret of the external engine."""

    async def make(conn: Any) -> int:
        claim = await hold(conn, "k")
        await confirm(conn, claim, await plan(conn, claim, "maintenance.remote_work"), {"work": "a1.5ec4e7"})
        return claim.id

    shown = command(*words, str(do(make)), "-o", form)

    assert shown.code == 0, shown.err
    assert "5ec4e7" not in shown.out + shown.err


def test_into_a_pipe_go_whole_values_with_tabs_and_no_headings(jobs: Any, direct: Run) -> None:
    first, second = direct("job", "list").out.splitlines()

    assert first.split("\t")[:4] == ["2", "recalc", "failed", "1"]
    assert datetime.fromisoformat(second.split("\t")[5]).tzinfo is not None
    assert direct("job", "list", "--headers").out.splitlines()[0].split("\t")[:3] == ["id", "kind", "state"]


def test_every_form_for_programs_can_be_read_back(jobs: Any, direct: Run) -> None:
    plain = json.loads(direct("job", "list", "-o", "json").out)

    assert [job["id"] for job in plain] == [2, 1]
    assert yaml.safe_load(direct("job", "list", "-o", "yaml").out) == plain
    assert [json.loads(line) for line in direct("job", "list", "-o", "jsonl").out.splitlines()] == plain
    assert direct("job", "list", "-o", "name").out.split() == ["job/2", "job/1"]
    table = list(csv.DictReader(io.StringIO(direct("job", "list", "-o", "csv").out)))
    assert [row["kind"] for row in table] == ["recalc", "export"]


def test_one_thing_is_an_object_and_not_a_list(jobs: Any, direct: Run) -> None:
    assert json.loads(direct("job", "show", "1", "-o", "json").out)["payload"] == {"table": "orders"}
    assert json.loads(direct("job", "enqueue", "k", "-o", "json").out)["kind"] == "k"


def test_names_can_be_given_back(jobs: Any, direct: Run) -> None:
    name = direct("job", "list", "-o", "name", "-n", "1").out.strip()

    assert json.loads(direct("job", "show", name, "-o", "json").out)["id"] == 2


def test_data_goes_to_standard_output_and_words_to_standard_error(jobs: Any, direct: Run) -> None:
    result = direct("job", "list", "-o", "json", "-n", "1")

    assert len(json.loads(result.out)) == 1
    assert "there may be more" in result.err
    assert direct("job", "list", "-o", "json", "-n", "1", "--quiet").err == ""


def test_the_version(run: Run) -> None:
    assert run("--version").out == f"holdfast {VERSION}\n"


def test_nothing_found_is_a_sentence_for_people_and_nothing_for_programs(direct: Run) -> None:
    assert direct("job", "list", "-o", "table").err == "No matching jobs.\n"
    assert direct("job", "list").out == ""
    assert direct("job", "list", "-o", "json").out == "[]\n"


def test_what_a_job_says_cannot_steer_the_terminal(do: Any, direct: Run) -> None:
    async def evil(conn: Any) -> None:
        await end(conn, await hold(conn, "k", max_attempts=1), ValueError("\x1b[2J\x1b]0;title\x07 gone \x9b31m"))

    do(evil)

    for form in ("table", "wide", "tsv"):
        shown = direct("job", "list", "-o", form).out + direct("job", "show", "1", "-o", form).out
        assert "gone" in shown
        assert not set(shown) & {"\x1b", "\x07", "\x9b"}, form
    assert json.loads(direct("job", "show", "1", "-o", "json").out)["error"].count("\x1b") == 2


def test_markup_in_a_value_stays_text(do: Any, direct: Run) -> None:
    do(lambda conn: add(conn, "[bold]k[/bold]"))

    assert "[bold]k[/bold]" in direct("job", "list", "-o", "table").out


def test_a_page_is_no_limit(do: Any, direct: Run) -> None:
    async def many(conn: Any) -> None:
        for _ in range(203):
            await add(conn, "k")

    do(many)

    assert len(direct("job", "list", "--all").out.splitlines()) == 203
    assert len(direct("job", "list", "-n", "201").out.splitlines()) == 201
    assert len(direct("job", "list").out.splitlines()) == 50


# ---------------------------------------------------------------------------------------------------------------------
# Times
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (0.9, "0s"), (59, "59s"), (60, "1m"), (200, "3m 20s"), (7200, "2h"), (442_800, "5d 3h"), (-5, "0s")],
)
def test_lengths_of_time(seconds: float, said: str) -> None:
    assert duration(timedelta(seconds=seconds)) == said


@given(st.timedeltas(min_value=timedelta(days=-10), max_value=timedelta(days=10_000)))
def test_no_length_of_time_is_absurd(some: timedelta) -> None:
    said = duration(some)

    assert "-" not in said
    assert 1 <= len(said.split()) <= 2
    assert timedelta(0) <= max(some, timedelta(0)) - length(said) < timedelta(days=1) if "d" in said else True
    assert length(said) <= max(some, timedelta(0))


@given(st.timedeltas(min_value=timedelta(days=-5000), max_value=timedelta(days=5000)))
def test_what_was_is_ago_and_what_will_be_is_in(away: timedelta) -> None:
    said = relative(NOW + away, NOW)

    assert said == "now" or said.startswith("in ") == (away > timedelta(0))
    assert said == "now" or said.endswith(" ago") == (away < timedelta(0))


@pytest.mark.parametrize("wrong", ["", "soon", "5x", "-3m", "m"])
def test_what_is_no_length_of_time_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="write 30s"):
        length(wrong)


# ---------------------------------------------------------------------------------------------------------------------
# What people write
# ---------------------------------------------------------------------------------------------------------------------


def test_a_payload_is_put_together_from_text_json_objects_and_files(tmp_path: Any) -> None:
    (tmp_path / "p.json").write_text('{"table": "a", "n": 1}')

    made = payload_of([f"@{tmp_path / 'p.json'}", "table=b=c", "n:=2", '{"deep": {"x": [1]}}', "zip=01234"])

    assert made == {"table": "b=c", "n": 2, "deep": {"x": [1]}, "zip": "01234"}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("table", "write key=text"),
        ("n:=five", "for text write n=five"),
        ("[1]", "write key=text"),
        ("@nowhere.json", "No such file"),
    ],
)
def test_what_is_no_payload_is_refused_with_what_to_write(wrong: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        payload_of([wrong])


def test_a_filter_names_what_it_knows() -> None:
    nobody: Any = None  # is asked for the time by ages only
    assert filters_of(nobody, "state:failed kind:a:b") == {"state": "failed", "kind": "a:b"}
    with pytest.raises(UsageError, match="one of these names: state, kind"):
        filters_of(nobody, "colour:red")
