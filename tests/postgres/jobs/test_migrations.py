"""The schema: forward, back, forward again; by hand from the printed SQL; and a clear word when it is not there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.script import ScriptDirectory

import programs
from factories import everything
from holdfast import catalog
from holdfast.database import migrate, revision
from holdfast.database.locations import KERNEL
from holdfast.errors import DatabaseProblem, NotMigrated

CATALOG = {
    "columns": """SELECT table_name, column_name, data_type, is_nullable, column_default, is_identity, identity_generation
                  FROM information_schema.columns WHERE table_schema LIKE 'holdfast%' ORDER BY table_name, ordinal_position""",
    "constraints": """SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
                      WHERE connamespace = 'holdfast'::regnamespace ORDER BY 1, 2""",
    "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'holdfast' ORDER BY 1",
    "triggers": """SELECT tgname, pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
                   WHERE c.relnamespace = 'holdfast'::regnamespace AND NOT tgisinternal ORDER BY 1, 2""",
    "functions": """SELECT proname, pg_get_functiondef(oid) FROM pg_proc
                    WHERE pronamespace = 'holdfast'::regnamespace ORDER BY 1""",
    "sequences": """SELECT sequencename, data_type::text, start_value, increment_by, cache_size FROM pg_sequences
                    WHERE schemaname = 'holdfast' ORDER BY 1""",
    "options": """SELECT relname, reloptions FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace AND relkind = 'r'
                  ORDER BY 1""",
}


SCRIPTS = ScriptDirectory.from_config(migrate._config())
REVISIONS = [script.revision for script in SCRIPTS.walk_revisions()][::-1]


def _catalog(url: str) -> dict[str, list[tuple[Any, ...]]]:
    with psycopg.connect(url) as conn:
        return {name: conn.execute(statement).fetchall() for name, statement in CATALOG.items()}


def _tables(url: str) -> set[str]:
    with psycopg.connect(url) as conn:
        return {name for (name,) in conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'")}


@pytest.mark.more
def test_upgrade_downgrade_upgrade_gives_the_same_schema(empty_database: str) -> None:
    nothing = migrate.status(empty_database)
    assert (nothing.current, nothing.is_current) == (None, False)
    assert nothing.pending == REVISIONS
    assert nothing.wanted == REVISIONS[-1]

    assert migrate.migrate(empty_database).is_current
    first = _catalog(empty_database)

    back = migrate.migrate(empty_database, "base")
    assert (back.current, back.is_current) == (None, False)
    assert _tables(empty_database) == {"alembic_version"}
    assert _catalog(empty_database)["functions"] == []
    assert _catalog(empty_database)["sequences"] == []

    again = migrate.migrate(empty_database)
    assert (again.current, again.pending) == (again.wanted, [])
    assert _catalog(empty_database) == first


@pytest.mark.more
def test_downgrade_of_each_revision_undoes_exactly_its_upgrade(empty_database: str) -> None:
    migrate.migrate(empty_database, REVISIONS[0])
    first = _catalog(empty_database)

    for before, after in pairwise(REVISIONS):
        migrate.migrate(empty_database, after)
        second = _catalog(empty_database)
        assert second != first, f"{after} changes nothing"
        migrate.migrate(empty_database, before)
        assert _catalog(empty_database) == first, f"the downgrade of {after} does not undo its upgrade"
        migrate.migrate(empty_database, after)
        first = second


def test_each_service_declares_the_tables_that_its_migrations_create(fresh_database: str) -> None:
    migrated, declared = _tables(fresh_database), set[str]()
    for service in catalog.SERVICES:
        files = [] if service.migrations_folder is None else service.migrations_folder.glob("*.py")
        texts = [file.read_text() for file in files]
        created = {name for text in texts for name in re.findall(r"CREATE TABLE holdfast\.(\w+)", text)}
        elsewhere = {name for text in texts for name in re.findall(r"CREATE TABLE IF NOT EXISTS (\w+\.\w+)", text)}

        assert created & migrated | elsewhere == set(service.tables), service.name
        declared |= set(service.tables)
    by_the_kernel = {name for file in KERNEL.glob("*.py") for name in re.findall(r"TABLE holdfast\.(\w+) \(", file.read_text())}
    assert migrated - declared - {"alembic_version"} == by_the_kernel & migrated


def test_concurrent_migrations_take_turns(empty_database: str) -> None:
    with ThreadPoolExecutor(4) as pods:
        ends = list(pods.map(migrate.migrate, [empty_database] * 4))

    assert all(end.is_current for end in ends)


def test_migration_lock_wait_has_a_timeout(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "PATIENCE", "10ms")
    with psycopg.connect(empty_database) as other:
        other.execute(migrate.TAKE_TURNS)
        with pytest.raises(DatabaseProblem, match="another migration of this database has been running for 10ms; check"):
            migrate.migrate(empty_database)


def test_migrating_a_current_schema_changes_nothing(empty_database: str) -> None:
    migrate.migrate(empty_database)
    before = _catalog(empty_database)

    migrate.migrate(empty_database)

    assert _catalog(empty_database) == before


def test_printed_sql_creates_the_same_schema(empty_database: str, fresh_database: str) -> None:
    text = migrate.sql()
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute(text)  # all of it at once, as psql does with a file

    assert _catalog(empty_database) == _catalog(fresh_database)
    assert migrate.status(empty_database).is_current


def test_missing_schema_error_names_the_command(empty_database: str) -> None:
    with pytest.raises(NotMigrated, match=r"the schema is missing, this code needs \w+; run `holdfast db migrate`"):
        revision.require_current(empty_database)


def test_outdated_schema_error_names_the_command(fresh_database: str) -> None:
    revision.require_current(fresh_database)
    with psycopg.connect(fresh_database, autocommit=True) as conn:
        conn.execute("UPDATE holdfast.alembic_version SET version_num = '0000'")

    with pytest.raises(NotMigrated, match="the schema is at 0000, this code needs"):
        revision.require_current(fresh_database)


def test_newer_schema_is_not_migrated(fresh_database: str) -> None:
    """`holdfast db migrate` of the old code cannot help: it does not know the revision."""
    with psycopg.connect(fresh_database, autocommit=True) as conn:
        conn.execute("UPDATE holdfast.alembic_version SET version_num = '9999'")
        conn.execute("COMMENT ON TABLE holdfast.alembic_version IS 'oldest code: 9998'")

    for act in (revision.require_current, migrate.migrate, migrate.would):
        with pytest.raises(NotMigrated, match=r"is at 9999, but this code is older.*run the newer version") as refused:
            act(fresh_database)
        assert "run `holdfast db migrate`" not in str(refused.value)


def test_unknown_revision_is_refused_on_a_current_database(fresh_database: str) -> None:
    with pytest.raises(Exception, match="nonsense"):
        migrate.migrate(fresh_database, "nonsense")


def test_migration_gives_up_on_a_locked_table(fresh_database: str) -> None:
    """P26: it gives up by itself instead of waiting with everybody behind it."""
    with psycopg.connect(fresh_database) as busy:
        busy.execute("SELECT count(*) FROM holdfast.jobs")  # an open transaction that has looked at the table
        seen: list[str] = []
        original = migrate._config

        def watched(connection: Any = None) -> Any:
            if connection is not None:
                seen.append(connection.exec_driver_sql("SHOW lock_timeout").scalar())
                connection.exec_driver_sql("SET lock_timeout = '10ms'")
                connection.commit()
            return original(connection)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(migrate, "_config", watched)
            with pytest.raises(Exception, match="lock timeout"):
                migrate.migrate(fresh_database, "base")

    assert seen == ["5s"]
    assert migrate.status(fresh_database).current is not None, "one transaction each: of the one that gave up nothing happened"
    assert "jobs" in _tables(fresh_database)


def test_old_postgres_is_refused_with_the_required_version(fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (migrate, revision):
        monkeypatch.setattr(module, "OLDEST_POSTGRES", 99)

    for look in (migrate.status, revision.require_current):
        with pytest.raises(DatabaseProblem, match="Postgres 99 or newer is needed; this is 1"):
            look(fresh_database)


def test_the_newest_migration_is_known_without_alembic() -> None:
    assert revision.wanted() == ScriptDirectory.from_config(migrate._config()).get_current_head()


async def test_a_migrated_database_is_empty(conn: Any) -> None:
    assert not any((await everything(conn)).values())


@pytest.mark.processes
@pytest.mark.parametrize("number", [*(pytest.param(one, marks=pytest.mark.more) for one in (1, 4)), len(REVISIONS)])
def test_f_41_killed_migration_leaves_nothing_and_runs_again(
    empty_database: str, fresh_database: str, number: int, tmp_path: Path
) -> None:
    """A real process and a real SIGKILL, when the statements of the n-th migration have run and it is not committed."""

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        return programs.run("db", "migrate", "--dsn", empty_database, env=os.environ | environment, folder=tmp_path)

    killed = run(HOLDFAST_CRASH_AT=f"migrate.mid:{number}")

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert migrate.status(empty_database).pending == REVISIONS[number - 1 :]

    again = run()

    assert again.returncode == 0, again.stderr
    assert migrate.status(empty_database).is_current
    assert _catalog(empty_database) == _catalog(fresh_database)
