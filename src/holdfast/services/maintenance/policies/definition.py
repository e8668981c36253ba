"""The definition of a policy: parsed from YAML or JSON, every mistake at once. Pure.

kind: MaintenancePolicy
name: nightly-sales
match: {catalog: default, database: sales, table: "*"}     # globs, each a text or a list
exclude: ["sales.tmp_*"]                                   # globs over database.table
schedule: "0 2 * * *"                                      # or: every: 6h; or neither, with `when`
timezone: Europe/Zurich
when: {health_below: 70}
window: {start: "01:00", end: "05:00"}                     # no action begins outside of it
actions: [rewrite_data_files, {expire_snapshots: {older_than: 7d}}]
max_parallel: 4                                            # jobs of policies at once in a catalog
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import time, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from holdfast.errors import UsageError
from holdfast.services.maintenance.engines.actions import Action, Problem, duration
from holdfast.services.maintenance.engines.interface import TableRef
from holdfast.services.maintenance.run.request import ENGINES, RequestInvalid, check_actions, forced
from holdfast.timetable import cron as crontab

KIND: Final = "MaintenancePolicy"
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")
CLOCK: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
KEYS: Final = (
    *("kind", "name", "description", "match", "exclude", "schedule", "every", "timezone", "when", "window", "actions"),
    *("engine", "max_parallel", "min_interval", "enabled"),
)
SHORTEST: Final = 60  # seconds
DEFAULT_MIN_INTERVAL: Final = 86_400  # between two runs of a table, for a policy that only its health triggers


@dataclass(frozen=True, slots=True)
class Window:
    """A time of day in which actions may begin. It may cross midnight."""

    start: time
    end: time


@dataclass(frozen=True, slots=True)
class Policy:
    """A checked policy."""

    name: str
    actions: tuple[Action, ...]
    catalogs: tuple[str, ...] = ("*",)
    databases: tuple[str, ...] = ("*",)
    tables: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    cron: str | None = None
    every: timedelta | None = None
    timezone: str = "UTC"
    health_below: int | None = None
    window: Window | None = None
    engine: str | None = None
    max_parallel: int = 4
    min_interval: timedelta = field(default=timedelta(seconds=DEFAULT_MIN_INTERVAL))
    enabled: bool = True
    description: str | None = None

    @property
    def is_scheduled(self) -> bool:
        """Whether it has due times. Otherwise the health of the tables decides."""
        return self.cron is not None or self.every is not None

    def matches(self, table: TableRef) -> bool:
        """Whether the policy is about this table. Pure."""
        groups = ((table.catalog, self.catalogs), (table.namespace, self.databases), (table.name, self.tables))
        whole = f"{table.namespace}.{table.name}"
        return all(_any(text, globs) for text, globs in groups) and not _any(whole, self.exclude)

    def wants(self, health: int | None) -> bool:
        """Whether a table with this score needs it. A table that was never measured is left for later. Pure."""
        return self.health_below is None or (health is not None and health < self.health_below)


def _any(text: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs)


class Reader:
    """Collects the mistakes of one definition."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self.problems: list[Problem] = []

    def wrong(self, at: str, message: str) -> None:
        self.problems.append(Problem(at, message))

    def globs(self, given: Any, at: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """One glob or a list of globs."""
        if given is None:
            return default
        listed = [given] if isinstance(given, str) else given
        if not isinstance(listed, list) or not listed or not all(isinstance(one, str) and one for one in listed):
            self.wrong(at, 'must be a glob such as "sales_*", or a list of them')
            return default
        return tuple(listed)

    def duration(self, key: str, *, least: int = SHORTEST) -> timedelta | None:
        """A duration such as `6h` or `PT6H`."""
        if self._given.get(key) is None:
            return None
        try:
            seconds = duration(self._given[key])
        except ValueError as error:
            self.wrong(f"/{key}", str(error))
            return None
        if seconds < least:
            self.wrong(f"/{key}", f"must be at least {least} seconds")
            return None
        return timedelta(seconds=seconds)

    def whole(self, given: Any, at: str, low: int, high: int) -> int | None:
        """A whole number between two bounds."""
        if isinstance(given, int) and not isinstance(given, bool) and low <= given <= high:
            return given
        self.wrong(at, f"must be a whole number between {low} and {high}")
        return None

    def text(self, key: str, longest: int) -> str | None:
        given = self._given.get(key)
        if given is not None and (not isinstance(given, str) or not 0 < len(given) <= longest or "\x00" in given):
            self.wrong(f"/{key}", f"must be a text of 1 to {longest} characters")
            return None
        return given


def parse_policy(given: Any, *, name: str | None = None) -> Policy:
    """The policy; `RequestInvalid` with every mistake. `name`: that of the address, which the definition may repeat."""
    if not isinstance(given, Mapping):
        raise RequestInvalid([Problem("", "must be an object with `match`, `actions`, and `schedule`, `every` or `when`")])
    reader = Reader(given)
    for key in given:
        if key not in KEYS:
            reader.wrong(f"/{key}", f"unknown key; allowed: {', '.join(KEYS)}")
    if given.get("kind", KIND) != KIND:
        reader.wrong("/kind", f"must be {KIND}")
    matched = _match(reader, given.get("match"))
    cron, every, timezone = _schedule(reader, given)
    health_below = _when(reader, given.get("when"))
    if cron is None and every is None and health_below is None and not _mentions(reader, "/schedule", "/every", "/when"):
        reader.wrong("/schedule", "is missing; set `schedule` (cron), `every`, or `when: {health_below: 70}`")
    engine = _engine(reader, given.get("engine"))
    at = "/actions"
    actions = check_actions(given.get("actions", ()), engine, at, reader.problems)
    if forced(actions):
        reader.wrong(at, "a policy cannot force remove_orphan_files below 7 days; an admin can do it for one run")
    parallel = reader.whole(given.get("max_parallel", 4), "/max_parallel", 1, 1000)
    if not isinstance(given.get("enabled", True), bool):
        reader.wrong("/enabled", "must be true or false")
    made: dict[str, Any] = {
        **matched,
        "name": _name(reader, given.get("name"), name),
        "exclude": reader.globs(given.get("exclude"), "/exclude", ()),
        "window": _window(reader, given.get("window")),
        "min_interval": reader.duration("min_interval") or timedelta(seconds=DEFAULT_MIN_INTERVAL),
        "description": reader.text("description", 1000),
    }
    if reader.problems:
        raise RequestInvalid(reader.problems)
    return Policy(
        **made,
        actions=actions,
        cron=cron,
        every=every,
        timezone=timezone,
        health_below=health_below,
        engine=engine,
        max_parallel=parallel or 4,
        enabled=given.get("enabled", True),
    )


def _mentions(reader: Reader, *pointers: str) -> bool:
    """Whether one of these places has a mistake already."""
    return any(problem.pointer.startswith(pointers) for problem in reader.problems)


def _name(reader: Reader, given: Any, address: str | None) -> str:
    said = address if given is None else given
    if not isinstance(said, str) or not NAME.fullmatch(said):
        reader.wrong("/name", "must have 1 to 100 lower-case letters, digits, - or _, and begin with a letter or digit")
        return ""
    if address is not None and said != address:
        reader.wrong("/name", f"is {said!r}, and the address says {address!r}; use the same name, or leave it out")
    return said


def _match(reader: Reader, given: Any) -> dict[str, tuple[str, ...]]:
    names = {"catalog": "catalogs", "database": "databases", "table": "tables"}
    if not isinstance(given, Mapping) or not given:
        reader.wrong("/match", 'is required; use match: {database: sales, table: "*"}')
        return {}
    for key in given:
        if key not in names:
            reader.wrong(f"/match/{key}", f"unknown key; allowed: {', '.join(names)}")
    return {field: reader.globs(given.get(key), f"/match/{key}", ("*",)) for key, field in names.items()}


def _schedule(reader: Reader, given: Mapping[str, Any]) -> tuple[str | None, timedelta | None, str]:
    timezone, cron = given.get("timezone", "UTC"), given.get("schedule")
    try:
        ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        reader.wrong("/timezone", f"unknown time zone {timezone!r}; use an IANA name such as Europe/Zurich")
        timezone = "UTC"
    every = reader.duration("every")
    if cron is not None and every is not None:
        reader.wrong("/every", "`schedule` and `every` exclude each other; use one of them")
    if cron is None:
        return None, every, timezone
    try:
        if not isinstance(cron, str) or len(cron.split()) != 5:
            raise UsageError(f"{cron!r} must be a cron expression with five fields, such as '0 2 * * *'")
        crontab.check(cron, timezone)
    except UsageError as error:
        reader.wrong("/schedule", str(error))
        return None, every, timezone
    return cron, every, timezone


def _when(reader: Reader, given: Any) -> int | None:
    if given is None:
        return None
    if not isinstance(given, Mapping) or set(given) != {"health_below"}:
        reader.wrong("/when", "must be {health_below: NUMBER}")
        return None
    return reader.whole(given["health_below"], "/when/health_below", 1, 100)


def _window(reader: Reader, given: Any) -> Window | None:
    if given is None:
        return None
    if not isinstance(given, Mapping) or set(given) != {"start", "end"}:
        reader.wrong("/window", 'must be {start: "01:00", end: "05:00"}')
        return None
    found: list[time] = []
    for key in ("start", "end"):
        match = CLOCK.fullmatch(given[key]) if isinstance(given[key], str) else None
        if match is None:
            reader.wrong(f"/window/{key}", f'{given[key]!r} is not a time of day; quote it, as in "01:00"')
        else:
            found.append(time(int(match[1]), int(match[2])))
    if len(found) < 2:
        return None
    if found[0] == found[1]:
        reader.wrong("/window", "start and end are equal; leave the window out if actions may begin at any time")
    return Window(*found)


def _engine(reader: Reader, given: Any) -> str | None:
    if given is None or given in ENGINES:
        return None if given is None else str(given)
    reader.wrong("/engine", f"there is no engine {given!r}; use one of {', '.join(ENGINES)}")
    return None
