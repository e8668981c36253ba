"""What a command shows does not depend on the way: over HTTP and straight from the database it is the same, to the byte."""

from __future__ import annotations

import json
import re
from typing import Any

import psycopg
import pytest
from running import Run
from story import Story, tell

from factories import Conn, add, end, hold, silence
from holdfast.cli import writes
from holdfast.toolkit.cli.exit_codes import Exit


@pytest.fixture
def story(do: Any) -> Story:
    found: Story = do(tell)
    return found


AGO = re.compile(r" \((now|in \w+|\w+ ago)\) *$", re.MULTILINE)  # differs with the moment, not with the way
LOOKS = {
    "job list": ["job", "list"],
    "job list with a filter": ["job", "list", "-f", "state:failed kind:recalc"],
    "job list of a condition": ["job", "list", "--condition", "stale"],
    "job show": ["job", "show", "{failed}"],
    "job show of the latest": ["job", "show", "@latest"],
    "job explain": ["job", "explain", "{lock_waiter}"],
    "job history": ["job", "history", "{failed}"],
    "job logs": ["job", "logs", "{failed}"],
    "failure list": ["failure", "list"],
    "pipeline list": ["pipeline", "list"],
    "pipeline show": ["pipeline", "show", "{pipeline}"],
    "lock list": ["lock", "list"],
    "lock show": ["lock", "show", "table:orders"],
    "worker list": ["worker", "list"],
    "kind list": ["kind", "list"],
    "audit list": ["audit", "list"],
    "auth token list": ["auth", "token", "list"],
    "config show": ["config", "show"],
    "config list": ["config", "list"],
}


def _timeless_text(text: str) -> str:
    """Without how long ago things were: a second later that may be a digit longer, and so may be its column."""
    return re.sub(" +", " ", AGO.sub("", text))


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
def test_both_ways_show_the_same(look: list[str], story: Story, over_http: Run, direct: Run) -> None:
    words = [word.format(**story._asdict()) for word in look]

    forms = ("tsv", "json", "yaml", "csv", "name", "jsonl", "wide") if look == LOOKS["job list"] else ("json", "wide")
    for form in forms:
        one, other = over_http(*words, "-o", form), direct(*words, "-o", form)
        assert (one.code, _timeless_text(one.out)) == (other.code, _timeless_text(other.out)), form
        assert one.code == 0
        assert one.out or look[0] == "audit", form


UNKNOWN = "00000000-0000-0000-0000-000000000001"
REFUSED = [
    *("job show 999", "job explain 999", "job history 999", "job logs 999", "failure show 0123456789abcdef"),
    *(f"pipeline show {UNKNOWN}", f"worker show {UNKNOWN}", "lock show table:unknown"),
]


@pytest.mark.parametrize("command", REFUSED)
def test_both_ways_refuse_a_read_in_the_same_words(command: str, story: Story, over_http: Run, direct: Run) -> None:
    one, other = over_http(*command.split()), direct(*command.split())

    assert one == other
    assert one.code == Exit.NOT_FOUND


REFUSED_CHANGES = [
    *(
        "job cancel 999 --reason r --yes",
        "job cancel {completed} --reason r --yes",
        "job retry {running}",
        "job recover {running}",
    ),
    *("job retry {failed} --grant 0", "pause unknown --reason r", "pause a/b --reason r", f"worker quiet {UNKNOWN} --reason r"),
    "pause ingest --reason " + "r" * 501,
]


@pytest.mark.parametrize("change", REFUSED_CHANGES)
def test_both_ways_refuse_a_change_in_the_same_words(change: str, story: Story, over_http: Run, direct: Run) -> None:
    words = change.format(**story._asdict()).split()

    one, other = over_http(*words), direct(*words)

    assert one == other
    assert one.code != Exit.OK


async def _failed(conn: Conn) -> int:
    claim = await hold(conn, "export", max_attempts=1)
    await end(conn, claim, ValueError("no rows"))
    return claim.id


async def _stale(conn: Conn) -> int:
    claim = await hold(conn, "export")
    await silence(conn, claim)
    return claim.id


async def _running(conn: Conn) -> int:
    return (await hold(conn, "export")).id


RECORDED = """
    SELECT action, outcome, reason, role, client, detail, request_id IS NOT NULL, idempotency_key
    FROM holdfast.audit WHERE object = %s
"""
MOVES = "SELECT move, state, attempt_no, reason, detail FROM holdfast.history WHERE job_id = %s ORDER BY id"
CHANGES = [
    (add, "job cancel {} --reason r --yes"),
    (_running, "job cancel {} --reason r --force --yes"),
    (_running, "job cancel {} --reason r --yes"),
    (_failed, "job retry {} --reason r --grant 3"),
    (_stale, "job recover {} --reason r --grant 2"),
]


@pytest.mark.parametrize(("arrange", "change"), CHANGES)
def test_both_ways_record_a_change_of_a_job_alike(arrange: Any, change: str, over_http: Run, direct: Run, do: Any) -> None:
    jobs = do(arrange), do(arrange)

    done = [run(*change.format(job).split(), "-o", "json") for run, job in zip((over_http, direct), jobs, strict=True)]

    one, other = ([do(rows_of(RECORDED, f"job/{job}")), do(rows_of(MOVES, job))] for job in jobs)
    assert [result.code for result in done] == [Exit.OK, Exit.OK]
    assert one == other
    assert len(one[0]) == 1


@pytest.mark.parametrize("act", ["pause", "drain", "resume"])
def test_both_ways_record_a_change_of_a_kind_alike(act: str, over_http: Run, direct: Run, do: Any) -> None:
    options = [] if act == "resume" else ["--allow-unknown"]

    one, other = (run(act, kind, "--reason", "r", *options) for run, kind in ((over_http, "first"), (direct, "second")))

    assert (one.code, one.out.replace("token:ada", "?").replace("first", "K")) == (
        other.code,
        re.sub(r"cli:\w+", "?", other.out).replace("second", "K"),
    )
    recorded = [do(rows_of(RECORDED, f"kind/{kind}")) for kind in ("first", "second")]
    assert recorded[0] == recorded[1] != []


def test_both_ways_record_a_drain_alike(over_http: Run, direct: Run, do: Any) -> None:
    shown = [run(*words, "--reason", "r").out for run in (over_http, direct) for words in (["drain", "--yes"], ["undrain"])]

    assert shown[:2] == shown[2:]
    recorded = do(rows_of(RECORDED, "drain"))
    assert recorded[:2] == recorded[2:]
    assert len(recorded) == 4


def rows_of(statement: str, value: Any) -> Any:
    async def rows(conn: Conn) -> list[Any]:
        return await (await conn.execute(statement, [value])).fetchall()

    return rows


def test_failure_show_is_the_same(story: Story, over_http: Run, direct: Run) -> None:
    fingerprint = json.loads(direct("failure", "list", "-o", "json").out)[0]["fingerprint"]

    one, other = (run("failure", "show", fingerprint, "-o", "json") for run in (over_http, direct))

    assert one.out == other.out
    assert json.loads(one.out)["newest"] == [story.failed]


def test_status_is_the_same_but_for_the_time_and_the_place(story: Story, over_http: Run, direct: Run) -> None:
    one, other = (json.loads(run("status", "-o", "json").out) for run in (over_http, direct))

    assert one.pop("at") != other.pop("at")
    assert _timeless(one) == _timeless(other)
    assert one["jobs"]["failed"] == 1
    assert one["stale"] == 1


def test_doctor_finds_the_same(story: Story, over_http: Run, direct: Run) -> None:
    one, other = (json.loads(run("doctor", "--json").out) for run in (over_http, direct))

    # Whether metrics are open and streams arrive is a matter of the way over HTTP alone.
    assert {name: levels for name, levels in _levels(one).items() if name not in ("metrics", "streams")} == _levels(other)
    assert _levels(one)["leases"] == {"warning"}


def test_only_who_asks_differs(story: Story, over_http: Run, direct: Run) -> None:
    assert json.loads(over_http("auth", "whoami", "-o", "json").out)["actor"] == "token:ada"
    assert json.loads(direct("auth", "whoami", "-o", "json").out)["method"] == "command line"


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(one) for name, one in value.items() if name != "seconds"}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


def _levels(found: list[dict[str, Any]]) -> dict[str, set[str]]:
    """The levels of each check; which way was taken and how busy the server is may differ."""
    levels: dict[str, set[str]] = {}
    for finding in found:
        if finding["check"] not in ("way", "api", "clock"):
            levels.setdefault(finding["check"], set()).add(finding["level"])
    return levels


def test_direct_change_whose_connection_was_lost_is_not_repeated(
    direct: Run, do: Any, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks after the commit. A second try would find the job cancelled, and hide that the first succeeded."""
    job_id = do(add)
    run = writes.run

    async def lost_after_the_commit(conn: Any, *given: Any, **options: Any) -> Any:
        await run(conn, *given, **options)
        await conn.close()
        raise psycopg.OperationalError("the server closed the connection unexpectedly")

    monkeypatch.setattr(writes, "run", lost_after_the_commit)

    refused = direct("job", "cancel", str(job_id), "--reason", "r", "--yes")

    with psycopg.connect(database) as conn:
        entries = conn.execute("SELECT count(*) FROM holdfast.audit WHERE action = 'jobs.cancel'").fetchone()
        state = conn.execute("SELECT state FROM holdfast.jobs WHERE id = %s", [job_id]).fetchone()
    assert (refused.code != 0, entries, state) == (True, (1,), ("cancelled",)), refused.err
    assert "database" in refused.err, "not that the job is in the wrong state, which a second try would report"
