"""What a command imports and builds: reads and common changes load no web framework, other requests build one route. No times
are measured here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from factories import add
from holdfast.settings import Settings
from holdfast.toolkit.cli.exit_codes import Exit
from holdfast.toolkit.client.environment import ClientSettings, client_settings

REPORT = """
import gc, json, sys
from holdfast.cli import main
reports = []
for words in json.loads(sys.argv[1]):
    code = 0
    try:
        main(words)
    except SystemExit as ending:
        code = ending.code or 0
    routes = [f"{min(one.methods)} {one.path}" for one in gc.get_objects() if type(one).__name__ in ("APIRoute", "Guarded")]
    reports.append([code, sorted(sys.modules), routes])
print(json.dumps(reports), file=sys.stderr)
"""
SLOW = {"fastapi", "starlette", "httpx2", "pydantic_settings", "structlog", "prometheus_client", "alembic", "rich.console"}
NOBODY = "00000000-0000-0000-0000-000000000001"


Report = tuple[int, set[str], list[str]]


def report_of(*words: str) -> Report:
    """The exit code, the loaded modules and the routes of FastAPI that were built."""
    return next(iter(reports_of([" ".join(words)], list(words)).values()))


def reports_of(commands: Sequence[str], words: list[str] | None = None, dsn: str | None = None) -> dict[str, Report]:
    """The reports of several commands that run in one process: what one has loaded, those after it have as well."""
    given = [words] if words is not None else [[*command.split(), "--dsn", dsn] for command in commands]
    done = subprocess.run([sys.executable, "-c", REPORT, json.dumps(given)], capture_output=True, text=True, check=False)
    found = json.loads(done.stderr.splitlines()[-1])
    return {command: (code, set(modules), routes) for command, (code, modules, routes) in zip(commands, found, strict=True)}


def loaded(reports: dict[str, Report], slow: set[str]) -> dict[str, tuple[int, set[str], list[str]]]:
    """The exit code of each command, the slow modules and the routes."""
    return {command: (code, modules & slow, routes) for command, (code, modules, routes) in reports.items()}


def services_of(modules: set[str]) -> set[str]:
    """The services whose routes are among these modules."""
    return {
        parts[2] for parts in (name.split(".") for name in modules) if parts[:2] == ["holdfast", "services"] and "api" in parts
    }


READS = (
    *("job list", "job show 1", "job explain 1", "job history 1", "job logs 1", "failure list"),
    *("lock list", "kind list", "worker list", "periodic list", "drain status"),
)


@pytest.mark.more
def test_direct_reads_load_no_web_framework(do: Any, database: str) -> None:
    do(add)

    assert loaded(reports_of(READS, dsn=database), SLOW | {"pydantic"}) == dict.fromkeys(READS, (0, set(), []))


@pytest.mark.more
def test_direct_reads_of_unknown_objects_load_no_web_framework(database: str) -> None:
    unknown = ["job show 7", "job logs 7", f"worker show {NOBODY}"]

    assert loaded(reports_of(unknown, dsn=database), SLOW | {"pydantic"}) == dict.fromkeys(unknown, (Exit.NOT_FOUND, set(), []))


@pytest.mark.more
def test_screens_for_people_load_rich_and_no_web_framework(database: str) -> None:
    screens = ["status", "pipeline list"]

    assert loaded(reports_of(screens, dsn=database), SLOW - {"rich.console"}) == dict.fromkeys(screens, (0, set(), []))


def test_listing_workers_loads_nothing_that_runs_jobs(database: str) -> None:
    _, modules, _ = report_of("worker", "list", "--dsn", database)

    assert {name for name in modules if name.startswith(("holdfast.apps", "holdfast.worker"))} == set()


CHANGES = {
    "job cancel 1 --reason r --yes": Exit.OK,
    "job cancel 7 --reason r --yes": Exit.NOT_FOUND,
    "job retry 1 --reason r": Exit.OK,
    "job recover 1 --reason r": Exit.CONFLICT,
    "pause k --reason r --allow-unknown": Exit.OK,
    "pause unknown --reason r": Exit.USAGE,
    "drain k --reason r --allow-unknown": Exit.OK,
    "resume k --reason r": Exit.OK,
    "drain --reason r --yes": Exit.OK,
    "undrain --reason r": Exit.OK,
    f"worker quiet {NOBODY} --reason r": Exit.NOT_FOUND,
}


@pytest.mark.more
def test_direct_changes_load_no_web_framework(do: Any, database: str) -> None:
    do(add)

    found = loaded(reports_of(list(CHANGES), dsn=database), SLOW | {"pydantic"})
    assert found == {one: (code, set(), []) for one, code in CHANGES.items()}


@pytest.mark.more
@pytest.mark.parametrize(
    ("words", "expected_code", "route", "services"),
    [
        (["job", "cancel", "1", "--reason", "", "--yes"], Exit.USAGE, "POST /api/jobs/{job_id}/cancel", set()),
        (["job", "list", "--state", "nonsense"], Exit.USAGE, "GET /api/jobs", set()),
        (["drain", "--reason", "", "--yes"], Exit.USAGE, "PUT /api/ops/drain", set()),
        (["mapping", "list"], Exit.OK, "GET /api/mappings", {"exports"}),
    ],
)
def test_a_direct_request_builds_the_routes_of_its_path_only(
    words: list[str], expected_code: Exit, route: str, services: set[str], database: str
) -> None:
    code, modules, routes = report_of(*words, "--dsn", database)

    path = route.partition(" ")[2]
    assert (code, services_of(modules)) == (expected_code, services)
    assert route in routes
    assert {one.partition(" ")[2] for one in routes} == {path}


def test_help_loads_no_command() -> None:
    code, modules, _ = report_of("--help")

    assert (code, {name for name in modules if name.startswith("holdfast.services.exports.cli")}) == (0, set())
    assert "holdfast.cli.job" not in modules
    assert "psycopg" not in modules


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"HOLDFAST_DATABASE_URL": "postgresql://x", "HOLDFAST_PORT": "7", "HOLDFAST_PLAIN_HTTP": "on"},
        {"HOLDFAST_API_URL": "http://x", "HOLDFAST_TOKEN": "t", "HOLDFAST_DATA_DIR": "d", "HOLDFAST_CONFIG_DIR": "c"},
        {"CONTROL_PLANE_URL": "http://y"},
        {"CONTROL_PLANE_URL": "http://y", "HOLDFAST_COMPATIBILITY_NAMES": "true"},
    ],
)
def test_the_settings_of_a_client_are_those_of_settings(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_CONFIG_DIR")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    full, light = Settings(), client_settings()

    for name in ClientSettings._fields:
        value = getattr(full, name)
        assert getattr(light, name) == (value.get_secret_value() if name == "token" and value else value), name
    assert isinstance(light.data_dir, Path)


@pytest.mark.parametrize(("words", "skips"), [(["--version"], True), (["worker", "run", "--help"], False)])
def test_a_command_skips_garbage_collection_at_its_end_and_a_program_does_not(words: list[str], skips: bool) -> None:
    report = "import atexit, gc, runpy; atexit.register(lambda: print(gc.get_freeze_count() > 0)); "
    run = report + "runpy.run_module('holdfast', run_name='__main__', alter_sys=True)"

    done = subprocess.run([sys.executable, "-c", run, *words], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, str(skips))


SEARCHES = """
import atexit, gc, runpy
searches = []
gc.callbacks.append(lambda phase, _: searches.append(phase) if gc.get_threshold()[0] > 700 else None)
atexit.register(lambda: print(len(searches)))
runpy.run_module("holdfast", run_name="__main__", alter_sys=True)
"""


@pytest.mark.more
@pytest.mark.parametrize("command", ["status", "job list", "pause unknown --reason r", "undrain --reason r"])
def test_a_start_never_searches_for_garbage(command: str, database: str) -> None:
    words = [*command.split(), "--dsn", database]

    done = subprocess.run([sys.executable, "-c", SEARCHES, *words], capture_output=True, text=True, check=False)

    assert done.stdout.splitlines()[-1] == "0", done.stderr
