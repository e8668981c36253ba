"""What a doctor concludes from what was seen: each finding with what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from holdfast.cli.times import counted, duration, moment, took

OLDEST_POSTGRES = 15
LONG_WAIT = 600  # seconds that a job may wait before somebody should look
LONG_TRANSACTION = 600
SOON = 120  # seconds that the loop with the shortest interval may be late
WRAPAROUND = 1_000_000_000  # transactions; at twice as many Postgres stops taking writes
MANY_DEAD = 10_000  # rows


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Finding(NamedTuple):
    """One thing that was looked at."""

    check: str
    level: Level
    says: str
    fix: str | None = None


Seen = Mapping[str, Any]
Found = Iterator[Finding]


def ok(check: str, says: str) -> Finding:
    return Finding(check, Level.OK, says)


def in_the_database(seen: Seen) -> Found:
    """Everything that the checkup of the database tells."""
    for look in LOOKS:
        yield from look(seen)


def _pooler(seen: Seen) -> Found:
    """Whether something stands between the API and Postgres that shares sessions."""
    if seen["server"].get("is_pooled"):
        says = "a pooler answers in Postgres's place; in transaction mode workers, serve and the scheduler refuse to start"
        yield Finding("pooler", Level.WARNING, says, "connect to Postgres itself, or make sure of pool_mode = session")


def _server(seen: Seen) -> Found:
    server = seen["server"]
    says = f"PostgreSQL {server['version'].split(' ')[0]}, {server['bytes'] / 1e6:,.0f} MB"
    if server["major"] < OLDEST_POSTGRES:
        yield Finding("postgres", Level.ERROR, says, f"use PostgreSQL {OLDEST_POSTGRES} or newer")
    elif server["is_standby"]:
        yield Finding("postgres", Level.ERROR, f"{says}: a standby, which takes no writes", "point the DSN at the primary")
    elif not server["is_durable"]:
        yield Finding("postgres", Level.WARNING, f"{says}: a crash may lose commits", "set fsync and full_page_writes to on")
    else:
        yield ok("postgres", says)


def _connections(seen: Seen) -> Found:
    server, fix = seen["server"], "raise max_connections, run fewer processes, or put a pooler in session mode between"
    used, most, workers = server["connections"], server["max_connections"], server["workers_may_open"]
    says = f"{used} of {most} connections are in use"
    if used > 0.8 * most:
        yield Finding("connections", Level.WARNING, says, fix)
    elif workers > 0.8 * most:
        yield Finding("connections", Level.WARNING, f"{says}; the workers alone may open {workers} when they are busy", fix)
    else:
        yield ok("connections", says)


def _vacuum(seen: Seen) -> Found:
    off = [one["table"] for one in seen["tables"] if not one["autovacuum"]]
    if not seen["server"]["autovacuum"] or off:
        what = "at all" if not seen["server"]["autovacuum"] else f"for {', '.join(off)}"
        yield Finding("autovacuum", Level.ERROR, f"autovacuum is off {what}: the tables will only grow", "turn autovacuum on")
    bloated = [one for one in seen["tables"] if one["dead"] > max(MANY_DEAD, one["live"])]
    for one in bloated:
        says = f"{one['table']} has {one['dead']:,} dead rows beside {one['live']:,} live ones"
        yield Finding("bloat", Level.WARNING, says, f"end long transactions, then run: VACUUM holdfast.{one['table']}")
    if seen["server"]["frozen_age"] > WRAPAROUND:
        says = f"{seen['server']['frozen_age']:,} transactions since the last freeze"
        yield Finding("wraparound", Level.ERROR, says, "run VACUUM FREEZE before Postgres stops taking writes")
    if not bloated and not off and seen["server"]["autovacuum"]:
        yield ok("autovacuum", "on, and it keeps up")


def _transactions(seen: Seen) -> Found:
    oldest = seen["oldest_snapshot"]
    if oldest is None or oldest["seconds"] < LONG_TRANSACTION:
        yield ok("transactions", "none is open for long")
        return
    who = f"{oldest['application'] or 'somebody'} (pid {oldest['pid']}, {oldest['state']})"
    says = f"{who} has had a transaction open for {took(oldest['seconds'])}; nothing that died since can be removed"
    yield Finding("transactions", Level.WARNING, says, f"end it: SELECT pg_terminate_backend({oldest['pid']})")


def _workers(seen: Seen) -> Found:
    alive = sum(one["workers"] for one in seen["workers"])
    versions = sorted({one["version"] for one in seen["workers"]})
    if not alive:
        yield Finding("workers", Level.WARNING, "no worker is alive", "holdfast worker run --import your.jobs")
    elif len(versions) > 1:
        says = f"{alive} are alive, of {len(versions)} versions: {', '.join(versions)}"
        yield Finding("workers", Level.WARNING, says, "finish the deploy; jobs of a newer version wait for the newer workers")
    else:
        yield ok("workers", f"{alive} alive, version {versions[0]}")
    commits = [one["git_sha"][:12] for one in seen["commits"]]
    if len(commits) > 1:
        says = f"they run {len(commits)} commits: {', '.join(commits)}"
        yield Finding("workers", Level.WARNING, says, "finish the deploy; holdfast worker list -o wide shows who runs which")
    for one in seen["silent"]:
        if one["holds"]:
            who = f"{one['name']} on {one['host']}"
            says = f"{who} went silent {took(one['seconds'])} ago and holds {counted(one['holds'], 'job')}"
            yield Finding("workers", Level.WARNING, says, "a living worker rescues them; holdfast job list --condition stale")


def _leases(seen: Seen) -> Found:
    if seen["stale"]:
        fix = "start a worker, which rescues them, or: holdfast job bulk recover -f condition:stale --reason …"
        yield Finding("leases", Level.WARNING, f"{counted(seen['stale'], 'job')} without a living holder", fix)
    else:
        yield ok("leases", "every running job has a living holder")
    if seen["poll_lag"] > 60:
        says = f"a submitted job should have been looked at {took(seen['poll_lag'])} ago"
        yield Finding(
            "polls", Level.WARNING, says, "start more workers of its kind; engines give up on queries nobody asks for"
        )


def _waiting(seen: Seen) -> Found:
    late = [one for one in seen["oldest"] if one["seconds"] > LONG_WAIT]
    for one in late:
        says = f"the next {one['kind']} has waited for {duration(timedelta(seconds=one['seconds']))}"
        yield Finding("waiting", Level.WARNING, says, f"more workers, or see why: holdfast job list --kind {one['kind']}")
    if not late:
        yield ok("waiting", f"nothing has waited for more than {duration(timedelta(seconds=LONG_WAIT))}")


def _kinds(seen: Seen) -> Found:
    orphans = [kind for kind in seen["kinds"] if kind["waiting"] and not kind["workers"] and not kind["paused"]]
    for kind in orphans:
        says = f"{kind['waiting']:,} {kind['kind']} wait, and no living worker can run them"
        yield Finding("kinds", Level.WARNING, says, f"start a worker that imports {kind['kind']}, or cancel them")
    if not orphans:
        yield ok("kinds", "every kind that waits has a worker")


def _jobs(seen: Seen) -> Found:
    count = seen["quarantined"]["value"]
    if count:
        fix = "holdfast job list --condition quarantined; mend the cause, then: holdfast job retry ID"
        yield Finding("quarantine", Level.WARNING, f"{counted(count, 'job')} took too many processes down", fix)
    else:
        yield ok("quarantine", "no job is quarantined")


def _locks(seen: Seen) -> Found:
    for one in seen["left_locks"]:
        fix = f"holdfast lock release {one['key']} --reason …"
        yield Finding("locks", Level.ERROR, f"{one['key']} is held by job {one['job_id']}, which has ended", fix)
    if not seen["left_locks"]:
        yield ok("locks", "no lock was left behind")


def _controls(seen: Seen) -> Found:
    for one in seen["controls"]:
        what = " and ".join(word for word in ("paused", "drained") if one[word])
        name = "everything" if one["kind"] == "*" else one["kind"]
        undo = "holdfast undrain" if one["kind"] == "*" and one["drained"] else f"holdfast resume {one['kind']}"
        says = f"{name} is {what} by {one['actor']}: {one['reason'] or 'no reason given'}"
        yield Finding("controls", Level.WARNING, says, f"if that is over: {undo} --reason …")


def loops(seen: list[dict[str, Any]], now: datetime) -> Found:
    """The periodic loops, where there are any: those that fail, and those that nobody runs."""
    sick = [loop for loop in seen if not loop["healthy"]]
    for loop in seen:
        every, last = loop["interval_seconds"], loop["last_success"]
        if loop["healthy"] and not loop["paused"] and every and last:
            ago = (now - moment(last)).total_seconds()
            if ago > max(3 * every, SOON):
                sick.append(loop)
                says = f"{loop['job_name']} ended well {took(ago)} ago, and should every {took(every)}"
                yield Finding("loops", Level.WARNING, says, "does a scheduler run? holdfast serve, or holdfast scheduler run")
    for loop in (loop for loop in sick if not loop["healthy"]):
        says = f"{loop['job_name']} failed {loop['consecutive_failures']} times in a row: {loop['last_error'] or 'no words'}"
        yield Finding("loops", Level.WARNING, says, "mend what it says; its log lines have the rest")
    if seen and not sick:
        yield ok("loops", f"{len(seen)} loops are healthy")


def schema(current: str | None, wanted: str | None) -> Finding:
    """Whether the tables are those of this code."""
    if wanted is None or current == wanted:
        return ok("schema", f"at {current}, as this code wants it")
    if current is not None and current > wanted:
        says = f"at {current}, and this code is older: it knows up to {wanted}"
        return Finding("schema", Level.ERROR, says, "run the newer version of Holdfast")
    return Finding("schema", Level.ERROR, f"at {current or 'nothing'}, this code wants {wanted}", "holdfast db migrate")


def settings_sane(beat: float, lease: float, grace: float, termination_grace: float | None) -> Found:
    """Whether the times fit each other."""
    if lease <= 2 * beat:
        says = f"a lease of {lease:g} s is lost by one late beat of {beat:g} s"
        yield Finding("settings", Level.ERROR, says, f"set HOLDFAST_LEASE_SECONDS above {2 * beat:g}, better {6 * beat:g}")
    if termination_grace is not None and grace >= termination_grace:
        says = f"jobs may take {grace:g} s to end, the pod is killed after {termination_grace:g} s"
        yield Finding("settings", Level.ERROR, says, "raise terminationGracePeriodSeconds, or lower HOLDFAST_GRACE_SECONDS")
    if lease > 2 * beat and (termination_grace is None or grace < termination_grace):
        yield ok("settings", f"beat {beat:g} s, lease {lease:g} s, grace {grace:g} s")


def auth(knows_somebody: bool, over_http: bool) -> Finding:
    """Whether anybody could sign in."""
    if knows_somebody:
        return ok("auth", "somebody can sign in")
    level = Level.WARNING if over_http else Level.INFO
    return Finding("auth", level, "nobody could sign in to the API", "holdfast auth token create NAME --role ops --reason …")


def disk(free: int, total: int, where: str) -> Finding:
    """Whether the embedded Postgres has room."""
    says = f"{free / 1e9:,.1f} of {total / 1e9:,.1f} GB are free at {where}"
    if free < 1e9 or free < 0.05 * total:
        return Finding("disk", Level.ERROR if free < 2e8 else Level.WARNING, says, "make room, or set HOLDFAST_DATA_DIR")
    return ok("disk", says)


def clock(skew: float) -> Finding:
    """How far this machine's clock is from the database's. It decides nothing, so it is no trouble."""
    return Finding(
        "clock", Level.INFO, f"this machine is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} the database"
    )


def streams(waited: float | None) -> Finding:
    """Whether an event stream comes through at once: some proxies keep it until it is over."""
    if waited is None:
        fix = "turn off response buffering in the proxy before the API; it says X-Accel-Buffering: no"
        return Finding("streams", Level.WARNING, "an event stream stays silent on its way to us: something buffers it", fix)
    return ok("streams", f"the first event came after {took(waited)}")


def metrics(says: str | None) -> Finding:
    """Whether the metrics can be scraped with these credentials."""
    if says is not None:
        return Finding("metrics", Level.WARNING, f"/metrics cannot be read: {says}", "give the scraper a token of role viewer")
    return ok("metrics", "/metrics can be scraped")


LOOKS = (
    *(_server, _pooler, _connections, _vacuum, _transactions, _workers, _leases),
    *(_waiting, _kinds, _jobs, _locks, _controls),
)


def outside(check: str, url: str, silent: str | None) -> Finding:
    """Whether what exports need answers from here."""
    if silent is None:
        return ok(check, f"{url} answers")
    return Finding(check, Level.ERROR, f"nobody answers at {url}: {silent}", "start it, or mend its address; exports wait")


def worst(found: list[Finding]) -> Level:
    """The worst of it."""
    order = list(Level)
    return max((finding.level for finding in found), key=order.index, default=Level.OK)
