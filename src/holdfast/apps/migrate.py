"""Bring a database to the current schema and say what was done. Called by: `holdfast db migrate`, `holdfast up`."""

from __future__ import annotations

from holdfast.database import migrate as database


def bring_up_to_date(url: str, revision: str = "head") -> str:
    """Migrate; what was done, in one sentence."""
    before = database.status(url)
    after = database.migrate(url, revision)
    if before.current == after.current:
        return (
            f"The schema is at revision {after.current}: nothing to do."
            if after.current
            else "There is no schema: nothing to do."
        )
    if before.current is None:
        return f"Created the schema at revision {after.current}."
    if after.current is None:
        return f"Removed the schema, which was at revision {before.current}."
    return f"Migrated the schema from revision {before.current} to {after.current}."
