"""Holdfast from a notebook or a script: what it says, what it shows, what it raises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest

from holdfast.api.policy import Role
from holdfast.client import (
    Conflict,
    Connection,
    Forbidden,
    Invalid,
    JobFailed,
    NotFound,
    connect,
)
from holdfast.errors import Unreachable, UsageError
from holdfast.services.exports.client import SnapshotFailed

PERSON = {
    "label": "Person",
    "sql": "SELECT range AS id, 'p' || range AS name FROM range(1000)",
    "primary_key": {"name": "id", "type": "INT64"},
    "properties": [{"name": "name", "type": "STRING"}],
}
KNOWS = {
    "type": "KNOWS",
    "from_node": "Person",
    "to_node": "Person",
    "sql": "SELECT range AS a, range + 1 AS b FROM range(999)",
    "from_key": "a",
    "to_key": "b",
}
MAP = """
name: people
nodes:
  - label: Person
    sql: SELECT range AS id, 'p' || range AS name FROM range(1000)
    primary_key: {name: id, type: INT64}
    properties: [{name: name, type: STRING}]
edges:
  - {type: KNOWS, from_node: Person, to_node: Person, from_key: a, to_key: b,
     sql: "SELECT range AS a, range + 1 AS b FROM range(999)"}
"""


def test_job_logs_can_be_read(hf: Connection, viewer: Connection, database: str) -> None:
    made = hf.jobs.enqueue("client.says")
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            """INSERT INTO holdfast.log_lines (job_id, attempt_no, line_no, said_at, level, message)
               SELECT %s, 1, n, clock_timestamp(), CASE WHEN n > 300 THEN 'error' ELSE 'info' END, n::text
               FROM generate_series(1, 301) n""",
            [made.id],
        )

    assert [line["message"] for line in hf.jobs.logs(made.id)] == [str(n) for n in range(1, 302)]
    assert [line["message"] for line in hf.jobs.logs(made.id, level="error")] == ["301"]
    assert [line["message"] for line in hf.jobs.logs(made.id, tail=2)] == ["300", "301"]
    with pytest.raises(Forbidden):
        viewer.jobs.logs(made)


def test_mapping_to_files_takes_two_calls(hf: Connection, at_work: Any) -> None:
    seen: list[str] = []
    mapping = hf.mappings.create("people", nodes=[PERSON], edges=[KNOWS])

    snapshot = hf.snapshots.create_and_wait(mapping, timeout=120, on_progress=lambda now: seen.append(now.status))

    assert snapshot.status == "ready"
    assert (snapshot.node_counts, snapshot.edge_counts) == ({"Person": 1000}, {"KNOWS": 999})
    assert seen[-1] == "ready"
    assert sum(pq.read_metadata(Path(file.removeprefix("file://"))).num_rows for file in snapshot.files("Person")) == 1000
    assert hf.snapshots.get(snapshot.id) == snapshot
    assert [one.id for one in hf.snapshots.list(mapping=mapping)] == [snapshot.id]


def test_unchanged_file_is_applied_once(hf: Connection, tmp_path: Path) -> None:
    file = tmp_path / "map.yaml"
    file.write_text(MAP)

    made, same = hf.mappings.apply(file), hf.mappings.apply(file)
    file.write_text(MAP.replace("999", "500"))
    changed = hf.mappings.apply(file, change="fewer")

    assert (made.id, made.version) == (same.id, same.version) == (changed.id, 1)
    assert changed.version == 2
    assert hf.mappings.apply({"name": "people", "nodes": [PERSON], "edges": []}).version == 3
    assert hf.mappings.diff(made.id, 1, 2)["summary"]


def test_all_errors_of_a_mapping_are_reported_together(hf: Connection) -> None:
    wrong = PERSON | {"label": "1person", "properties": [{"name": "name", "type": "WORD"}]}

    with pytest.raises(Invalid) as refused:
        hf.mappings.create("people", nodes=[wrong])

    assert refused.value.status == 422
    assert [error["pointer"] for error in refused.value.errors] == ["/nodes/0/label", "/nodes/0/properties/0/type"]
    assert "/nodes/0/label: '1person' is not a valid name" in str(refused.value)
    assert "/nodes/0/properties/0/type: " in str(refused.value)


def test_failed_snapshot_has_its_reason(hf: Connection, at_work: Any) -> None:
    sql = "SELECT range AS id, CASE WHEN range = 2 THEN error('no such luck') ELSE 'p' END AS name FROM range(3)"
    broken = PERSON | {"sql": sql}
    mapping = hf.mappings.create("broken", nodes=[broken])

    with pytest.raises(SnapshotFailed, match="no such luck") as failed:
        hf.snapshots.create_and_wait(mapping, timeout=120, show=False)

    assert failed.value.snapshot.status == "failed"
    with pytest.raises(UsageError, match="Person is failed"):
        failed.value.snapshot.files("Person")


def test_wait_timeout_reports_that_the_job_continues(hf: Connection) -> None:
    mapping = hf.mappings.create("people", nodes=[PERSON])

    with pytest.raises(TimeoutError, match=r"snapshot \d+ is pending after 0.1 s; it continues"):
        hf.snapshots.create_and_wait(mapping, timeout=0.1)


def test_mapping_with_snapshots_cannot_be_deleted(hf: Connection) -> None:
    mapping = hf.mappings.create("people", nodes=[PERSON])
    hf.snapshots.create(mapping)

    with pytest.raises(Conflict):
        hf.mappings.delete(mapping.id)


def test_sql_to_files_without_a_mapping(hf: Connection, at_work: Any, tmp_path: Path) -> None:
    result = hf.exports.run("SELECT * FROM range(10)", str(tmp_path / "out"), timeout=120)

    assert result["rows"] == 10


def test_failed_job_has_its_reason(hf: Connection, at_work: Any, tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="no_such_table"):
        hf.exports.run("SELECT * FROM no_such_table", str(tmp_path / "out"), timeout=120)


def test_forbidden_call_is_reported(viewer: Connection) -> None:
    with pytest.raises(Forbidden) as refused:
        viewer.mappings.create("people", nodes=[PERSON])

    assert refused.value.status == 403


def test_unknown_resource_is_not_found(hf: Connection) -> None:
    with pytest.raises(NotFound):
        hf.snapshots.get(1)


def test_unreachable_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.toolkit.client.api._sleep", lambda seconds: None)

    with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:9 did not answer"), connect("http://127.0.0.1:9", "t") as hf:
        hf.snapshots.get(1)


def test_missing_address_error_lists_the_ways_to_set_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_CONFIG_DIR", str(tmp_path))
    monkeypatch.delenv("HOLDFAST_API_URL", raising=False)

    with pytest.raises(UsageError, match="HOLDFAST_API_URL"):
        connect()


def test_file_that_is_no_mapping_is_refused(hf: Connection, tmp_path: Path) -> None:
    (tmp_path / "map.yaml").write_text("nodes: 3")

    with pytest.raises(UsageError, match="must have a `name` and a list of `nodes`"):
        hf.mappings.apply(tmp_path / "map.yaml")


def test_apply_updates_whatever_differs(hf: Connection) -> None:
    said = {"name": "people", "nodes": [PERSON], "edges": [KNOWS], "description": "first", "ttl": "P7D"}
    made = hf.mappings.apply(said)
    assert hf.mappings.apply(said).version == 1

    again = hf.mappings.apply({**said, "description": "second", "ttl": "P9D", "inactivity_timeout": "PT4H"})
    (head,) = hf.mappings.list(name="people")

    assert (again.id, again.version, again.description) == (made.id, 1, "second")
    assert (head.ttl, head.inactivity_timeout) == ("P9D", "PT4H")
    without = {name: said[name] for name in ("name", "nodes", "edges")}
    assert hf.mappings.apply(without).description == "second", "what is not said stays"
    with pytest.raises(UsageError, match="the engine cannot change"):
        hf.mappings.apply({**said, "engine": "trino"})


def test_special_characters_in_a_name_are_escaped(hf: Connection, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO holdfast.schema_cache (engine, catalog, schema_name, table_name, column_name, refreshed_at)"
            " VALUES ('duckdb', 'a?b', 'c#d', 'e f', 'g', now()), ('duckdb', 'a?b', 'c#d', 'e f', '', now()),"
            " ('duckdb', 'a?b', 'c#d', '', '', now()), ('duckdb', 'a?b', '', '', '', now())"
        )

    assert len(hf.schema.schemas("a?b")) == len(hf.schema.tables("a?b", "c#d")) == 1
    assert len(hf.schema.columns("a?b", "c#d", "e f")) == 1


@pytest.mark.parametrize("role", [Role.OPS, Role.ANALYST])
def test_mapping_of_another_owner_with_the_same_name_is_unchanged(hf: Connection, as_role: Any, role: Role) -> None:
    theirs = hf.mappings.create("people", nodes=[PERSON], edges=[KNOWS])

    mine = as_role(role).mappings.apply({"name": "people", "nodes": [PERSON]})

    assert (mine.owner, mine.id == theirs.id) == (f"token:{role.value}", False)
    assert hf.mappings.get(theirs.id) == theirs


def test_unknown_mapping_key_is_refused_and_edges_are_optional(hf: Connection) -> None:
    said = {"name": "people", "nodes": [PERSON], "edges": [KNOWS]}
    hf.mappings.apply(said)

    with pytest.raises(UsageError, match="the mapping has unknown keys: edge"):
        hf.mappings.apply({"name": "people", "nodes": [PERSON], "edge": [KNOWS]})

    assert hf.mappings.apply(said).version == 1
    assert hf.mappings.apply({**said, "edges": None}).edges == []


def test_a_job_can_be_waited_for_retried_and_cancelled(hf: Connection) -> None:
    job = hf.jobs.enqueue("client.waits", allow_unknown_kind=True)

    cancelled = job.cancel(reason="not needed")
    with pytest.raises(JobFailed) as failed:
        hf.jobs.wait(job, timeout=30, show=False)
    retried = job.retry()

    assert (cancelled.state, failed.value.job.id, retried.state) == ("cancelled", job.id, "pending")
    assert job.refresh().explain()
    assert [one.id for one in hf.jobs.list(kind="client.waits")] == [job.id]
    assert "job" in job._repr_html_()


def test_a_filter_that_does_not_exist_is_refused(hf: Connection) -> None:
    with pytest.raises(TypeError, match="stat"):
        hf.jobs.list(stat="failed")  # type: ignore[call-arg]


def test_an_address_may_end_in_api(hf: Connection) -> None:
    with connect(f"{hf.api.url}/api", hf.api._http.headers["Authorization"].removeprefix("Bearer ")) as again:
        assert again.jobs.list() == []


def test_database_url_is_refused() -> None:
    with pytest.raises(UsageError, match=r"holdfast\.connect\('postgresql"):
        connect("postgresql://localhost/x")


def test_an_unknown_namespace_names_the_known_ones(hf: Connection) -> None:
    with pytest.raises(AttributeError, match="jobs, pipelines, kinds"):
        _ = hf.nonsense
