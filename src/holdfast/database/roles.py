"""Database roles with the fewest rights for each program. Called by: `holdfast db roles`.

| Role | Used by | May |
| --- | --- | --- |
| `<prefix>_api` | control plane, scheduler | read and write all tables; only add to the audit log |
| `<prefix>_worker` | workers with a database connection | read and write jobs and tables of services; no tokens |
| `<prefix>_autoscaler` | KEDA | read the views `demand`, `export_jobs` and `job_queue`, and the status of snapshots |
| `<prefix>_reader` | dashboards, people | read everything but tokens, secrets, stored responses and handles of effects |

The role that migrates owns the schema and is not made here. `statements` is pure: what is printed is what is run. They can be
run again, and must be after each migration: a new table has no rights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import psycopg
from psycopg import sql

from holdfast.database.pool import connect_sync
from holdfast.errors import DatabaseProblem, UsageError

ROLES: Final = ("api", "worker", "autoscaler", "reader")
FULL, ADD, READ, NONE = "SELECT, INSERT, UPDATE, DELETE", "SELECT, INSERT", "SELECT", ""
# The rights of api, worker and reader on each table of the kernel. Tables of services are (FULL, FULL, READ); those that are
# not in the schema `holdfast` are given with their schema.
KERNEL: Final[dict[str, tuple[str, str, str]]] = {
    "alembic_version": (READ, READ, READ),
    "audit": (ADD, NONE, READ),  # append-only
    "config": (FULL, READ, READ),
    "controls": (FULL, READ, READ),
    "dependencies": (FULL, FULL, READ),
    "effects": (FULL, FULL, NONE),  # readers get `EFFECTS_WITHOUT_HANDLE`
    "ended_sessions": (FULL, NONE, NONE),
    "history": (FULL, FULL, READ),
    "idempotency": (FULL, NONE, NONE),  # has the bodies of responses
    "job_followers": (READ, READ, READ),  # names of functions that the database calls: only migrations write it
    "jobs": (FULL, FULL, READ),
    "kinds": (FULL, FULL, READ),
    "lock_holders": (FULL, FULL, READ),
    "lock_keys": (FULL, FULL, READ),
    "lock_wants": (FULL, FULL, READ),
    "log_lines": (FULL, FULL, READ),
    "loop_keys": (FULL, NONE, READ),
    "loop_runs": (FULL, NONE, READ),
    "loops": (FULL, NONE, READ),
    "periodic_jobs": (FULL, FULL, READ),
    "pipelines": (FULL, FULL, READ),
    "rate_limits": (FULL, NONE, READ),
    "secrets": (FULL, NONE, NONE),
    "tallies": (FULL, FULL, READ),
    "tokens": (FULL, NONE, NONE),
    "workers": (FULL, FULL, READ),
}
OF_A_SERVICE: Final = (FULL, FULL, READ)
# A handle may have a secret of the external engine, such as that of a Thrift session.
EFFECTS_WITHOUT_HANDLE: Final = (
    *("id", "job_id", "attempt_id", "fence_token", "kind", "tag", "detail", "temporary", "adoptable", "state"),
    *("clean_id", "clean_after", "clean_tries", "error", "created_at", "gone_at"),
)
VIEWS: Final = ("demand", "export_jobs", "job_queue")
STATUS_OF_SNAPSHOTS: Final = ("id", "mapping_id", "status", "created_at")  # no owner, no location, no SQL
STATISTICS: Final = "GRANT pg_read_all_stats TO {}"  # sessions of other roles: xmin horizon, sessions that have ended


def statements(prefix: str, service_tables: Iterable[str]) -> Iterator[str]:
    """The SQL that creates the roles and sets their rights, one statement each. Pure."""
    names = {role: _checked(f"{prefix}_{role}") for role in ROLES}
    for name in names.values():
        yield _unless_it_exists(name)
    everyone = ", ".join(names.values())
    yield f"REVOKE ALL ON ALL TABLES IN SCHEMA holdfast FROM {everyone}"
    yield f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA holdfast FROM {everyone}"
    yield f"GRANT USAGE ON SCHEMA holdfast TO {everyone}"
    rights = {_qualified(table): given for table, given in (KERNEL | dict.fromkeys(service_tables, OF_A_SERVICE)).items()}
    for schema in sorted({table.partition(".")[0] for table in rights} - {"holdfast"}):
        yield f"GRANT USAGE ON SCHEMA {schema} TO {names['api']}, {names['worker']}, {names['reader']}"
    for at, role in enumerate(("api", "worker", "reader")):
        for allowed in (FULL, ADD, READ):
            tables = sorted(table for table, given in rights.items() if given[at] == allowed)
            if tables:
                yield f"GRANT {allowed} ON {', '.join(tables)} TO {names[role]}"
    yield f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA holdfast TO {names['api']}, {names['worker']}"
    yield f"GRANT SELECT ON {', '.join(f'holdfast.{view}' for view in VIEWS)} TO {everyone}"
    yield f"GRANT SELECT ({', '.join(STATUS_OF_SNAPSHOTS)}) ON holdfast.snapshots TO {names['autoscaler']}"
    yield f"GRANT SELECT ({', '.join(EFFECTS_WITHOUT_HANDLE)}) ON holdfast.effects TO {names['reader']}"
    for role in ("autoscaler", "reader"):  # queries of documents and people name no schema
        yield f"ALTER ROLE {names[role]} SET search_path = holdfast"
        yield f"ALTER ROLE {names[role]} SET default_transaction_read_only = on"
    for role, seconds in (("autoscaler", 10), ("reader", 60)):
        yield f"ALTER ROLE {names[role]} SET statement_timeout = '{seconds}s'"


def _qualified(table: str) -> str:
    return table if "." in table else f"holdfast.{table}"


def _unless_it_exists(name: str) -> str:
    return (
        f"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}') THEN "
        f"CREATE ROLE {name} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE; END IF; END $$"
    )


def _checked(name: str) -> str:
    if not name.isascii() or not name.isidentifier() or name != name.lower() or len(name) > 63:
        raise UsageError(f"{name!r} cannot be the name of a role: use a prefix of lower-case letters, digits and underscores")
    return name


def apply(url: str, prefix: str, service_tables: Iterable[str], passwords: Mapping[str, str]) -> list[str]:
    """Create the roles and set their rights and passwords, in one transaction. Returns what could not be granted."""
    for unknown in sorted(set(passwords) - set(ROLES)):
        raise UsageError(f"there is no role {unknown!r}: use {', '.join(ROLES)}")
    try:
        with connect_sync(url) as conn:
            for statement in statements(prefix, service_tables):
                conn.execute(statement.encode())
            for role, password in passwords.items():
                _set_password(conn, f"{prefix}_{role}", password)
            return [*_grant_statistics(conn, f"{prefix}_api")]
    except psycopg.errors.InsufficientPrivilege as error:
        raise DatabaseProblem(
            f"the roles could not be changed: {error.diag.message_primary}; "
            "run it as the owner of the schema holdfast with CREATEROLE"
        ) from None
    except psycopg.errors.UndefinedTable as error:
        raise DatabaseProblem(
            f"the roles could not be changed: {error.diag.message_primary}; run `holdfast db migrate` first"
        ) from None


def _set_password(conn: psycopg.Connection[object], role: str, password: str) -> None:
    """Only the SCRAM verifier is sent: a statement may be logged."""
    if not password:
        raise UsageError(f"the password of {role} is empty")
    verifier = conn.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    conn.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), sql.Literal(verifier)))


def _grant_statistics(conn: psycopg.Connection[object], role: str) -> Iterator[str]:
    """From Postgres 16 on, only a superuser or a role with ADMIN on it may grant a built-in role."""
    try:
        with conn.transaction():
            conn.execute(STATISTICS.format(role).encode())
    except psycopg.errors.InsufficientPrivilege:
        yield STATISTICS.format(role)
