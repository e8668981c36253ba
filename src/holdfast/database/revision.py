"""Whether the schema is the one that this code was written for. Called by: every program, before it does anything else.

Without Alembic, which takes longer to load than all else that a worker needs: the newest migration is the last by name.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import psycopg
from psycopg.rows import scalar_row

from holdfast.database.pool import connect_sync, place_of
from holdfast.database.pooler import require_own_session
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
    """Raise unless the schema is the one that this code was written for, and the session is our own."""
    found = current(url)
    require_own_session(url)
    if found != wanted():
        raise NotMigrated(said_of(found, wanted()))


def said_of(found: str | None, needed: str) -> str:
    """What is wrong with a schema of another version, and what to do. Revisions are numbers in order. Pure."""
    return f"the schema {'is missing' if found is None else f'is at {found}'}, {_way_out(found, needed)}"


def _way_out(found: str | None, needed: str) -> str:
    if found is not None and found > needed:
        return (
            f"and this code is older: it knows up to {needed}; run the newer version of Holdfast, or go back with "
            f"`holdfast db migrate {needed}` of the newer version when none of its processes runs"
        )
    return f"this code needs {needed}; run `holdfast db migrate`"


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
