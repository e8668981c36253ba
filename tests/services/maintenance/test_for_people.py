"""What people use: `holdfast table …`, `hf.tables`, and `holdfast doctor`, with a real API, a real worker and a real table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import uvicorn
import yaml
from fastapi import FastAPI

from holdfast.api.auth import create_token
from holdfast.api.policy import Role
from holdfast.cli import main
from holdfast.client import Connection, connect
from holdfast.errors import UsageError
from holdfast.services.maintenance.cli.checks import checks
from holdfast.services.maintenance.cli.table import actions_of
from holdfast.services.maintenance.client.policy_file import read_policies
from holdfast.services.maintenance.kinds import KINDS
from holdfast.services.maintenance.settings import maintenance_settings
from holdfast.services.maintenance.setup import Maintenance
from holdfast.settings import settings
from holdfast.toolkit.client.problems import ApiError, JobFailed
from holdfast.worker.loop import Worker
from holdfast.worker.options import WorkerOptions
from maintenance_factories import know, make_table

POLICY = {
    "name": "nightly",
    "match": {"database": "sales"},
    "schedule": "0 2 * * *",
    "timezone": "Europe/Zurich",
    "actions": ["rewrite_data_files"],
}


@pytest.fixture
async def at_work(database: str, here: Maintenance) -> Any:
    """A worker in this event loop, for as long as the test runs."""
    worker = Worker(database, KINDS, WorkerOptions(concurrency=2))
    running = asyncio.create_task(worker.run())
    yield worker
    worker.stop()
    await running


class Server(uvicorn.Server):
    """One that leaves the signals to the tests."""

    def install_signal_handlers(self) -> None: ...


@pytest.fixture
async def served(app: FastAPI) -> Any:
    """The address of the app on a port of its own."""
    server = Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, ws="none", lifespan="off"))
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await running


@pytest.fixture
async def hf(served: str, conn: psycopg.AsyncConnection[Any]) -> Any:
    """The client of a notebook."""
    _, secret = await create_token(conn, "ada", Role.ADMIN, by="test")
    with connect(served, secret) as connection:
        yield connection


@pytest.fixture
def terminal(served: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a command over HTTP in a thread; its exit code and what it printed."""

    async def run(token: str, *words: str) -> tuple[int, str, str]:
        monkeypatch.setenv("HOLDFAST_TOKEN", token)
        monkeypatch.setenv("COLUMNS", "200")
        settings.cache_clear()
        capsys.readouterr()

        def command() -> int:
            try:
                main([*words, "--url", served])
            except SystemExit as end:
                return int(end.code or 0)
            return 0

        code = await asyncio.to_thread(command)
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.mark.more
async def test_table_is_planned_maintained_and_shown_from_the_terminal(
    terminal: Any, conn: Any, here: Maintenance, database: str, at_work: Any, tmp_path: Path
):
    """UX 3.3: list, show, dry run, maintain, history, savings, policy."""
    await asyncio.to_thread(make_table, here, database)
    _, token = await create_token(conn, "ada", Role.ADMIN, by="test")
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(POLICY))

    shown = await terminal(token, "table", "show", "sales.orders")
    planned = await terminal(token, "table", "maintain", "sales.orders", "-a", "rewrite_data_files", "--dry-run", "-o", "json")
    done = await terminal(
        *(token, "table", "maintain", "sales.orders", "--actions", "rewrite_data_files,expire_snapshots"),
        *("--set", "expire_snapshots.older_than=0", "--wait", "-o", "table"),
    )
    history = await terminal(token, "table", "history", "sales.orders", "-o", "json")
    savings = await terminal(token, "table", "savings", "-o", "json")
    preview = await terminal(token, "table", "policy", "apply", "-f", str(file), "--dry-run", "-o", "table")
    applied = await terminal(token, "table", "policy", "apply", "-f", str(file), "-o", "json")
    listed = await terminal(token, "tables", "list", "-o", "name")

    assert [one[0] for one in (shown, planned, done, history, savings, preview, applied, listed)] == [0] * 8, done
    assert json.loads(planned[1])["actions"][0]["after"]["data_files"] == 1
    assert "12 → 1" in done[1]
    assert [one["outcome"] for one in json.loads(history[1])] == ["completed", "completed"]
    (month,) = json.loads(savings[1])
    assert (month["runs"], month["data_files"], month["money"]) == (1, 11, None), "dry runs save nothing"
    assert "orders" in preview[1]
    assert preview[1].count("02:00") == 5
    assert json.loads(applied[1])[0]["name"] == "nightly"
    assert listed[1] == "table/sales.orders\n"


async def test_tables_are_listed_without_the_api(conn: Any, database: str, capsys: pytest.CaptureFixture[str]):
    await know(conn)

    def command() -> None:
        with pytest.raises(SystemExit) as end:
            main(["table", "list", "--dsn", database, "-o", "json"])
        assert not end.value.code

    await asyncio.to_thread(command)

    assert [one["health"] for one in json.loads(capsys.readouterr().out)] == [55]


async def test_mistakes_are_printed_with_their_places(terminal: Any, conn: Any, tmp_path: Path):
    _, token = await create_token(conn, "ada", Role.ADMIN, by="test")
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump_all([POLICY, {**POLICY, "name": "other", "schedule": "nonsense", "max_parallel": 0}]))

    policy = await terminal(token, "table", "policy", "apply", "-f", str(file))
    request = await terminal(token, "table", "maintain", "sales.orders", "-a", "optimize")

    assert (policy[0], request[0]) == (2, 2), policy
    assert "policy 2/schedule: " in policy[2]
    assert "2 mistakes" in policy[2]
    assert "actions/0/action: 'optimize' is not an action" in request[2]


@pytest.mark.more
async def test_notebook_maintains_a_table_and_shows_cards(
    hf: Connection, here: Maintenance, database: str, at_work: Any, tmp_path: Path
):
    await asyncio.to_thread(make_table, here, database)

    def notebook() -> dict[str, Any]:
        table = hf.tables.get("sales.orders")
        with pytest.raises(ApiError) as unknown:
            hf.tables.get("sales.nothing")
        with pytest.raises(JobFailed):
            table.maintain({"rewrite_data_files": {"strategy": "sort", "sort_by": ["missing"]}}).wait(show=False)
        run = table.maintain("rewrite_data_files", {"expire_snapshots": {"older_than": 0}}).wait(show=False)
        (policy,) = hf.tables.apply(POLICY)
        found = {
            "card": run._repr_html_(),
            "table card": table._repr_html_(),
            "history": [one.outcome for one in table.history()],
            "preview": hf.tables.preview("nightly")["tables"][0]["name"],
            "unknown": unknown.value.status,
        }
        hf.tables.delete_policy(policy["name"])
        return {**found, "policies": hf.tables.policies()}

    found = await asyncio.to_thread(notebook)

    assert "12 → 1 files" in found["card"]
    assert "sales.orders" in found["table card"]
    assert (found["history"], found["preview"]) == (["completed", "failed"], "orders")
    assert (found["unknown"], found["policies"]) == (404, [])


# ---------------------------------------------------------------------------------------------------------------------
# Pure parts
# ---------------------------------------------------------------------------------------------------------------------


def test_parameters_of_actions_from_options():
    parameters = ["expire_snapshots.older_than=7d", "rewrite_data_files.min_input_files=3"]

    found = actions_of("expire_snapshots, rewrite_data_files", parameters)

    assert found == [
        {"action": "expire_snapshots", "older_than": "7d"},
        {"action": "rewrite_data_files", "min_input_files": 3},
    ]
    for wrong in ("older_than=7d", "rewrite_manifests.target_size=1", "expire_snapshots.older_than"):
        with pytest.raises(UsageError, match="--set"):
            actions_of("expire_snapshots", [wrong])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no policy"),
        ("- 1", "must be an object"),
        ("a: [", "is neither YAML nor JSON"),
        ("name: a\n---\nname: a\n", "two policies"),
    ],
)
def test_file_that_has_no_policies(tmp_path: Path, text: str, message: str):
    file = tmp_path / "policy.yaml"
    file.write_text(text)

    with pytest.raises(UsageError, match=message):
        read_policies(file)


def test_doctor_finds_a_catalog_that_does_not_respond(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOLDFAST_ICEBERG_CATALOGS", '{"lake": {"type": "rest", "uri": "http://127.0.0.1:9"}}')
    settings.cache_clear()

    found = {one.check: one.level for one in checks(maintenance_settings())}

    settings.cache_clear()
    assert found["catalog lake"] == "error"
