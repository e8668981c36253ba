"""A database that many tests use, one after the other: cloned once, and emptied after each.

A clone takes longer than most tests. What a test has done to rows is undone; after one that has done more than that (made a
table, changed a setting, moved the schema) the next test gets a new clone, so that nobody has to say which tests do so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

# Every change of a definition writes a row of one of these; VACUUM and ANALYZE do not, nor does a temporary table that is gone.
# Only the rows of objects that were created here are read; the others come with the server.
CREATED = 16384
KEYS = dict.fromkeys(("pg_class", "pg_attrdef", "pg_constraint", "pg_proc", "pg_trigger", "pg_type"), "oid")
KEYS |= {"pg_attribute": "attrelid", "pg_index": "indexrelid", "pg_rewrite": "ev_class"}
PLACES = [f"{name} WHERE {key} >= {CREATED}" for name, key in KEYS.items()]
PLACES += [
    "pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_'",
    "pg_db_role_setting WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())",
]
SHAPE = " UNION ALL ".join(
    f"SELECT '{place.split()[0]}', count(*), sum(xmin::text::bigint)::text FROM {place}" for place in PLACES
)
OUR_TABLES = """
    SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
"""
# Without a timeout: with one, Postgres polls for the end of a backend only every 100 ms.
END_ALL_OTHERS = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
PATIENCE = 60.0  # seconds until the other backends must have ended
FROM_ONE_AGAIN = "SELECT count(setval(seqrelid::regclass, seqstart, false)) FROM pg_sequence"


@contextmanager
def new_database(server: str, definition: str = "") -> Iterator[str]:
    """The address of a database that exists for the length of the block."""
    name = f"holdfast_test_{uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} {definition}")
    yield make_url(server).set(database=name).render_as_string(hide_password=False)
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


def cloned(template: str) -> str:
    """How to make a database like this one, the cheap way: of files, and not through the log."""
    return f"TEMPLATE {template} STRATEGY FILE_COPY"


class Reused:
    """Lends a database like the template to one test at a time."""

    def __init__(self, server: str, template: str, also: str = "") -> None:
        """`also`: statements that make what these tests have beside the template."""
        self._server, self._template, self._also = server, template, also
        self._clone: Clone | None = None

    def lend(self) -> str:
        if self._clone is None:
            self._clone = Clone(self._server, self._template, self._also)
        return self._clone.url

    def take_back(self) -> None:
        """Empty it, whatever the test did to it and whoever still holds a lock there."""
        if self._clone is not None and not self._clone.is_empty_again():
            self.close()

    def close(self) -> None:
        if self._clone is not None:
            self._clone.drop()
            self._clone = None


class Clone:
    """One clone, and how it was when it was new."""

    def __init__(self, server: str, template: str, also: str) -> None:
        self._made = new_database(server, cloned(template))
        self.url = self._made.__enter__()
        self._conn = psycopg.connect(self.url, autocommit=True)
        if also:
            self._conn.execute(also.encode())
        self._conn.execute("SET lock_timeout = '10s'; SET synchronous_commit = off")
        found = [sql.Identifier(*row) for row in self._conn.execute(OUR_TABLES)]
        self._kept = [table for table in found if self._has_rows(table)]
        wiped = [sql.SQL("DELETE FROM {}").format(table) for table in found if table not in self._kept]
        self._wipe = sql.SQL("; ").join(wiped)
        with suppress(psycopg.errors.InsufficientPrivilege):  # then there is a new clone after each test
            self._conn.execute("SET session_replication_role = replica")  # also delete what may only ever be added to
        self._new = self._shape()

    def is_empty_again(self) -> bool:
        """Empty it; whether that made it as it was."""
        try:
            self._end_all_others()
            if self._shape() != self._new:
                return False
            with self._conn.transaction():
                self._conn.execute(self._wipe)
                self._conn.execute(FROM_ONE_AGAIN)
        except psycopg.Error:  # the test threw us out too, or we may not: a server that was lent to us has its own rules
            return False
        return True

    def drop(self) -> None:
        self._conn.close()
        self._made.__exit__(None, None, None)

    def _end_all_others(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._conn.execute(END_ALL_OTHERS).fetchone() != (0,):
            assert time.monotonic() < deadline, "the connections of a test did not end"
            time.sleep(0.002)

    def _has_rows(self, table: sql.Identifier) -> bool:
        return self._conn.execute(sql.SQL("SELECT 1 FROM {} LIMIT 1").format(table)).fetchone() is not None

    def _shape(self) -> list[Any]:
        """All definitions, and the rows that a migration made."""
        rows = [sql.SQL("SELECT {}, 1, t::text FROM {} t").format(table.as_string(), table) for table in self._kept]
        return sorted(self._conn.execute(sql.SQL(" UNION ALL ").join([sql.SQL(SHAPE), *rows])).fetchall())
