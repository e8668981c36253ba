"""Bring the schema to a revision, forward or back, or print the SQL that would. Called by: apps/migrate.py, tests.

Alembic keeps the order; the statements themselves are plain SQL in `migrations/versions/`. Each migration is one
transaction with a lock timeout, so that a migration never queues the whole application up behind a busy table.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import psycopg
from alembic import command
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

from holdfast.database.pool import place_of
from holdfast.database.revision import OLDEST_POSTGRES, said_of
from holdfast.errors import DatabaseProblem, NotMigrated

SCHEMA = "holdfast"
PATIENCE = "60s"  # with another migration


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """Where the schema stands and where this code wants it."""

    current: str | None
    wanted: str
    pending: list[str]

    @property
    def is_current(self) -> bool:
        return self.current == self.wanted


def migrate(url: str, revision: str = "head") -> SchemaStatus:
    """Move the schema to `revision`: forward when it lies ahead, back when it lies behind (`base` removes everything)."""
    with _connect(url) as connection:
        _be_the_only_one(connection)
        # Asked first: IF NOT EXISTS needs the right to create a schema even when it is there.
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
        else:
            command.upgrade(config, revision)
        connection.commit()
    return status(url)


# Two pods that start at once must not both create the same table. The lock goes with the session, however that ends.
TAKE_TURNS = "SELECT pg_advisory_lock(hashtextextended('holdfast migration', 0))"


def _be_the_only_one(connection: Connection) -> None:
    """Wait until no other migration of this database is at work."""
    connection.execute(text(f"SET lock_timeout = '{PATIENCE}'"))
    try:
        connection.execute(text(TAKE_TURNS))
    except OperationalError as error:
        if not isinstance(error.orig, LockNotAvailable):
            raise
        raise DatabaseProblem(
            f"another migration of this database has been at work for {PATIENCE}: look at pg_stat_activity, then try again"
        ) from None
    connection.commit()


def status(url: str) -> SchemaStatus:
    """The revision of the schema, the newest revision, and what lies between."""
    scripts = ScriptDirectory.from_config(_config())
    wanted = scripts.get_current_head() or "base"
    with _connect(url) as connection:
        current = _current(connection)
    try:
        ahead = [script.revision for script in scripts.iterate_revisions("head", current or "base")]
    except (CommandError, RevisionError):  # a revision that this code does not know: the schema is newer than the code
        ahead = []
    return SchemaStatus(current, wanted, list(reversed(ahead)))


def would(url: str, revision: str = "head") -> str:
    """What `migrate` would do, in a sentence. Nothing is changed."""
    config = _config()
    with _connect(url) as connection:
        current = _current(connection)
    _refuse_newer(config, current)
    scripts, back = ScriptDirectory.from_config(config), _lies_behind(config, current, revision)
    newer, older = (current or "base", revision) if back else (revision, current or "base")
    names = [script.revision for script in scripts.iterate_revisions(newer, older)]
    if not names:
        return f"The schema is at {current or 'nothing'}: there would be nothing to do."
    return f"Would {'take back' if back else 'apply'}: {', '.join(names if back else reversed(names))}."


def sql(revision: str = "head") -> str:
    """The statements of every migration up to `revision`, for people who apply them by hand."""
    out = io.StringIO()
    config = _config()
    config.output_buffer = out
    command.upgrade(config, revision, sql=True)
    printed = out.getvalue().replace("%%", "%")  # doubled for a driver that is not there
    return f"CREATE SCHEMA IF NOT EXISTS {SCHEMA};\n\n{printed}"


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config


def _connect(url: str) -> Connection:
    place = place_of(url)
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)
    try:
        connection = engine.connect()
    except OperationalError as error:
        raise DatabaseProblem(
            f"cannot connect to {place}: {str(error.orig).strip()}; is the server up, and is the address right?"
        ) from None
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
    """A revision that this code does not know is one of newer code, which alone knows the way from there."""
    scripts = ScriptDirectory.from_config(config)
    if current is not None and current not in {script.revision for script in scripts.walk_revisions()}:
        raise NotMigrated(said_of(current, scripts.get_current_head() or "base"))


def _lies_behind(config: Config, current: str | None, revision: str) -> bool:
    if revision == "base":
        return True
    if current is None or revision in ("head", "heads"):
        return False
    if revision.startswith("-"):
        return True
    older = {script.revision for script in ScriptDirectory.from_config(config).iterate_revisions(current, "base")}
    return revision in older and revision != current
