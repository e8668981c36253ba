"""An error is one sentence with what to do about it, on standard error, and a code that scripts can tell apart."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from running import GENEROUS, Run, Served

from databases import new_database
from factories import add, hold
from holdfast.api.auth import create_token
from holdfast.api.policy import Role
from holdfast.cli.errors import message_of
from holdfast.errors import DatabaseProblem, HoldfastError, NotFound, NotStale, UsageError
from holdfast.settings import Settings, settings
from holdfast.toolkit.cli.exit_codes import Exit, exit_of
from holdfast.toolkit.cli.transport import Choice, choose
from holdfast.toolkit.client import credentials
from holdfast.toolkit.client.problems import ApiError


def test_a_job_that_is_not_there(command: Run) -> None:
    result = command("job", "show", "99")

    assert (result.code, result.out) == (Exit.NOT_FOUND, "")
    assert result.err == (
        "error: there is no job 99\n  `holdfast job list` shows what exists. Jobs that ended long ago may have been pruned.\n"
    )


def test_a_kind_that_is_not_published_names_the_option(command: Run) -> None:
    result = command("job", "enqueue", "no.such")

    assert result.code == Exit.USAGE
    assert result.err.startswith("error: no worker has published the kind no.such\n")
    assert "--allow-unknown" in result.err
    assert "HTTP" not in result.err


def test_text_for_a_number_names_the_json_form() -> None:
    wrong = {"pointer": "/body/payload/count", "message": 'count cannot be "7": Input should be a valid integer'}

    text, advice = message_of(ApiError(422, {"code": "INVALID_PAYLOAD", "errors": [wrong]}))

    assert text.startswith("payload count: ")
    assert advice is not None
    assert "key:=json" in advice


@pytest.mark.parametrize("words", [["failure", "show", "abc"], ["failure", "retry", "abc", "--reason", "x", "--yes"]])
def test_a_wrong_fingerprint_names_the_list(words: list[str], command: Run) -> None:
    result = command(*words)

    assert (result.code, result.err) == (
        Exit.USAGE,
        "error: 'abc' is not a fingerprint; `holdfast failure list` shows them\n",
    )


def test_a_job_whose_holder_lives_is_not_recovered(command: Run, do: Any) -> None:
    held = do(hold)

    result = command("job", "recover", str(held.id), "--reason", "x")

    assert result.code == Exit.CONFLICT
    assert "lease" in result.err


@pytest.mark.parametrize(
    "words",
    [
        ["job", "show", "seven"],
        ["job", "list", "--state", "lost"],
        ["job", "recover", "1"],
        ["nonsense"],
        ["job", "wait", "1", "--timeout", "soon"],
    ],
)
def test_a_wrong_call(words: list[str], direct: Run, run: Run) -> None:
    result = run(*words) if words == ["nonsense"] else direct(*words)

    assert result.code == Exit.USAGE
    assert result.err
    assert "Traceback" not in result.err


def test_a_database_that_is_not_there(run: Run) -> None:
    result = run("job", "list", "--dsn", f"postgresql://nobody:hunter2@127.0.0.1:{_closed_port()}/x")

    assert result.code == Exit.UNAVAILABLE
    assert result.err.startswith("error: cannot connect to ")
    assert "hunter2" not in result.err


@pytest.mark.parametrize(
    "words", [("db", "status"), ("db", "migrate"), ("job", "list"), ("worker", "run", "--once"), ("serve",)]
)
def test_an_address_that_is_none(words: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "postgres//me:secret@host")
    settings.cache_clear()

    result = run(*words)

    assert result.code == (Exit.FAILED if words[0] in ("worker", "serve") else Exit.USAGE)
    assert "it must look like postgresql://user:password@host:5432/name" in result.err
    assert "secret" not in result.err


def test_a_server_that_is_not_there(run: Run) -> None:
    result = run("job", "list", "--url", f"http://127.0.0.1:{_closed_port()}")

    assert result.code == Exit.UNAVAILABLE
    assert "pass --dsn to connect to the database directly" in result.err


def test_nothing_is_known(run: Run) -> None:
    result = run("job", "list")

    assert result.code == Exit.USAGE
    assert "set HOLDFAST_API_URL or HOLDFAST_DATABASE_URL" in result.err
    assert not Path(".holdfast").exists(), "a look makes no database"


def test_a_schema_that_is_not_there(server: str, run: Run) -> None:
    with new_database(server) as empty:
        result = run("job", "list", "--dsn", empty)

    assert result.code == Exit.UNAVAILABLE
    assert "run `holdfast db migrate`" in result.err


def test_nobody_known_and_not_allowed(served: Served, run: Run, do: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    viewer = do(lambda conn: create_token(conn, "vi", Role.VIEWER, by="test"))[1]
    at = ["--url", served.url]

    assert run("job", "list", *at).code == Exit.DENIED
    monkeypatch.setenv("HOLDFAST_TOKEN", viewer)
    assert run("job", "list", *at).code == Exit.OK
    refused = run("job", "enqueue", "k", *at)
    assert refused.code == Exit.DENIED
    assert "the role viewer may not enqueue a job" in refused.err
    assert viewer not in refused.err


class TestTooOften:
    @pytest.fixture
    def options(self) -> Any:
        return type(GENEROUS)(version="test", per_minute=1, burst=2)

    def test_says_how_long_to_wait(self, over_http: Run) -> None:
        results = [over_http("job", "list") for _ in range(3)]

        assert results[-1].code == Exit.RATE_LIMITED
        assert "Try again in " in results[-1].err


def test_a_fault_of_ours_is_a_sentence_and_with_debug_a_traceback(
    direct: Run, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    monkeypatch.setattr("holdfast.toolkit.cli.arguments.job_id_of", None)
    monkeypatch.setattr("holdfast.cli.job.job_id_of", None)

    result = direct("job", "show", "1")

    assert result.code == Exit.FAILED
    assert result.err.startswith("error: TypeError: ")
    assert "with --debug for the traceback" in result.err
    with pytest.raises(TypeError):
        _main("job", "show", "1", "--dsn", database, "--debug")


def _main(*words: str) -> None:
    from holdfast.cli import main

    main(list(words))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound("x"), Exit.NOT_FOUND),
        (UsageError("x"), Exit.USAGE),
        (NotStale("x"), Exit.CONFLICT),
        (DatabaseProblem("x"), Exit.UNAVAILABLE),
        (HoldfastError("x"), Exit.FAILED),
        (ApiError(412, {}), Exit.CONFLICT),
        (ApiError(500, {}), Exit.FAILED),
        (ValueError("x"), Exit.FAILED),
    ],
)
def test_the_code_of_an_error(error: Exception, code: Exit) -> None:
    assert exit_of(error) is code


def test_a_program_that_cannot_start_ends_with_1_for_whoever_started_it(run: Run) -> None:
    result = run("worker", "run", "--import", "not_there", "--once", "--drain")

    assert result.code == Exit.FAILED
    assert result.err.startswith("error: ")


@pytest.mark.parametrize("words", [("worker", "run"), ("worker", "remote"), ("scheduler", "run")])
def test_a_module_that_is_named_without_its_option(words: tuple[str, str], run: Run) -> None:
    result = run(*words, "jobs")

    assert result.code == Exit.USAGE
    assert f"Pass modules with --import: holdfast {' '.join(words)} --import jobs" in " ".join(result.err.split())


# ---------------------------------------------------------------------------------------------------------------------
# Which way
# ---------------------------------------------------------------------------------------------------------------------

BOTH = Settings(api_url="http://api", database_url="postgresql://db")


def test_what_the_command_line_names_counts_most() -> None:
    assert choose(BOTH, dsn="postgresql://x", url=None, logged_in_at=None) == Choice(None, "postgresql://x", False, False)
    assert choose(BOTH, dsn=None, url="http://y", logged_in_at=None) == Choice("http://y", None, False, False)


def test_the_api_comes_before_the_database_which_is_there_when_it_is_down() -> None:
    assert choose(BOTH, dsn=None, url=None, logged_in_at=None) == Choice("http://api", "postgresql://db", False, True)
    only_database = Settings(database_url="postgresql://db")
    assert choose(only_database, dsn=None, url=None, logged_in_at=None).dsn == "postgresql://db"
    assert choose(only_database, dsn=None, url=None, logged_in_at="http://z").api_url == "http://z"


def test_when_the_api_is_down_the_database_is_asked_and_that_is_said(
    run: Run, do: Any, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(add)
    monkeypatch.setenv("HOLDFAST_API_URL", f"http://127.0.0.1:{_closed_port()}")
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", database)

    result = run("job", "list", "-o", "name")

    assert (result.code, result.out) == (Exit.OK, "job/1\n")
    assert "using the database directly" in result.err


def test_an_api_that_was_named_is_not_replaced_by_a_database(run: Run, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", database)

    assert run("job", "list", "--url", f"http://127.0.0.1:{_closed_port()}").code == Exit.UNAVAILABLE


def test_what_answers_there_is_no_holdfast(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        import threading

        def answer() -> None:
            conn, _ = listening.accept()
            with conn:
                conn.recv(65536)
                conn.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")

        thread = threading.Thread(target=answer)
        thread.start()
        result = run("job", "list", "--url", f"http://127.0.0.1:{listening.getsockname()[1]}")
        thread.join()

    assert result.code == Exit.UNAVAILABLE
    assert "not like a Holdfast API" in result.err


# ---------------------------------------------------------------------------------------------------------------------
# Credentials
# ---------------------------------------------------------------------------------------------------------------------


def test_login_keeps_the_token_in_a_file_that_only_its_owner_can_read(
    served: Served, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", _Lines(served.token))

    result = run("auth", "login", served.url, "-o", "json")

    assert json.loads(result.out) == {"actor": "token:ada", "method": "token", "role": "admin"}
    assert served.token not in result.out + result.err
    assert credentials.path(settings()).stat().st_mode & 0o777 == 0o600
    assert run("job", "list").code == Exit.OK, "the login is enough to know the way"
    assert run("auth", "logout").code == Exit.OK
    assert run("job", "list").code == Exit.USAGE


def test_a_token_that_does_not_open_is_not_kept(served: Served, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", _Lines("hf_nobodyno_" + "x" * 43))

    assert run("auth", "login", served.url).code == Exit.DENIED
    assert credentials.load(settings()) is None


def test_a_token_goes_to_the_address_that_it_was_made_for_and_nowhere_else() -> None:
    saved = credentials.Saved("https://ours.example", "secret")

    assert credentials.token_for("https://ours.example/", Settings(), saved) == "secret"
    assert credentials.token_for("https://theirs.example", Settings(), saved) is None


def test_a_token_is_not_sent_in_the_clear(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", _Lines("secret"))

    for address in (
        "http://holdfast.example",
        "http://127.0.0.1.example.invalid",
        "http://localhost.example.invalid/login?code=x",
    ):
        result = run("auth", "login", address)
        assert result.code == Exit.USAGE
        assert "HOLDFAST_PLAIN_HTTP=true in a trusted network" in result.err

    monkeypatch.setenv("HOLDFAST_TOKEN", "secret")
    result = run("job", "list", "--url", "http://127.0.0.1.example.invalid")
    assert (result.code, "unencrypted" in result.err, "secret" in result.err) == (Exit.USAGE, True, False)

    monkeypatch.setenv("HOLDFAST_PLAIN_HTTP", "true")
    assert run("job", "list", "--url", "http://127.0.0.1.example.invalid").code == Exit.UNAVAILABLE, "then it is tried"


def test_credentials_that_others_can_read_are_refused(run: Run) -> None:
    file = credentials.save(settings(), credentials.Saved("http://127.0.0.1:1", "secret"))
    file.chmod(0o644)

    result = run("job", "list")

    assert result.code == Exit.USAGE
    assert "other users can read" in result.err
    assert "secret" not in result.err


def test_settings_are_shown_without_their_secrets(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "postgresql://ada:canary1@db/x?password=canary2")
    monkeypatch.setenv("HOLDFAST_TOKEN", "canary3")
    monkeypatch.setenv("HOLDFAST_GATEWAY_SECRET", "canary4")

    for form in ("table", "wide", "json", "yaml", "csv", "tsv"):
        result = run("config", "show", "-o", form)
        assert result.code == Exit.OK
        assert "canary" not in result.out + result.err, form
    assert "postgresql://ada:•••@db/x?password=•••" in run("config", "show").out


def test_several_that_refuse_for_the_same_reason_end_with_its_code(command: Run, do: Any) -> None:
    """The first refusal's code, when nothing was changed; 8 when something was."""
    held = do(hold)

    assert command("job", "cancel", "98", "99", "--reason", "x", "--yes").code == Exit.NOT_FOUND
    assert command("job", "recover", str(held.id), "99", "--reason", "x").code == Exit.CONFLICT
    assert command("job", "cancel", "99", str(held.id), "--reason", "x", "--yes").code == Exit.PARTIAL


def test_who_does_not_say_why_is_told_how(command: Run, do: Any) -> None:
    """A job that somebody else made; without a terminal nobody can be asked."""
    result = command("job", "cancel", str(do(add)), "--yes")

    assert result.code == Exit.USAGE
    assert result.err == "error: --reason is required for this; it is recorded in the audit log\n"


def test_several_that_are_denied_end_with_denied(run: Run, served: Served, do: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, token = do(lambda conn: create_token(conn, "bo", Role.VIEWER, by="test"))
    monkeypatch.setenv("HOLDFAST_TOKEN", token)

    assert run("job", "retry", "1", "2", "--reason", "x", "--url", served.url).code == Exit.DENIED


class _Lines:
    """Standard input with one line, and nobody at it."""

    def __init__(self, line: str) -> None:
        self._line = line

    def readline(self) -> str:
        return self._line + "\n"

    def isatty(self) -> bool:
        return False


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("job", "list"), Exit.USAGE),
        (("config", "show"), Exit.USAGE),
        (("db", "status"), Exit.USAGE),
        (("serve",), Exit.FAILED),
    ],
)
def test_an_invalid_environment_variable_is_one_line(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: Exit
) -> None:
    """Commands end as after any wrong usage; programs end with 1."""
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", database)
    monkeypatch.setenv("HOLDFAST_PORT", "abc")

    result = run(*arguments)

    assert (result.code, result.out) == (code, "")
    assert result.err == "error: HOLDFAST_PORT=abc is not valid: use a whole number\n"
