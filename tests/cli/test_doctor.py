"""The doctor: every finding says what to do, and the exit code says how bad it is."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from running import Run, Served

from databases import new_database
from factories import add, end, hold, rows, silence, start_worker, state_of
from holdfast.cli import findings
from holdfast.cli.fixes import apply_fixes
from holdfast.jobs.model import Lock
from holdfast.jobs.outcome import Done
from holdfast.settings import settings
from holdfast.toolkit.cli.exit_codes import Exit
from holdfast.toolkit.cli.finding import Finding, Level
from holdfast.toolkit.cli.http_transport import HttpTransport
from holdfast.toolkit.cli.output import Output
from holdfast.toolkit.cli.verb import Session

WELL: dict[str, Any] = {
    "server": {
        "version": "18.1", "major": 18, "bytes": 1, "is_standby": False, "is_durable": True, "connections": 3,
        "max_connections": 100, "workers_may_open": 26, "autovacuum": True, "frozen_age": 5,
    },
    "tables": [{"table": "jobs", "live": 100, "dead": 7, "autovacuum": True}],
    "oldest_snapshot": None,
    "workers": [{"version": "1", "runner": "worker", "workers": 2}],
    "commits": [{"git_sha": "abc", "workers": 2}],
    "silent": [],
    "stale": 0,
    "poll_lag": 0.0,
    "oldest": [{"kind": "export", "seconds": 3.0}],
    "kinds": [{"kind": "export", "workers": 2, "waiting": 5, "paused": False, "drained": False}],
    "quarantined": {"value": 0, "capped": False},
    "left_locks": [],
    "controls": [],
}  # fmt: skip


def found_in(**changes: Any) -> list[Finding]:
    """What is wrong with a database that is well but for this."""
    server = {**WELL["server"], **changes.pop("server", {})}
    return [one for one in findings.in_the_database({**WELL, "server": server, **changes}) if one.level is not Level.OK]


def test_nothing_is_wrong_with_what_is_well() -> None:
    assert found_in() == []


ILLS = {
    "postgres": {"server": {"major": 14}},
    "postgres (standby)": {"server": {"is_standby": True}},
    "postgres (fsync)": {"server": {"is_durable": False}},
    "connections": {"server": {"connections": 90}},
    "connections (of workers)": {"server": {"workers_may_open": 90}},
    "autovacuum": {"server": {"autovacuum": False}},
    "autovacuum (table)": {"tables": [{"table": "jobs", "live": 1, "dead": 1, "autovacuum": False}]},
    "bloat": {"tables": [{"table": "jobs", "live": 100, "dead": 500_000, "autovacuum": True}]},
    "wraparound": {"server": {"frozen_age": 1_500_000_000}},
    "transactions": {"oldest_snapshot": {"pid": 7, "application": "psql", "state": "idle in transaction", "seconds": 5000.0}},
    "workers": {"workers": []},
    "workers (versions)": {"workers": [{"version": v, "runner": "worker", "workers": 1} for v in "12"]},
    "workers (commits)": {"commits": [{"git_sha": sha, "workers": 1} for sha in ("abc", "def")]},
    "workers (silent)": {"silent": [{"name": "pod-a", "host": "h", "seconds": 40.0, "holds": 2}]},
    "leases": {"stale": 2},
    "polls": {"poll_lag": 300.0},
    "waiting": {"oldest": [{"kind": "export", "seconds": 7200.0}]},
    "kinds": {"kinds": [{"kind": "k", "workers": 0, "waiting": 5, "paused": False, "drained": False}]},
    "quarantine": {"quarantined": {"value": 1, "capped": False}},
    "locks": {"left_locks": [{"key": "table:a", "job_id": 7}]},
    "controls": {"controls": [{"kind": "*", "paused": False, "drained": True, "actor": "ada", "reason": "deploy"}]},
}


@pytest.mark.parametrize("name", ILLS)
def test_each_ill_is_found_alone_and_with_its_remedy(name: str) -> None:
    (finding,) = found_in(**ILLS[name])

    assert finding.check == name.partition(" ")[0]
    assert finding.level in (Level.WARNING, Level.ERROR)
    assert finding.fix


def test_a_kind_that_is_paused_needs_no_worker() -> None:
    assert found_in(kinds=[{"kind": "k", "workers": 0, "waiting": 5, "paused": True, "drained": False}]) == []


@pytest.mark.parametrize(
    ("times", "well"),
    [((5, 30, 25, None), True), ((5, 10, 25, None), False), ((5, 30, 30, 30), False), ((5, 30, 25, 30), True)],
)
def test_times_that_fit_each_other(times: tuple[float, float, float, float | None], well: bool) -> None:
    levels = {finding.level for finding in findings.settings_sane(*times)}

    assert levels == ({Level.OK} if well else {Level.ERROR})


def test_the_clock_of_this_machine_is_shown_and_judged_by_nobody() -> None:
    assert findings.clock(-500.0).level is Level.INFO


def test_room_on_the_disk() -> None:
    assert findings.disk(50 * 10**9, 100 * 10**9, "x").level is Level.OK
    assert findings.disk(9 * 10**8, 100 * 10**9, "x").level is Level.WARNING
    assert findings.disk(10**8, 100 * 10**9, "x").level is Level.ERROR


def loop(**changes: Any) -> dict[str, Any]:
    well = {"job_name": "prune", "healthy": True, "paused": False, "interval_seconds": 60.0, "consecutive_failures": 0}
    return {**well, "last_success": "2030-01-01T00:00:00+00:00", "last_error": None, **changes}


@pytest.mark.parametrize(
    ("minutes", "changes", "well"),
    [
        (2, {}, True),
        (4, {}, False),
        (4, {"paused": True}, True),
        (4, {"interval_seconds": None}, True),  # by cron
        (4, {"last_success": None}, True),  # it has yet to run
        (0, {"healthy": False}, False),
    ],
)
def test_a_loop_that_nobody_runs_is_found(minutes: int, changes: dict[str, Any], well: bool) -> None:
    now = datetime(2030, 1, 1, 0, minutes, 1, tzinfo=UTC)

    (finding,) = findings.loops([loop(**changes)], now)

    assert (finding.level is Level.OK) == well
    assert finding.fix or well


def test_a_stream_that_is_kept_back_and_metrics_that_are_closed_are_found(over_http: Run, served: Any) -> None:
    """Really asked over HTTP; a proxy that buffers brings no first word."""
    found = {one["check"]: one["level"] for one in json.loads(over_http("doctor", "-o", "json").out)}

    assert (found["streams"], found["metrics"]) == ("ok", "ok")
    assert findings.streams(None).level is Level.WARNING
    stranger, astray = HttpTransport(served.url, None), HttpTransport("http://127.0.0.1:1", None)
    assert stranger.scrape() == "the API answered 401"
    assert stranger.first_event() is None
    assert astray.first_event() is None
    stranger.close()
    astray.close()


def test_the_worst_counts() -> None:
    assert findings.worst([findings.ok("a", "b"), findings.schema("1", "2")]) is Level.ERROR
    assert findings.worst([]) is Level.OK


# ---------------------------------------------------------------------------------------------------------------------
# On a real database
# ---------------------------------------------------------------------------------------------------------------------


def levels_of(result: Any) -> dict[str, str]:
    return {finding["check"]: finding["level"] for finding in json.loads(result.out)}


def test_a_database_in_use_is_well(command: Run, do: Any) -> None:
    do(start_worker)

    result = command("doctor", "--json")

    assert {check for check, level in levels_of(result).items() if level == "error"} == set()
    assert levels_of(result)["workers"] == levels_of(result)["leases"] == levels_of(result)["schema"] == "ok"
    assert levels_of(result)["clock"] == "info"


def test_real_trouble_is_found_and_told_by_the_exit_code(command: Run, do: Any) -> None:
    async def trouble(conn: Any) -> None:
        await add(conn, "orphan")
        await silence(conn, await hold(conn))

    do(trouble)

    result = command("doctor", "-o", "table")

    assert result.code == Exit.PARTIAL
    lines = [line.strip() for line in result.out.splitlines()]
    assert "! workers      no worker is alive" in lines
    assert "! leases       1 job without a live worker" in lines
    assert "→ holdfast worker run --import your.jobs" in lines
    assert any(line.startswith("! kinds        1 job of kind orphan waiting") for line in lines)
    assert lines[-1].startswith("0 errors, ")


def test_fix_mends_what_needs_no_guess_and_looks_again(direct: Run, do: Any) -> None:
    async def trouble(conn: Any) -> tuple[int, int]:
        silent, ended = await hold(conn), await hold(conn, locks=(Lock("tenant/7"),))
        await silence(conn, silent)
        await end(conn, ended, Done())
        await conn.execute("INSERT INTO holdfast.lock_holders (key, permit, job_id) VALUES ('tenant/7', 1, %s)", [ended.id])
        return silent.id, ended.id

    async def seen(conn: Any) -> tuple[str, list[Any], list[Any]]:
        left = await rows(conn, "SELECT key FROM holdfast.lock_holders")
        reasons = await rows(conn, "SELECT DISTINCT reason FROM holdfast.audit WHERE outcome = 'done'")
        return await state_of(conn, silent), left, reasons

    silent, _ = do(trouble)
    before = levels_of(direct("doctor", "--json"))

    result = direct("doctor", "--fix", "--yes", "--json")

    assert (before["leases"], before["locks"]) == ("warning", "error")
    assert (levels_of(result)["leases"], levels_of(result)["locks"]) == ("ok", "ok"), result.err
    assert do(seen) == ("pending", [], [("holdfast doctor --fix",)])


def test_fix_brings_the_schema_up_to_date(server: str, run: Run) -> None:
    with new_database(server) as empty:
        result = run("doctor", "--dsn", empty, "--fix", "--yes", "--json")

    assert levels_of(result)["schema"] == "ok", result.err


def test_fix_never_migrates_another_database_than_the_one_that_was_seen(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The API's schema is behind, and this machine knows a database of its own."""
    over_http = HttpTransport("http://127.0.0.1:1", None)
    with new_database(server) as own:
        monkeypatch.setenv("HOLDFAST_DATABASE_URL", own)
        settings.cache_clear()
        is_fixed = apply_fixes(Session(Output(), _transport=over_http), [findings.schema("0014", "0015")], yes=True)
        with psycopg.connect(own) as conn:
            assert conn.execute("SELECT to_regnamespace('holdfast')").fetchone() == (None,)

    assert not is_fixed
    assert "on the machine that has the database: holdfast db migrate" in capsys.readouterr().err
    over_http.close()


def test_fix_asks_first_and_changes_nothing_where_nobody_can_answer(server: str, run: Run) -> None:
    with new_database(server) as empty:
        result = run("doctor", "--dsn", empty, "--fix", "--json")

    assert result.code == Exit.USAGE
    assert "Migrate the schema? Standard input is not a terminal: pass --yes to confirm" in result.err


def test_fix_says_when_there_is_nothing_that_it_can_mend(run: Run) -> None:
    result = run("doctor", "--dsn", "postgresql://nobody@127.0.0.1:1/x", "--fix", "--json")

    assert (result.code, levels_of(result)["database"]) == (Exit.PARTIAL, "error")
    assert "No finding can be fixed automatically" in result.err


def test_a_database_that_is_not_there_is_a_finding_and_no_crash(run: Run) -> None:
    result = run("doctor", "--dsn", "postgresql://nobody@127.0.0.1:1/x", "--json")

    assert result.code == Exit.PARTIAL
    assert levels_of(result)["database"] == "error"


def test_a_schema_that_is_missing_or_behind_is_a_finding(server: str, run: Run, database: str) -> None:
    with new_database(server) as empty:
        result = run("doctor", "--dsn", empty, "--json")
    assert (result.code, levels_of(result)["schema"]) == (Exit.PARTIAL, "error")

    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("UPDATE holdfast.alembic_version SET version_num = '0001'")
    result = run("doctor", "--dsn", database, "--json")
    assert (result.code, levels_of(result)["schema"]) == (Exit.PARTIAL, "error")


def test_an_api_that_is_not_there_and_settings_that_do_not_fit_are_findings(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_API_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("HOLDFAST_LEASE_SECONDS", "6")
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", database)

    result = run("doctor", "--json")

    assert result.code == Exit.PARTIAL
    assert (levels_of(result)["api"], levels_of(result)["settings"], levels_of(result)["postgres"][:1]) == (
        "error",
        "error",
        "w",
    )


def test_a_token_that_does_not_open_is_a_finding(served: Any, run: Run) -> None:
    result = run("doctor", "--url", served.url, "--json")

    assert result.code == Exit.PARTIAL
    assert "auth login" in next(one["fix"] for one in json.loads(result.out) if one["level"] == "error")


def test_doctor_without_anything_says_where_to_begin(run: Run, tmp_path: Path) -> None:
    result = run("doctor", "-o", "table")

    assert result.code == Exit.PARTIAL
    assert "holdfast up" in result.out


def test_what_exports_need_is_asked_whether_it_answers(direct: Run, monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    monkeypatch.setenv("HOLDFAST_TRINO_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("HOLDFAST_S3_ENDPOINT", served.url)

    found = {one["check"]: one for one in json.loads(direct("doctor", "-o", "json").out)}

    assert found["engine"]["level"] == "error"
    assert "fix its address" in found["engine"]["fix"]
    assert found["object store"]["level"] == "ok", "whatever it answers, somebody does"


def test_a_pooler_is_told_from_postgres(direct: Run) -> None:
    """It makes up the number that a session goes by; Postgres tells its own."""
    (told,) = findings._pooler({"server": {"is_pooled": True}})

    assert told.level == "warning"
    assert not [*findings._pooler({"server": {"is_pooled": False}})]
    assert "pooler" not in {one["check"] for one in json.loads(direct("doctor", "-o", "json").out)}
