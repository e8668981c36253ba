"""What a command imports and builds: reads load no web framework, writes build one route. No times are measured here."""

from __future__ import annotations

import json
import subprocess
import sys
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
try:
    main(sys.argv[1:])
except SystemExit as ending:
    code = ending.code
routes = [f"{min(one.methods)} {one.path}" for one in gc.get_objects() if type(one).__name__ in ("APIRoute", "Guarded")]
print(json.dumps([code or 0, sorted(sys.modules), routes]), file=sys.stderr)
"""
SLOW = {"fastapi", "starlette", "httpx2", "pydantic_settings", "structlog", "prometheus_client", "alembic", "rich.console"}


def report_of(*words: str) -> tuple[int, set[str], list[str]]:
    """The exit code, the loaded modules and the routes of FastAPI that were built."""
    done = subprocess.run([sys.executable, "-c", REPORT, *words], capture_output=True, text=True, check=False)
    code, modules, routes = json.loads(done.stderr.splitlines()[-1])
    return code, set(modules), routes


def services_of(modules: set[str]) -> set[str]:
    """The services whose routes are among these modules."""
    return {
        parts[2] for parts in (name.split(".") for name in modules) if parts[:2] == ["holdfast", "services"] and "api" in parts
    }


@pytest.mark.parametrize("words", [["job", "list"], ["job", "show", "1"], ["job", "explain", "1"], ["failure", "list"]])
def test_a_direct_read_loads_no_web_framework(words: list[str], do: Any, database: str) -> None:
    do(add)

    code, modules, routes = report_of(*words, "--dsn", database)

    assert (code, modules & SLOW, routes) == (0, set(), [])


@pytest.mark.parametrize(
    ("words", "expected_code", "route", "services"),
    [
        (["job", "cancel", "1", "--reason", "r", "--yes"], Exit.NOT_FOUND, "POST /api/jobs/{job_id}/cancel", set()),
        (["job", "list", "--state", "nonsense"], Exit.USAGE, "GET /api/jobs", set()),
        (["drain", "--reason", "r", "--yes"], Exit.OK, "PUT /api/ops/drain", set()),
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
