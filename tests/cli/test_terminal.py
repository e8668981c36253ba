"""A real process on a real terminal, and in a real pipe."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from running import Served

from factories import add, end, hold, rows, state_of
from holdfast.toolkit.cli.exit_codes import Exit

pytestmark = pytest.mark.processes

PATIENCE = 90  # seconds; the machine may be busy
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """A process with a terminal for all of its streams."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self.process, self._end, self.seen = process, end, ""

    def until(self, text: str) -> str:
        """Everything it has written once this is among it."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert self._read(deadline), f"it ended, or took too long: {self.seen!r}"
        return self.seen

    def to_its_end(self) -> str:
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            pass
        self.process.wait(PATIENCE)
        return self.seen

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._end], [], [], max(0.0, deadline - time.monotonic()))
        try:
            got = os.read(self._end, 65536) if ready else b""
        except OSError:  # the other side is closed
            got = b""
        self.seen += got.decode(errors="replace")
        return bool(got)


@contextmanager
def on_a_terminal(*words: str, **environment: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": "100", "TERM": "xterm-256color", **environment}
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def in_a_pipe(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *words]
    env = {**os.environ, **environment}
    return subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL
    )


@pytest.fixture
def failed(do: Any) -> int:
    async def make(conn: Any) -> int:
        claim = await hold(conn, "recalc", max_attempts=1)
        await end(conn, claim, ValueError("no rows"))
        return int(claim.id)

    found: int = do(make)
    return found


@pytest.mark.more
def test_people_get_a_table_with_colours_and_programs_get_tabs(failed: int, database: str) -> None:
    with on_a_terminal("job", "list", "--dsn", database) as terminal:
        shown = terminal.to_its_end()
    piped = in_a_pipe("job", "list", "--dsn", database)

    assert "\x1b[31mfailed" in shown
    assert COLOUR.sub("", shown).splitlines()[0].split() == ["ID", "KIND", "STATE", "ATTEMPT", "DONE", "CREATED", "NOTE"]
    assert piped.stdout.split("\t")[:3] == [str(failed), "recalc", "failed"]
    assert piped.stderr == ""


@pytest.mark.parametrize("form", ["table", "wide", "csv", "tsv", "json", "jsonl", "yaml"])
def test_what_a_job_says_of_itself_moves_no_cursor(form: str, do: Any, database: str) -> None:
    """Whatever the format: it is a terminal that would obey. A program gets the text as it is."""
    said = "\x1b]0;owned\x07 \x9b2J"

    async def make(conn: Any) -> None:
        claim = await hold(conn, "k", max_attempts=1)
        await end(conn, claim, ValueError(said))

    do(make)
    with on_a_terminal("job", "list", "-o", form, "--dsn", database, "--no-color") as terminal:
        shown = terminal.to_its_end()

    assert "]0;ow" in shown
    assert not re.search(r"\x1b\]|\x07|\x9b", shown)
    if form == "csv":
        assert said in in_a_pipe("job", "list", "-o", form, "--dsn", database).stdout


@pytest.mark.parametrize("how", ["NO_COLOR", "--no-color"])
def test_colours_can_be_turned_off(how: str, failed: int, database: str) -> None:
    words = ["job", "list", "--dsn", database, *([how] if how.startswith("-") else [])]
    environment = {} if how.startswith("-") else {how: "1"}

    with on_a_terminal(*words, **environment) as terminal:
        shown = terminal.to_its_end()

    assert "failed" in shown
    assert not re.search(r"\x1b\[3[0-9]m", shown), "a colour"


@pytest.mark.parametrize(("answer", "state"), [("n", "pending"), ("y", "cancelled")])
def test_what_destroys_is_asked_about(answer: str, state: str, do: Any, database: str) -> None:
    job_id = do(add)

    with on_a_terminal("job", "cancel", str(job_id), "--dsn", database) as terminal:
        terminal.until(f"Cancel job {job_id}?")
        terminal.type(f"{answer}\n")
        if answer == "y":  # it is not theirs
            terminal.until("Reason (recorded in the audit log)")
            terminal.type("wrong year\n")
        terminal.to_its_end()

    assert do(lambda conn: state_of(conn, job_id)) == state
    assert do(lambda conn: rows(conn, "SELECT reason FROM holdfast.audit")) == ([("wrong year",)] if answer == "y" else [])


def test_the_next_command_is_suggested_to_people(failed: int, database: str) -> None:
    with on_a_terminal("job", "show", str(failed), "--dsn", database) as terminal:
        assert f"next: holdfast job logs {failed}" in COLOUR.sub("", terminal.to_its_end())


@pytest.mark.more
def test_ctrl_c_leaves_the_job_alone(do: Any, database: str) -> None:
    job_id = do(add)

    with on_a_terminal("job", "wait", str(job_id), "--dsn", database) as terminal:
        terminal.until("is pending")
        terminal.process.send_signal(signal.SIGINT)
        shown = terminal.to_its_end()

    assert terminal.process.returncode == Exit.INTERRUPTED
    assert "the job continues" in COLOUR.sub("", shown)
    assert "Traceback" not in shown
    assert do(lambda conn: state_of(conn, job_id)) == "pending"


@pytest.mark.more
def test_a_watch_through_a_pipe_tells_each_change_once(do: Any, database: str) -> None:
    words = ["job", "list", "--dsn", database, "--watch", "--interval", "0.2"]
    process = subprocess.Popen([sys.executable, "-m", "holdfast", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        first = do(lambda conn: add(conn, "a"))
        assert json.loads(process.stdout.readline())["id"] == first
        second = do(lambda conn: add(conn, "b"))
        assert json.loads(process.stdout.readline())["id"] == second, "the first is not told again"
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(PATIENCE)
        process.stdout.close()
    assert code == Exit.INTERRUPTED


def test_a_watch_through_the_api_hears_of_a_change_and_does_not_wait_for_its_next_look(do: Any, served: Served) -> None:
    words = ["job", "list", "--url", served.url, "--watch", "--interval", "86400"]
    env = {**os.environ, "HOLDFAST_TOKEN": served.token}
    process = subprocess.Popen([sys.executable, "-m", "holdfast", *words], stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    try:
        for kind in ("a", "b", "c"):
            job_id = do(lambda conn, kind=kind: add(conn, kind))
            assert json.loads(process.stdout.readline())["id"] == job_id
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(PATIENCE)
        process.stdout.close()
    assert code == Exit.INTERRUPTED


def test_a_watch_on_a_terminal_shows_what_changes(do: Any, database: str) -> None:
    with on_a_terminal("status", "--dsn", database, "--watch", "--interval", "0.2") as terminal:
        terminal.until("none alive")
        do(lambda conn: add(conn, "brandnew"))
        terminal.until("brandnew")
        terminal.process.send_signal(signal.SIGINT)
        terminal.to_its_end()
    assert terminal.process.returncode == Exit.INTERRUPTED


def test_a_reader_that_goes_away_is_no_error(do: Any, database: str) -> None:
    do(add)
    words = f"{sys.executable} -m holdfast job list --all --dsn {database} | true"

    ended = subprocess.run(words, shell=True, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert "Traceback" not in ended.stderr


def test_help_is_there_without_loading_what_it_does_not_need() -> None:
    """What makes it slow is what it imports; a clock would only measure how busy the machine is."""
    script = """
import sys
from holdfast.cli import main
try:
    main(["--help"])
except SystemExit as end:
    heavy = {"psycopg", "fastapi", "sqlalchemy", "alembic", "httpx2", "pydantic", "asyncio", "structlog"} & set(sys.modules)
    print("loaded:", sorted(heavy), "code:", end.code)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)

    assert "loaded: [] code: 0" in ended.stdout, ended.stdout[-300:]


@pytest.mark.more
def test_the_shell_completes_nouns_verbs_and_options() -> None:
    def completed(line: str) -> list[str]:
        words = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        command = [sys.executable, "-c", "from holdfast.cli import main; main()"]
        env = {**os.environ, **words}
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=PATIENCE, check=True).stdout.split()

    assert completed("holdfast pip") == ["pipeline"]
    assert completed("holdfast job e") == ["explain", "enqueue"]
    assert "--watch" in completed("holdfast job list --wa")
    assert completed("holdfast job list --state fa") == ["failed"]
