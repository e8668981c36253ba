"""The checks of `holdfast doctor`: from what was read to findings, each with its fix. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from holdfast.toolkit.cli.finding import Finding, Level, ok
from holdfast.toolkit.cli.times import counted, duration, moment, took

OLDEST_POSTGRES = 15
LONG_WAIT = 600  # seconds that a job may wait before the check warns
LONG_TRANSACTION = 600
LATE = 120  # seconds that the loop with the shortest interval may be late
WRAPAROUND = 1_000_000_000  # transactions; at twice as many Postgres stops taking writes
MANY_DEAD = 10_000  # rows


Seen = Mapping[str, Any]
Found = Iterator[Finding]


def in_the_database(seen: Seen) -> Found:
    """The findings from what was read from the database."""
    for check in CHECKS:
        yield from check(seen)


def _pooler(seen: Seen) -> Found:
    """Whether a pooler is between the API and Postgres."""
    if seen["server"].get("is_pooled"):
        message = "the connection goes through a pooler; in transaction mode workers, serve and the scheduler refuse to start"
        yield Finding("pooler", Level.WARNING, message, "connect to Postgres directly, or set pool_mode = session")


def _server(seen: Seen) -> Found:
    server = seen["server"]
    message = f"PostgreSQL {server['version'].split(' ')[0]}, {server['bytes'] / 1e6:,.0f} MB"
    if server["major"] < OLDEST_POSTGRES:
        yield Finding("postgres", Level.ERROR, message, f"use PostgreSQL {OLDEST_POSTGRES} or newer")
    elif server["is_standby"]:
        yield Finding("postgres", Level.ERROR, f"{message}: a standby, which accepts no writes", "point the DSN at the primary")
    elif not server["is_durable"]:
        yield Finding("postgres", Level.WARNING, f"{message}: a crash may lose commits", "set fsync and full_page_writes to on")
    else:
        yield ok("postgres", message)


def _connections(seen: Seen) -> Found:
    server, fix = seen["server"], "raise max_connections, run fewer processes, or use a pooler in session mode"
    used, most, workers = server["connections"], server["max_connections"], server["workers_may_open"]
    message = f"{used} of {most} connections are in use"
    if used > 0.8 * most:
        yield Finding("connections", Level.WARNING, message, fix)
    elif workers > 0.8 * most:
        yield Finding("connections", Level.WARNING, f"{message}; the workers alone may open {workers} when they are busy", fix)
    else:
        yield ok("connections", message)


def _vacuum(seen: Seen) -> Found:
    off = [one["table"] for one in seen["tables"] if not one["autovacuum"]]
    if not seen["server"]["autovacuum"] or off:
        what = "at all" if not seen["server"]["autovacuum"] else f"for {', '.join(off)}"
        yield Finding(
            "autovacuum", Level.ERROR, f"autovacuum is off {what}: the tables will grow without limit", "enable autovacuum"
        )
    bloated = [one for one in seen["tables"] if one["dead"] > max(MANY_DEAD, one["live"])]
    for one in bloated:
        message = f"{one['table']} has {one['dead']:,} dead rows and {one['live']:,} live rows"
        yield Finding("bloat", Level.WARNING, message, f"end long transactions, then run: VACUUM holdfast.{one['table']}")
    if seen["server"]["frozen_age"] > WRAPAROUND:
        message = f"{seen['server']['frozen_age']:,} transactions since the last freeze"
        yield Finding("wraparound", Level.ERROR, message, "run VACUUM FREEZE before Postgres stops accepting writes")
    if not bloated and not off and seen["server"]["autovacuum"]:
        yield ok("autovacuum", "on, and it keeps up")


def _transactions(seen: Seen) -> Found:
    oldest = seen["oldest_snapshot"]
    if oldest is None or oldest["seconds"] < LONG_TRANSACTION:
        yield ok("transactions", "no long transaction is open")
        return
    who = f"{oldest['application'] or 'a client'} (pid {oldest['pid']}, {oldest['state']})"
    message = f"{who} has a transaction open for {took(oldest['seconds'])}; VACUUM cannot remove rows that died since"
    yield Finding("transactions", Level.WARNING, message, f"end it: SELECT pg_terminate_backend({oldest['pid']})")


def _workers(seen: Seen) -> Found:
    alive = sum(one["workers"] for one in seen["workers"])
    versions = sorted({one["version"] for one in seen["workers"]})
    if not alive:
        yield Finding("workers", Level.WARNING, "no worker is alive", "holdfast worker run --import your.jobs")
    elif len(versions) > 1:
        message = f"{alive} are alive, of {len(versions)} versions: {', '.join(versions)}"
        yield Finding(
            "workers", Level.WARNING, message, "finish the deploy; jobs of a newer version wait for the newer workers"
        )
    else:
        yield ok("workers", f"{alive} alive, version {versions[0]}")
    commits = [one["git_sha"][:12] for one in seen["commits"]]
    if len(commits) > 1:
        message = f"they run {len(commits)} commits: {', '.join(commits)}"
        yield Finding(
            "workers", Level.WARNING, message, "finish the deploy; `holdfast worker list -o wide` shows the commit of each"
        )
    for one in seen["silent"]:
        if one["holds"]:
            who = f"{one['name']} on {one['host']}"
            message = f"{who} was lost {took(one['seconds'])} ago and still holds {counted(one['holds'], 'job')}"
            yield Finding(
                "workers", Level.WARNING, message, "a running worker rescues them; see: holdfast job list --condition stale"
            )


def _leases(seen: Seen) -> Found:
    if seen["stale"]:
        fix = "start a worker, which rescues them, or run: holdfast job bulk recover -f condition:stale --reason …"
        yield Finding("leases", Level.WARNING, f"{counted(seen['stale'], 'job')} without a live worker", fix)
    else:
        yield ok("leases", "every running job has a live worker")
    if seen["poll_lag"] > 60:
        message = f"a submitted job should have been polled {took(seen['poll_lag'])} ago"
        yield Finding(
            "polls", Level.WARNING, message, "start more workers of its kind; engines cancel queries that are not polled"
        )


def _waiting(seen: Seen) -> Found:
    late = [one for one in seen["oldest"] if one["seconds"] > LONG_WAIT]
    for one in late:
        message = f"the oldest {one['kind']} has waited for {duration(timedelta(seconds=one['seconds']))}"
        yield Finding("waiting", Level.WARNING, message, f"start more workers, or see: holdfast job list --kind {one['kind']}")
    if not late:
        yield ok("waiting", f"no job has waited for more than {duration(timedelta(seconds=LONG_WAIT))}")


def _kinds(seen: Seen) -> Found:
    orphans = [kind for kind in seen["kinds"] if kind["waiting"] and not kind["workers"] and not kind["paused"]]
    for kind in orphans:
        message = f"{counted(kind['waiting'], 'job')} of kind {kind['kind']} waiting, and no live worker runs this kind"
        yield Finding("kinds", Level.WARNING, message, f"start a worker that imports {kind['kind']}, or cancel them")
    if not orphans:
        yield ok("kinds", "every kind with waiting jobs has a worker")


def _jobs(seen: Seen) -> Found:
    count = seen["quarantined"]["value"]
    if count:
        fix = "see: holdfast job list --condition quarantined; fix the cause, then: holdfast job retry ID"
        yield Finding("quarantine", Level.WARNING, f"{counted(count, 'job')} in quarantine after too many crashes", fix)
    else:
        yield ok("quarantine", "no job is quarantined")


def _locks(seen: Seen) -> Found:
    for one in seen["left_locks"]:
        fix = f"holdfast lock release {one['key']} --reason …"
        yield Finding("locks", Level.ERROR, f"{one['key']} is held by job {one['job_id']}, which has ended", fix)
    if not seen["left_locks"]:
        yield ok("locks", "no lock is held by an ended job")


def _controls(seen: Seen) -> Found:
    for one in seen["controls"]:
        what = " and ".join(word for word in ("paused", "drained") if one[word])
        name = "everything" if one["kind"] == "*" else one["kind"]
        undo = "holdfast undrain" if one["kind"] == "*" and one["drained"] else f"holdfast resume {one['kind']}"
        message = f"{name} is {what} by {one['actor']}: {one['reason'] or 'no reason given'}"
        yield Finding("controls", Level.WARNING, message, f"to undo it: {undo} --reason …")


def loops(seen: list[dict[str, Any]], now: datetime) -> Found:
    """The periodic loops: those that fail, and those that no scheduler runs."""
    sick = [loop for loop in seen if not loop["healthy"]]
    for loop in seen:
        every, last = loop["interval_seconds"], loop["last_success"]
        if loop["healthy"] and not loop["paused"] and every and last:
            ago = (now - moment(last)).total_seconds()
            if ago > max(3 * every, LATE):
                sick.append(loop)
                message = f"{loop['job_name']} last succeeded {took(ago)} ago; its interval is {took(every)}"
                yield Finding("loops", Level.WARNING, message, "start a scheduler: holdfast serve, or holdfast scheduler run")
    for loop in (loop for loop in sick if not loop["healthy"]):
        message = (
            f"{loop['job_name']} failed {loop['consecutive_failures']} times in a row: {loop['last_error'] or 'no message'}"
        )
        yield Finding("loops", Level.WARNING, message, "fix the error; the log of the scheduler has the details")
    if seen and not sick:
        yield ok("loops", f"{len(seen)} loops are healthy")


def schema(current: str | None, wanted: str | None) -> Finding:
    """Whether the tables are those of this code."""
    if wanted is None or current == wanted:
        return ok("schema", f"at {current}, which this code needs")
    if current is not None and current > wanted:
        message = f"at {current}, which is newer than this code ({wanted})"
        return Finding("schema", Level.ERROR, message, "run the newer version of Holdfast")
    message = f"at {current}, this code needs {wanted}" if current else f"the schema is missing, this code needs {wanted}"
    return Finding("schema", Level.ERROR, message, "holdfast db migrate")


def settings_sane(beat: float, lease: float, grace: float, termination_grace: float | None) -> Found:
    """Whether the times fit each other."""
    if lease <= 2 * beat:
        message = f"the lease ({lease:g} s) is too short for the heartbeat interval ({beat:g} s): one late heartbeat loses it"
        yield Finding("settings", Level.ERROR, message, f"set HOLDFAST_LEASE_SECONDS above {2 * beat:g}, better {6 * beat:g}")
    if termination_grace is not None and grace >= termination_grace:
        message = f"jobs may take {grace:g} s to stop, but the pod is killed after {termination_grace:g} s"
        yield Finding("settings", Level.ERROR, message, "raise terminationGracePeriodSeconds, or lower HOLDFAST_GRACE_SECONDS")
    if lease > 2 * beat and (termination_grace is None or grace < termination_grace):
        yield ok("settings", f"heartbeat {beat:g} s, lease {lease:g} s, grace {grace:g} s")


def auth(knows_somebody: bool, over_http: bool) -> Finding:
    """Whether a user can log in."""
    if knows_somebody:
        return ok("auth", "a user can log in")
    level = Level.WARNING if over_http else Level.INFO
    return Finding(
        "auth",
        level,
        "no user can log in to the API: there is no valid token and no identity provider",
        "holdfast auth token create NAME --role ops --reason …",
    )


def disk(free: int, total: int, where: str) -> Finding:
    """Whether the embedded Postgres has disk space."""
    message = f"{free / 1e9:,.1f} of {total / 1e9:,.1f} GB are free at {where}"
    if free < 1e9 or free < 0.05 * total:
        return Finding(
            "disk", Level.ERROR if free < 2e8 else Level.WARNING, message, "free disk space, or set HOLDFAST_DATA_DIR"
        )
    return ok("disk", message)


def clock(skew: float) -> Finding:
    """How far this machine's clock is from the database's. No decision depends on it."""
    return Finding(
        "clock", Level.INFO, f"this machine is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} the database"
    )


def streams(waited: float | None) -> Finding:
    """Whether events arrive at once: some proxies buffer a stream."""
    if waited is None:
        fix = "disable response buffering in the proxy; the API sends X-Accel-Buffering: no"
        return Finding("streams", Level.WARNING, "no event arrives on the event stream: a proxy may buffer it", fix)
    return ok("streams", f"the first event arrived after {took(waited)}")


def metrics(message: str | None) -> Finding:
    """Whether the metrics can be scraped with these credentials."""
    if message is not None:
        return Finding("metrics", Level.WARNING, f"/metrics cannot be read: {message}", "use a token of role viewer")
    return ok("metrics", "/metrics can be scraped")


CHECKS = (
    *(_server, _pooler, _connections, _vacuum, _transactions, _workers, _leases),
    *(_waiting, _kinds, _jobs, _locks, _controls),
)


def worst(found: list[Finding]) -> Level:
    """The worst level."""
    order = list(Level)
    return max((finding.level for finding in found), key=order.index, default=Level.OK)
