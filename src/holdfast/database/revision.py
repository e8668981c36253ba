"""Whether the schema is the one that this code was written for. Called by: every program, before it does anything else.

Without Alembic, which takes longer to load than all else that a worker needs: the newest migration is the last by name.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import psycopg
from psycopg.rows import scalar_row

from holdfast.database.pool import connect_sync, place_of
from holdfast.errors import DatabaseProblem, NotMigrated

MIGRATIONS = Path(__file__).parent / "migrations" / "versions"
OLDEST_POSTGRES = 15

THERE = "SELECT to_regclass('holdfast.alembic_version') IS NOT NULL"
CURRENT = "SELECT version_num FROM holdfast.alembic_version"


@cache
def wanted() -> str:
    """The revision of the newest migration."""
    return max(file.name for file in MIGRATIONS.glob("[0-9]*.py")).partition("_")[0]


def require_current(url: str) -> None:
    """Raise unless the schema is the one that this code was written for."""
    found = current(url)
    if found != wanted():
        have = f"is at {found}" if found else "is missing"
        raise NotMigrated(f"the schema {have}, this code needs {wanted()}; run `holdfast db migrate`")


def current(url: str) -> str | None:
    """The revision of the schema; None: there is none."""
    try:
        conn = connect_sync(url, row_factory=scalar_row)
    except psycopg.OperationalError as error:
        why = f"{str(error).strip()}; is the server up, and is the address right?"
        raise DatabaseProblem(f"cannot connect to {place_of(url)}: {why}") from None
    with conn:
        version = conn.info.server_version // 10_000
        if version < OLDEST_POSTGRES:
            raise DatabaseProblem(f"Postgres {OLDEST_POSTGRES} or newer is needed; this is {version}: use a newer server")
        return conn.execute(CURRENT).fetchone() if conn.execute(THERE).fetchone() else None
