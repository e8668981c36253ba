"""Mappings, snapshots and the schema cache from the terminal, by both ways, on a real DuckDB."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from running import Run

from export_factories import mapping
from holdfast.services.exports.cli.mapping import parts_of
from holdfast.services.exports.kinds import KINDS
from holdfast.testing import harness
from holdfast.toolkit.cli.exit_codes import Exit

RANGES = {
    "Customer": "SELECT i AS id, 'n' || i AS name, i % 7 AS age FROM range(1000) t(i)",
    "Account": "SELECT 'a' || i AS number, i * 1.5::DOUBLE AS balance FROM range(500) t(i)",
    "OWNS": "SELECT i AS customer_id, 'a' || (i % 500) AS account_number, DATE '2026-01-01' AS since FROM range(900) t(i)",
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mapping as a file."""
    monkeypatch.setenv("HOLDFAST_EXPORT_DIRS", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_SNAPSHOTS_TO", str(tmp_path / "snapshots"))
    return write(tmp_path / "map.yaml", mapping())


def write(path: Path, made: dict[str, Any]) -> Path:
    parts = {
        kind: [{**one, "sql": RANGES[one.get("label") or one["type"]]} for one in made[kind]] for kind in ("nodes", "edges")
    }
    path.write_text(yaml.safe_dump({**made, **parts}))
    return path


def data(result: Any) -> Any:
    assert result.code == 0, result.err
    return json.loads(result.out)


@pytest.mark.more
def test_from_a_file_to_parquet(command: Run, do: Any, database: str, file: Path, tmp_path: Path) -> None:
    """The whole way of a data engineer: apply, create, watch, look at the files."""
    made = data(command("mapping", "apply", "-f", str(file), "-o", "json"))
    assert (made["name"], made["version"]) == ("bank", 1)
    assert data(command("mapping", "apply", "-f", str(file), "-o", "json"))["version"] == 1, "nothing changed"
    write(file, mapping(edges=[]))
    assert data(command("mapping", "apply", "-f", str(file), "-m", "no edges", "-o", "json"))["version"] == 2
    assert "OWNS" in command("mapping", "diff", "bank", "1", "2").out

    snapshot = data(command("snapshot", "create", "bank", "--version", "1", "-o", "json"))
    assert snapshot["status"] == "pending"
    waiting = command("snapshot", "watch", str(snapshot["id"]), "--timeout", "1s")
    assert (waiting.code, "it continues" in waiting.err) == (Exit.TIMEOUT, True)

    async def work(conn: Any) -> None:
        async with harness(database, KINDS) as h:
            await h.drain()

    do(work)
    done = data(command("snapshot", "watch", str(snapshot["id"]), "-o", "json"))
    assert (done["status"], done["rows"], len(done["exports"])) == ("ready", 2400, 3)
    assert len([*(tmp_path / "snapshots").rglob("*.parquet")]) == 3
    shown = command("snapshot", "show", str(snapshot["id"]), "-o", "table").out
    assert "Customer" in shown
    assert "1,000" in shown
    assert "1 ready" in command("mapping", "tree", "bank").out
    refused = command("mapping", "delete", "bank", "--yes")
    assert (refused.code, "has 1 snapshots" in refused.err) == (Exit.CONFLICT, True)
    assert command("snapshot", "delete", str(snapshot["id"]), "--yes").code == 0
    assert command("mapping", "delete", "bank", "--yes").code == 0


def test_every_mistake_of_a_file_is_said_with_its_place(command: Run, file: Path) -> None:
    bad = yaml.safe_load(file.read_text())
    bad["nodes"][0]["label"] = "1st"
    bad["edges"][0]["type"] = "owns"
    file.write_text(yaml.safe_dump(bad))

    told = command("mapping", "apply", "-f", str(file), "--dry-run")

    assert told.code == Exit.USAGE
    assert "/nodes/0/label" in told.err
    assert "/edges/0/type" in told.err
    assert command("mapping", "apply", "-f", "nowhere.yaml").code == Exit.USAGE


def test_a_snapshot_is_cancelled_and_retried(command: Run, file: Path) -> None:
    command("mapping", "apply", "-f", str(file))
    number = str(data(command("snapshot", "create", "bank", "-o", "json"))["id"])

    assert data(command("snapshot", "cancel", number, "--yes", "--reason", "not now", "-o", "json"))["status"] == "cancelled"
    watched = command("snapshot", "watch", number, "-o", "json")
    assert (watched.code, json.loads(watched.out)["status"]) == (Exit.CANCELLED, "cancelled")
    assert data(command("snapshot", "retry", number, "-o", "json"))["status"] == "pending"
    assert [one["id"] for one in data(command("snapshot", "list", "-o", "json"))] == [int(number)]


def test_the_schema_cache_is_browsed_and_searched(command: Run, do: Any) -> None:
    async def fill(conn: Any) -> None:
        await conn.execute(
            "INSERT INTO holdfast.schema_cache (engine, catalog, schema_name, table_name, column_name, type, position,"
            " refreshed_at) SELECT 'trino', 'hive', s, t, c, 'bigint', 1, clock_timestamp() FROM (VALUES ('', '', ''),"
            " ('crm', '', ''), ('crm', 'customer', ''), ('crm', 'customer', 'id')) AS e(s, t, c)"
        )

    do(fill)
    for path in ([], ["hive"], ["hive.crm"], ["hive.crm.customer"]):
        assert command("schema", "browse", *path).out.startswith("hive"), path
    assert command("schema", "search", "cust").out.split("\t")[0] == "hive.crm.customer"
    assert command("schema", "search", "i", "--columns").out.split("\t")[0] == "hive.crm.customer.id"
    assert "1 tables" in command("schema", "stats").err
    assert command("schema", "browse", "nowhere").code == Exit.NOT_FOUND


def test_nodes_and_edges_are_shown_as_people_draw_them() -> None:
    assert [one["name"] for one in parts_of(mapping())] == ["Customer", "Account", "(Customer)-OWNS->(Account)"]


@pytest.mark.parametrize("noun", ["mapping", "snapshot"])
def test_what_only_looks_like_a_number_is_none(direct: Run, noun: str) -> None:
    for word in ("²", "٣"):
        told = direct(noun, "show", word)
        assert (told.code, word in told.err, "ValueError" in told.err) == (Exit.USAGE, True, False), told.err
