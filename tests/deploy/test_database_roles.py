"""`holdfast db roles`: every program works with its role, and the role can do no more than that."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx2
import psycopg
import pytest
from sqlalchemy.engine import make_url

import programs
from holdfast import catalog
from holdfast.database import migrate, roles
from holdfast.errors import DatabaseProblem, UsageError
from holdfast.services.maintenance.settings import MaintenanceSettings
from iceberg_tables import end_threads
from maintenance_factories import PATH, make_table
from serving import serving

DENIED = psycopg.errors.InsufficientPrivilege
PATIENCE = 120.0
MAPPING = {
    "name": "numbers",
    "engine": "duckdb",
    "nodes": [
        {
            "label": "N",
            "sql": "SELECT 1 AS id, 'one' AS name",
            "primary_key": {"name": "id", "type": "INT64"},
            "properties": [{"name": "name", "type": "STRING"}],
        }
    ],
    "edges": [],
}
FORBIDDEN = {
    "worker": [
        "SELECT FROM holdfast.tokens",
        "SELECT FROM holdfast.secrets",
        "SELECT FROM holdfast.audit",
        "SELECT FROM holdfast.idempotency",
        "INSERT INTO holdfast.controls (kind) VALUES ('*')",
        "UPDATE holdfast.config SET value = '1'",
        "DELETE FROM holdfast.loops",
        "CREATE TABLE holdfast.mine ()",
        "DROP TABLE holdfast.jobs",
        "TRUNCATE holdfast.jobs",
    ],
    "api": [
        "DELETE FROM holdfast.audit",
        "UPDATE holdfast.audit SET actor = 'nobody'",
        "INSERT INTO holdfast.job_followers VALUES ('k', 'holdfast.follow_export_job')",
        "UPDATE holdfast.alembic_version SET version_num = '0001'",
        "ALTER TABLE holdfast.jobs DISABLE TRIGGER ALL",
    ],
    "autoscaler": [
        "SELECT FROM holdfast.jobs",
        "SELECT owner FROM holdfast.snapshots",
        "SELECT location FROM holdfast.snapshots",
        "UPDATE holdfast.jobs SET priority = 1",
    ],
    "reader": [
        "SELECT FROM holdfast.tokens",
        "SELECT FROM holdfast.secrets",
        "SELECT FROM holdfast.idempotency",
        "SELECT handle FROM holdfast.effects",
    ],
}


def test_every_table_has_its_rights(fresh_database: str) -> None:
    """A new table of the kernel must be in `roles.KERNEL`; those of services are read from their declarations."""
    with psycopg.connect(fresh_database) as conn:
        ours = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname LIKE 'holdfast%'"
        found = {table if schema == "holdfast" else f"{schema}.{table}" for schema, table in conn.execute(ours)}

    assert found == set(roles.KERNEL) | set(catalog.tables())


@pytest.mark.parametrize(("role", "statement"), [(role, one) for role, all_of in FORBIDDEN.items() for one in all_of])
def test_a_role_can_do_no_more_than_its_program_needs(shared_roles: Any, role: str, statement: str) -> None:
    """Q-04"""
    with psycopg.connect(shared_roles[role]) as conn:
        conn.execute("SET transaction_read_only = off")
        with pytest.raises(DENIED):
            conn.execute(statement.encode())


@pytest.mark.parametrize("role", ["autoscaler", "reader"])
def test_a_role_that_reads_writes_nothing_even_where_it_might(shared_roles: Any, role: str) -> None:
    """Y-05"""
    with psycopg.connect(shared_roles[role]) as conn, pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        conn.execute("CREATE SCHEMA mine")


def test_reader_sees_effects_without_their_handles(shared_roles: Any, database: str) -> None:
    """A handle may have a secret of the external engine. A new column is given to readers, or is named here."""
    with psycopg.connect(database) as conn:
        ours = "SELECT column_name FROM information_schema.columns WHERE (table_schema, table_name) = ('holdfast', 'effects')"
        columns = {name for (name,) in conn.execute(ours)}

    assert columns - set(roles.EFFECTS_WITHOUT_HANDLE) == {"handle"}
    with psycopg.connect(shared_roles["reader"]) as conn:
        assert conn.execute("SELECT kind, tag, state, error, clean_after FROM holdfast.effects").fetchall() == []


def test_running_it_again_takes_back_what_was_granted_by_hand(as_roles: Any, fresh_database: str) -> None:
    with psycopg.connect(fresh_database, autocommit=True) as conn:
        conn.execute(f"GRANT SELECT ON holdfast.tokens TO {as_roles.prefix}_worker".encode())

    assert roles.apply(fresh_database, as_roles.prefix, catalog.tables(), {}) == []

    with psycopg.connect(as_roles["worker"]) as conn, pytest.raises(DENIED):
        conn.execute("SELECT FROM holdfast.tokens")


def test_no_password_is_sent_to_the_server(as_roles: Any, fresh_database: str) -> None:
    with psycopg.connect(fresh_database) as conn:
        found = conn.execute("SELECT rolpassword FROM pg_authid WHERE rolname = %s", [f"{as_roles.prefix}_api"]).fetchone()

    assert found is not None
    assert found[0].startswith("SCRAM-SHA-256$")


def test_wrong_input_is_refused_with_the_fix(empty_database: str) -> None:
    with pytest.raises(UsageError, match="'Bad-name_api' cannot be the name of a role: use a prefix of lower-case"):
        list(roles.statements("Bad-name", ()))
    with pytest.raises(UsageError, match="there is no role 'cat': use api, worker, autoscaler, reader"):
        roles.apply(empty_database, "p", (), {"cat": "x"})
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute("CREATE SCHEMA holdfast")
    with pytest.raises(DatabaseProblem, match="run `holdfast db migrate` first"):
        roles.apply(empty_database, "unmade", (), {})


def test_a_role_that_may_not_create_roles_is_told_so(as_roles: Any) -> None:
    with pytest.raises(DatabaseProblem, match=r"run it as the owner of the schema holdfast with CREATEROLE"):
        roles.apply(as_roles["worker"], "another", (), {})


def test_an_owner_who_is_no_superuser_makes_the_roles(empty_database: str) -> None:
    """As documented: it migrates, owns the schema and may create roles. What only a superuser may grant is reported."""
    prefix = f"t{uuid4().hex[:10]}"
    as_owner = make_url(empty_database).set(username=f"{prefix}_owner", password="of-the-test")
    owner = as_owner.render_as_string(hide_password=False)
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {prefix}_owner LOGIN CREATEROLE PASSWORD 'of-the-test'".encode())
        conn.execute(f"GRANT CREATE ON DATABASE {conn.info.dbname} TO {prefix}_owner".encode())
        superuser_only = conn.info.server_version >= 160000
    try:
        migrate.migrate(owner)
        missing = roles.apply(owner, prefix, catalog.tables(), {"worker": "of-the-worker"})
        again = roles.apply(owner, prefix, catalog.tables(), {})

        wanted = [f"GRANT pg_read_all_stats TO {prefix}_api"] if superuser_only else []
        assert missing == again == wanted
        worker = make_url(owner).set(username=f"{prefix}_worker", password="of-the-worker")
        with psycopg.connect(worker.render_as_string(hide_password=False)) as conn:
            conn.execute("SELECT FROM holdfast.jobs")
            with pytest.raises(DENIED):
                conn.execute("SELECT FROM holdfast.tokens")
    finally:
        with psycopg.connect(empty_database, autocommit=True) as conn:
            for role in (*roles.ROLES, "owner"):
                conn.execute(f"DROP OWNED BY {prefix}_{role} CASCADE".encode())
                conn.execute(f"DROP ROLE {prefix}_{role}".encode())


@pytest.mark.more  # each right of a role has a test of its own
@pytest.mark.processes
def test_all_programs_work_with_their_roles(as_roles: Any, fresh_database: str, tmp_path: Path) -> None:
    """The control plane with its loops, a worker with a database connection, an export and the maintenance of a table in the
    embedded catalog to their ends, and every loop once."""
    warehouse = str(tmp_path / "warehouse")
    environment = {"HOLDFAST_SNAPSHOTS_TO": str(tmp_path / "snapshots"), "HOLDFAST_SCHEDULER_LOOK_SECONDS": "0.2"}
    environment["HOLDFAST_ICEBERG_WAREHOUSE"] = warehouse
    owner: Any = SimpleNamespace(settings=MaintenanceSettings(iceberg_warehouse=warehouse))
    make_table(owner, fresh_database, files=3)
    end_threads()
    with serving(as_roles["api"], tmp_path, **environment) as served, (tmp_path / "worker.log").open("w") as log:
        worker = programs.start(
            *("worker", "run", "--dsn", as_roles["worker"], "--log-format", "json"),
            env=os.environ | environment,
            folder=tmp_path,
            out=log,
            err=log,
        )
        try:
            with httpx2.Client(
                base_url=served.url, headers={"Authorization": f"Bearer {served.token}"}, timeout=PATIENCE, trust_env=False
            ) as ops:
                mapping = ops.post("/api/mappings", json=MAPPING).raise_for_status().json()["data"]
                made = ops.post("/api/snapshots", json={"mapping_id": mapping["id"]}).raise_for_status().json()["data"]
                number, loops = made["snapshot"]["id"], "/api/ops/jobs/status"
                run = ops.post(PATH, json={"actions": ["rewrite_data_files"]}).raise_for_status().json()["data"]["id"]
                _wait_until(lambda: ops.get(f"/api/jobs/{run}").json()["data"]["state"] == "completed", served.log)
                _wait_until(
                    lambda: ops.get(f"/api/snapshots/{number}").json()["data"]["snapshot"]["status"] == "ready", served.log
                )
                for loop in ops.get(loops).json()["data"]:
                    ops.post(f"/api/periodic/{loop['job_name']}/trigger", json={"reason": "test"}).raise_for_status()
                _wait_until(lambda: all(loop["last_success"] for loop in ops.get(loops).json()["data"]), served.log)
                metrics = ops.get("/metrics").raise_for_status().text
        finally:
            worker.terminate()
            worker.wait(PATIENCE)

    said = served.log.read_text() + (tmp_path / "worker.log").read_text()
    assert "holdfast_database_reachable 1.0" in metrics
    assert "permission denied" not in said


def _wait_until(true: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
