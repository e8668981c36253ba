"""What a command imports: reads start fast because the web framework is not loaded. No times are measured here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from factories import add
from holdfast.settings import Settings
from holdfast.toolkit.client.environment import ClientSettings, client_settings

REPORT = """
import json, sys
from holdfast.cli import main
try:
    main(sys.argv[1:])
except SystemExit as ending:
    code = ending.code
print(json.dumps([code or 0, sorted(sys.modules)]), file=sys.stderr)
"""
SLOW = {"fastapi", "starlette", "httpx2", "pydantic_settings", "structlog", "prometheus_client", "alembic", "rich.console"}


def modules_of(*words: str) -> tuple[int, set[str]]:
    done = subprocess.run([sys.executable, "-c", REPORT, *words], capture_output=True, text=True, check=False)
    code, modules = json.loads(done.stderr.splitlines()[-1])
    return code, set(modules)


@pytest.mark.parametrize("words", [["job", "list"], ["job", "show", "1"], ["job", "explain", "1"], ["failure", "list"]])
def test_a_direct_read_loads_no_web_framework(words: list[str], do: Any, database: str) -> None:
    do(add)

    code, modules = modules_of(*words, "--dsn", database)

    assert (code, modules & SLOW) == (0, set())


def test_help_loads_no_command() -> None:
    code, modules = modules_of("--help")

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
