"""Migrate the schema to a revision, forward or back, or print the SQL. Called by: apps/migrate.py, tests.

Alembic keeps the order. The statements are plain SQL in `migrations/versions/` and in the `migrations/` folder of each service:
one sequence of revisions with one head. Each migration is one transaction with a lock timeout, so that it never blocks the
whole application while it waits for a busy table.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psycopg

try:
    from alembic import command
except ModuleNotFoundError as error:
    from holdfast.extras import MissingExtra

    raise MissingExtra("alembic", "cli") from error
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError
from alembic.util import CommandError
from psycopg.errors import LockNotAvailable
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from holdfast.database.locations import folders
from holdfast.database.pool import cannot_connect, parts_of
from holdfast.database.revision import OLDEST_POSTGRES, said_of
from holdfast.errors import DatabaseProblem, NotMigrated

SCHEMA = "holdfast"
PATIENCE = "60s"  # how long to wait for another migration


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The revision of the schema, and the one that this code needs."""

    current: str | None
    wanted: str
    pending: list[str]

    @property
    def is_current(self) -> bool:
        return self.current == self.wanted


def migrate(url: str, revision: str = "head") -> SchemaStatus:
    """Migrate the schema to `revision`: forward if it is newer, back if it is older (`base` removes everything)."""
    with _connect(url) as connection:
        _be_the_only_one(connection)
        # Check first: IF NOT EXISTS needs the privilege to create a schema even if it exists.
        if not connection.execute(text("SELECT to_regnamespace(:schema)"), {"schema": SCHEMA}).scalar():
            connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))
        connection.commit()
        connection.execute(text("SET lock_timeout = '5s'"))
        connection.commit()
        config = _config(connection)
        before = _current(connection)
        _refuse_newer(config, before)
        if _lies_behind(config, before, revision):
            command.downgrade(config, revision)
        elif revision != "head" or before != _scripts(config).get_current_head():
            if before is not None:  # first: a migration that removes something must not be seen by code that needs it
                _say_oldest_code(connection, _oldest_code(config, revision))
            command.upgrade(config, revision)
        _say_oldest_code(connection, _oldest_code(config, _current(connection) or "base"))
        connection.commit()
    return status(url)


def _oldest_code(config: Config, revision: str) -> str | None:
    """The oldest code that can run on the schema of this revision; None: code that does not read it."""
    scripts = _scripts(config)
    modules = [script.module for script in scripts.iterate_revisions(revision, "base")] if revision != "base" else []
    return max((module.oldest_code for module in modules if hasattr(module, "oldest_code")), default=None)


def _say_oldest_code(connection: Connection, oldest: str | None) -> None:
    """Write it where every version of the code finds it."""
    connection.execute(text(_saying(oldest)))
    connection.commit()


def _saying(oldest: str | None) -> str:
    said = "NULL" if oldest is None else f"'oldest code: {oldest}'"
    return f"COMMENT ON TABLE {SCHEMA}.alembic_version IS {said}"


# Two pods that start at once must not both create the same table. The advisory lock ends with the session, however that ends.
TAKE_TURNS = "SELECT pg_advisory_lock(hashtextextended('holdfast migration', 0))"


def _be_the_only_one(connection: Connection) -> None:
    """Wait until no other migration of this database runs."""
    connection.execute(text(f"SET lock_timeout = '{PATIENCE}'"))
    try:
        connection.execute(text(TAKE_TURNS))
    except OperationalError as error:
        if not isinstance(error.orig, LockNotAvailable):
            raise
        raise DatabaseProblem(
            f"another migration of this database has been running for {PATIENCE}; check pg_stat_activity, then try again"
        ) from None
    connection.commit()


def status(url: str) -> SchemaStatus:
    """The revision of the schema, the newest revision, and the pending ones."""
    scripts = _scripts(_config())
    wanted = scripts.get_current_head() or "base"
    with _connect(url) as connection:
        current = _current(connection)
    try:
        ahead = [script.revision for script in scripts.iterate_revisions("head", current or "base")]
    except (CommandError, RevisionError):  # a revision that this code does not know: the schema is newer than the code
        ahead = []
    return SchemaStatus(current, wanted, list(reversed(ahead)))


def would(url: str, revision: str = "head") -> str:
    """A sentence that says what `migrate` would do. Nothing is changed."""
    config = _config()
    with _connect(url) as connection:
        current = _current(connection)
    _refuse_newer(config, current)
    scripts, back = _scripts(config), _lies_behind(config, current, revision)
    newer, older = (current or "base", revision) if back else (revision, current or "base")
    names = [script.revision for script in scripts.iterate_revisions(newer, older)]
    if not names:
        return f"The schema is at {current or 'nothing'}: nothing to do."
    return f"Would {'revert' if back else 'apply'}: {', '.join(names if back else reversed(names))}."


def sql(revision: str = "head") -> str:
    """The SQL of every migration up to `revision`, to apply by hand."""
    out = io.StringIO()
    config = _config()
    config.output_buffer = out
    command.upgrade(config, revision, sql=True)
    printed = out.getvalue().replace("%%", "%")  # doubled for a driver, which is not used here
    return f"CREATE SCHEMA IF NOT EXISTS {SCHEMA};\n\n{printed}{_saying(_oldest_code(config, revision))};\n"


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", os.pathsep.join(map(str, folders())))
    config.attributes["connection"] = connection
    return config


def _scripts(config: Config) -> ScriptDirectory:
    return _read_scripts(config.get_main_option("script_location") or "", config.get_main_option("version_locations") or "")


@cache
def _read_scripts(place: str, folders: str) -> ScriptDirectory:
    """Runs the file of each migration, which takes 25 ms for all of them."""
    return ScriptDirectory(place, version_locations=folders.split(os.pathsep))


def _connect(url: str) -> Connection:
    parts_of(url)  # refuses an invalid address without showing its password
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)
    try:
        connection = engine.connect()
    except OperationalError as error:
        raise cannot_connect(url, error.orig) from None
    version = int((connection.dialect.server_version_info or (0,))[0])
    if version < OLDEST_POSTGRES:
        connection.close()
        raise DatabaseProblem(f"Postgres {OLDEST_POSTGRES} or newer is needed; this is {version}: use a newer server")
    return connection


def _current(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA})
    revision = context.get_current_revision()
    connection.commit()
    return revision


def _refuse_newer(config: Config, current: str | None) -> None:
    """Refuse a revision that this code does not know: it is from newer code, and only newer code can migrate it."""
    scripts = _scripts(config)
    if current is not None and current not in {script.revision for script in scripts.walk_revisions()}:
        raise NotMigrated(said_of(current, scripts.get_current_head() or "base"))


def _lies_behind(config: Config, current: str | None, revision: str) -> bool:
    if revision == "base":
        return True
    if current is None or revision in ("head", "heads"):
        return False
    if revision.startswith("-"):
        return True
    older = {script.revision for script in _scripts(config).iterate_revisions(current, "base")}
    return revision in older and revision != current
