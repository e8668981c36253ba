"""Checks of the System page: from the facts to lines with a fix. Pure. `holdfast doctor` has the same and more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.api.plane import Plane
from holdfast.console.views.system import Health
from holdfast.toolkit.cli.times import counted, took

LONG = 600  # seconds
MANY_DEAD = 10_000  # rows


@dataclass(frozen=True, slots=True)
class Check:
    """One line: `ok`, `warning` or `error`, what was found, and how to fix it."""

    level: str
    name: str
    sentence: str
    fix: str = ""


def checks_of(seen: Health, plane: Plane) -> list[Check]:
    """All checks, the worst first."""
    found = [*_server(seen), *_tables(seen), *_workers(seen), *_locks(seen), *_proxies(plane)]
    return sorted(found, key=lambda check: ("error", "warning", "ok").index(check.level))


def _server(seen: Health) -> Iterator[Check]:
    server = seen.server
    says = f"PostgreSQL {str(server['version']).split(' ')[0]}, {server['bytes'] / 1e6:,.0f} MB"
    if server["is_standby"]:
        yield Check("error", "postgres", f"{says}: a standby, which accepts no writes", "point the DSN at the primary")
    elif not server["is_durable"]:
        yield Check("warning", "postgres", f"{says}: a crash may lose commits", "set fsync and full_page_writes to on")
    else:
        yield Check("ok", "postgres", says)
    used, most = server["connections"], server["max_connections"]
    level = "warning" if used > 0.8 * most else "ok"
    fix = "raise max_connections, or run fewer processes" if level == "warning" else ""
    yield Check(level, "connections", f"{used} of {most} connections are in use", fix)
    oldest = seen.oldest_snapshot
    if oldest is not None and oldest["seconds"] > LONG:
        says = f"pid {oldest['pid']} has a transaction open for {took(oldest['seconds'])}; VACUUM cannot remove newer dead rows"
        yield Check("warning", "transactions", says, f"SELECT pg_terminate_backend({oldest['pid']})")


def _tables(seen: Health) -> Iterator[Check]:
    bloated = [one for one in seen.tables if one["dead"] > max(MANY_DEAD, one["live"])]
    for one in bloated:
        says = f"{one['table']} has {one['dead']:,} dead rows and {one['live']:,} live rows"
        yield Check("warning", "bloat", says, f"VACUUM holdfast.{one['table']}")
    if not seen.server["autovacuum"]:
        yield Check("error", "autovacuum", "autovacuum is off", "enable autovacuum")
    elif not bloated:
        yield Check("ok", "autovacuum", "on, and it keeps up")


def _workers(seen: Health) -> Iterator[Check]:
    alive = sum(one["workers"] for one in seen.workers)
    if alive:
        versions = sorted({str(one["version"]) for one in seen.workers})
        level = "warning" if len(versions) > 1 else "ok"
        yield Check(
            level, "workers", f"{alive} alive, version {', '.join(versions)}", "finish the deploy" if len(versions) > 1 else ""
        )
    else:
        yield Check("warning", "workers", "no worker is alive", "holdfast worker run --import your.jobs")
    if seen.stale:
        yield Check("warning", "leases", f"{counted(seen.stale, 'job')} without a live worker", "recover them on the page Jobs")


def _locks(seen: Health) -> Iterator[Check]:
    for one in seen.left_locks:
        yield Check(
            "error", "locks", f"{one['key']} is held by job {one['job_id']}, which has ended", "release it on the page Locks"
        )


def _proxies(plane: Plane) -> Iterator[Check]:
    if plane.options.docs_open:
        yield Check("warning", "docs", "/docs is open to everybody", "unset HOLDFAST_DOCS_OPEN")
