"""Check that the schema has the revision that this code needs. Called by: every program at its start.

It does not use Alembic, which takes longer to import than everything else that a worker needs: the newest migration is the last
by name.

Code also runs on a schema that is newer than itself, as long as no migration in between has removed something that it uses. A
migration that does says so with `oldest_code`, the revision of the oldest code that it works with; `holdfast db migrate` writes
the highest of them into the comment of the table alembic_version. So old and new versions run side by side during a rollout,
and a rollout can be reverted.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from holdfast.database.locations import folders
from holdfast.database.pool import connect_sync
from holdfast.database.pooler import require_own_session
from holdfast.errors import DatabaseProblem, NotMigrated

OLDEST_POSTGRES = 15

THERE = "SELECT to_regclass('holdfast.alembic_version') IS NOT NULL"
OLDEST_CODE = "substring(obj_description('holdfast.alembic_version'::regclass, 'pg_class') FROM 'oldest code: (\\w+)')"
CURRENT = f"SELECT version_num, {OLDEST_CODE} FROM holdfast.alembic_version"


@cache
def wanted() -> str:
    """The revision of the newest migration."""
    return max(file.name for folder in folders() for file in folder.glob("[0-9]*.py")).partition("_")[0]


def require_current(url: str) -> None:
    """Raise unless this code can run on the schema and the connection is not behind a transaction pooler."""
    found = current(url)
    require_own_session(url)
    _refuse_other(found)


def require_schema(url: str) -> None:
    """Raise unless this code can run on the schema."""
    _refuse_other(current(url))


class Found(NamedTuple):
    """The revision of a schema, and the oldest code that may run on it."""

    revision: str | None
    oldest_code: str | None = None


def fits(found: Found, needed: str) -> bool:
    """Whether code of this revision can run on the schema: it is the same, or newer and still has everything. Pure."""
    if found.revision == needed or found.revision is None:
        return found.revision == needed
    return found.revision > needed and found.oldest_code is not None and found.oldest_code <= needed


def _refuse_other(found: Found) -> None:
    if not fits(found, wanted()):
        raise NotMigrated(said_of(found.revision, wanted()))


def said_of(found: str | None, needed: str) -> str:
    """The message for a schema of another revision, with the fix. Revisions are ordered numbers. Pure."""
    return f"the schema {'is missing' if found is None else f'is at {found}'}, {_way_out(found, needed)}"


def _way_out(found: str | None, needed: str) -> str:
    if found is not None and found > needed:
        return (
            f"but this code is older and knows revisions up to {needed}; run the newer version of Holdfast, or stop its "
            f"processes and downgrade with `holdfast db migrate {needed}` of the newer version"
        )
    return f"this code needs {needed}; run `holdfast db migrate`"


def current(url: str) -> Found:
    """The revision of the schema, if there is one."""
    with connect_sync(url) as conn:
        version = conn.info.server_version // 10_000
        if version < OLDEST_POSTGRES:
            raise DatabaseProblem(f"Postgres {OLDEST_POSTGRES} or newer is needed; this is {version}: use a newer server")
        there = conn.execute(THERE).fetchone()
        row = conn.execute(CURRENT.encode()).fetchone() if there is not None and there[0] else None
        return Found(None) if row is None else Found(*row)
