"""Upgrades and rollbacks: which code runs on which schema, and the policy that keeps this true for every migration."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from alembic.script import ScriptDirectory

from holdfast.database import migrate, revision
from holdfast.database.revision import Found, fits
from holdfast.errors import NotMigrated

SCRIPTS = ScriptDirectory.from_config(migrate._config())
MIGRATIONS = {script.revision: script for script in SCRIPTS.walk_revisions()}
COMMENTS = re.compile(r"--[^\n]*")
BODIES = re.compile(r"AS \$\$.*?\$\$", re.S)  # of functions: they run later
TABLES_MADE = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(holdfast\.\w+)", re.I)

# What code of the previous version might still use.
REMOVES = re.compile(
    r"\bDROP (?:TABLE|COLUMN|VIEW|FUNCTION|TRIGGER|TYPE|DOMAIN|SEQUENCE|CONSTRAINT)\b|\bRENAME\b"
    r"|\bALTER COLUMN \w+ (?:TYPE|SET NOT NULL|DROP DEFAULT)\b",
    re.I,
)
# What locks a table that exists for as long as it takes to read or write all of it; the first group is the table.
ALTER = r"\bALTER TABLE (holdfast\.\w+)[^;]*"
REWRITES = (
    re.compile(r"\bCREATE (?:UNIQUE )?INDEX (?!CONCURRENTLY)(?:IF NOT EXISTS )?\w+\s+ON (holdfast\.\w+)", re.I),
    re.compile(rf"{ALTER}\bADD (?:CONSTRAINT \w+ )?(?:CHECK|FOREIGN KEY|UNIQUE|EXCLUDE)\b(?![^;,]*NOT VALID)", re.I),
    re.compile(rf"{ALTER}\bGENERATED ALWAYS AS \(", re.I),
    re.compile(rf"{ALTER}\bADD COLUMN [^;,]*DEFAULT (?:clock_timestamp|now|gen_random_uuid|random)\b", re.I),
)  # fmt: skip
# The exceptions: migrations that were written before there was a version to be compatible with. No other one belongs here.
REMOVED_EARLY = {"0009", "0014", "0015", "0025", "0026"}
LOCKED_EARLY = {
    "0006": {"holdfast.pipelines"},
    "0010": {"holdfast.workers"},
    "0013": {"holdfast.jobs"},
    "0014": {"holdfast.jobs"},
    "0019": {"holdfast.snapshots", "holdfast.exports"},
    "0022": {"holdfast.snapshots"},
}
FIRST_WITH_THE_POLICY = "0030"


def upgrade_of(number: str) -> str:
    """The SQL of a migration, without comments and without the bodies of functions."""
    return BODIES.sub("AS ''", COMMENTS.sub("", str(MIGRATIONS[number].module.UPGRADE)))


@pytest.mark.parametrize("number", sorted(MIGRATIONS))
def test_a_migration_removes_nothing_that_the_previous_version_needs(number: str) -> None:
    """Expand first, contract later: a migration that removes something names the oldest code that it works with."""
    module = MIGRATIONS[number].module

    if REMOVES.search(upgrade_of(number)) and number not in REMOVED_EARLY:
        assert getattr(module, "oldest_code", None), (
            f"{number} removes something: set `oldest_code` to the first revision without it"
        )
    assert getattr(module, "oldest_code", "") <= number


@pytest.mark.parametrize("number", sorted(MIGRATIONS))
def test_a_migration_rewrites_no_table_that_exists(number: str) -> None:
    """No statement may lock a large table for long: indexes CONCURRENTLY, constraints NOT VALID, no computed columns."""
    text = upgrade_of(number)
    made = set(TABLES_MADE.findall(text))

    locked = {found for pattern in REWRITES for found in pattern.findall(text)} - made
    allowed = {*getattr(MIGRATIONS[number].module, "SMALL_TABLES", ()), *LOCKED_EARLY.get(number, ())}
    assert locked == allowed, "these tables are locked while they are read"


def test_only_migrations_from_before_the_policy_are_exceptions() -> None:
    assert max(*REMOVED_EARLY, *LOCKED_EARLY) < FIRST_WITH_THE_POLICY
    assert {number for number in MIGRATIONS if number < FIRST_WITH_THE_POLICY and REMOVES.search(upgrade_of(number))} == (
        REMOVED_EARLY
    )


@pytest.mark.parametrize(
    ("text", "removes", "rewrites"),
    [
        ("ALTER TABLE holdfast.jobs DROP COLUMN priority;", True, False),
        ("ALTER TABLE holdfast.jobs RENAME COLUMN a TO b;", True, False),
        ("ALTER TABLE holdfast.jobs ALTER COLUMN kind TYPE varchar;", True, False),
        ("DROP FUNCTION holdfast.follow_job();", True, False),
        ("CREATE INDEX a ON holdfast.jobs (kind);", False, True),
        ("CREATE INDEX CONCURRENTLY a ON holdfast.jobs (kind);", False, False),
        ("ALTER TABLE holdfast.jobs ADD CONSTRAINT c CHECK (kind <> '');", False, True),
        ("ALTER TABLE holdfast.jobs ADD CONSTRAINT c CHECK (kind <> '') NOT VALID;", False, False),
        ("ALTER TABLE holdfast.jobs ADD COLUMN n text;", False, False),
        ("ALTER TABLE holdfast.jobs ADD COLUMN at timestamptz DEFAULT clock_timestamp();", False, True),
        ("CREATE TABLE holdfast.new (id int); CREATE INDEX a ON holdfast.new (id);", False, False),
    ],
)
def test_migration_policy_detects_each_violation(text: str, removes: bool, rewrites: bool) -> None:
    made = set(TABLES_MADE.findall(text))

    assert bool(REMOVES.search(text)) == removes
    assert bool({found for pattern in REWRITES for found in pattern.findall(text)} - made) == rewrites


@pytest.mark.parametrize(
    ("found", "needed", "runs"),
    [
        (Found("0060", "0060"), "0060", True),
        (Found("0065", "0060"), "0060", True),  # the rollout of newer code has begun, or was reverted
        (Found("0065", "0062"), "0060", False),  # something that this code needs is gone
        (Found("0065", None), "0060", False),
        (Found("0059", "0050"), "0060", False),  # not migrated yet
        (Found(None), "0060", False),
    ],
)
def test_code_and_schema_compatibility(found: Found, needed: str, runs: bool) -> None:
    assert fits(found, needed) == runs


def test_the_oldest_code_is_written_with_the_migration(empty_database: str) -> None:
    migrate.migrate(empty_database, "0026")
    assert revision.current(empty_database) == Found("0026", None)

    migrate.migrate(empty_database)
    wanted = max(module.oldest_code for script in MIGRATIONS.values() if hasattr(module := script.module, "oldest_code"))
    assert revision.current(empty_database) == Found(revision.wanted(), wanted)
    revision.require_current(empty_database)

    migrate.migrate(empty_database, "0026")
    assert revision.current(empty_database) == Found("0026", None)


def test_oldest_code_is_recorded_before_the_migration_runs(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration that is killed half-way must not have removed what the comment still promises."""
    migrate.migrate(empty_database, "0026")
    seen: list[Found] = []
    monkeypatch.setattr(migrate.command, "upgrade", lambda *_: seen.append(revision.current(empty_database)))

    migrate.migrate(empty_database)

    wanted = max(module.oldest_code for script in MIGRATIONS.values() if hasattr(module := script.module, "oldest_code"))
    assert seen == [Found("0026", wanted)]


def newer(url: str, oldest: str) -> None:
    """The schema after the migrations of a version that does not exist yet."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("UPDATE holdfast.alembic_version SET version_num = '9999'")
        conn.execute(f"COMMENT ON TABLE holdfast.alembic_version IS 'oldest code: {oldest}'".encode())


def test_code_starts_on_a_newer_schema_that_has_all_it_needs(fresh_database: str) -> None:
    newer(fresh_database, revision.wanted())
    revision.require_current(fresh_database)
    revision.require_schema(fresh_database)

    newer(fresh_database, "9000")
    for check in (revision.require_current, revision.require_schema):
        with pytest.raises(NotMigrated, match="is at 9999, but this code is older"):
            check(fresh_database)


def test_printed_sql_has_the_oldest_code(empty_database: str) -> None:
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute(migrate.sql().encode())

    assert revision.current(empty_database).oldest_code is not None


def test_every_migration_can_be_found(tmp_path: Path) -> None:
    assert len(MIGRATIONS) > len(REMOVED_EARLY | set(LOCKED_EARLY))
    assert all(upgrade_of(number).strip() for number in MIGRATIONS if hasattr(MIGRATIONS[number].module, "UPGRADE"))
