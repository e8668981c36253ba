"""The SQL catalog in our own Postgres, whose commits check the fence in their own transaction.

The row of the job is locked FOR SHARE before the row of the table is updated, in one transaction. So a commit of an attempt
that was replaced is refused, and a replacement waits for a commit that is under way: no window is left. A transaction that
stands still is ended by Postgres, so a frozen process delays its replacement by seconds.

The catalog has a schema of its own. Writers use it as a plain SQL catalog with `search_path` set to `SCHEMA`.
"""

from __future__ import annotations

from typing import Any, Final

from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
from sqlalchemy import Connection, event, text

from holdfast.crashpoints import crashpoint
from holdfast.services.maintenance.engines.pyiceberg.fence_scope import ChecksFence, Fenced, current_fence

SCHEMA: Final = "holdfast_iceberg"
IDLE_MS: Final = 15_000  # a commit takes milliseconds; a transaction that stands still for longer belongs to a frozen process
LOCK_MS: Final = 15_000

PREPARE: Final = (
    f"SET search_path = {SCHEMA}",
    f"SET idle_in_transaction_session_timeout = {IDLE_MS}",
    f"SET lock_timeout = {LOCK_MS}",
)
# Migrations create the schema and its tables, because programs may not. This is for a database without our schema.
HAS_SCHEMA: Final = text(f"SELECT to_regnamespace('{SCHEMA}') IS NOT NULL")
CREATE_SCHEMA: Final = text(f"CREATE SCHEMA {SCHEMA}")
ONE_AT_A_TIME: Final = text("SELECT pg_advisory_xact_lock(hashtextextended('holdfast.iceberg.catalog', 0))")
HOLDS_JOB: Final = text("""
    SELECT 1 FROM holdfast.jobs
    WHERE id = :job_id AND attempt_id = CAST(:attempt_id AS uuid) AND fence_token = :fence_token AND state = 'running'
    FOR SHARE
""")


class EmbeddedCatalog(SqlCatalog):
    """The SQL catalog in our Postgres, for readers and writers that are not maintenance."""

    def _init_catalog(self) -> None:
        event.listen(self.engine, "connect", _prepare)
        with self.engine.begin() as connection:
            connection.execute(ONE_AT_A_TIME)
            if not connection.execute(HAS_SCHEMA).scalar():
                connection.execute(CREATE_SCHEMA)
            SqlCatalogBaseTable.metadata.create_all(connection)
        super()._init_catalog()


class FencedSqlCatalog(EmbeddedCatalog, ChecksFence):
    """The same catalog for maintenance: every write of a table is refused unless the current fence still holds its job."""

    def _init_catalog(self) -> None:
        super()._init_catalog()
        event.listen(self.engine, "before_cursor_execute", _guard)


def _prepare(dbapi_connection: Any, _: Any) -> None:
    """Set up a new connection."""
    before = dbapi_connection.autocommit
    dbapi_connection.autocommit = True
    with dbapi_connection.cursor() as cursor:
        for statement in PREPARE:
            cursor.execute(statement)
    dbapi_connection.autocommit = before


def _guard(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
    """Check the fence in the transaction of a statement that writes a table's row."""
    words = statement.split(None, 3)[:3]
    verb, table = words[0].upper(), (words[1] if words[0].upper() == "UPDATE" else words[-1])
    if verb not in ("INSERT", "UPDATE", "DELETE") or not table.strip('"').startswith("iceberg_"):
        return
    fence = current_fence()
    held = connection.execute(
        HOLDS_JOB, {"job_id": fence.job_id, "attempt_id": fence.attempt_id, "fence_token": fence.fence_token}
    ).first()
    if held is None:
        raise Fenced(f"attempt {fence.attempt_id} does not hold job {fence.job_id} any more")
    crashpoint("maintenance.commit.in_tx")
