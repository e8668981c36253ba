"""The declaration of a kind as data, and how a declaration and arguments become a job. Pure.

`@job(...)` makes a declaration that may contain functions; workers publish it as JSON (`jobs/kinds.py`); the HTTP API, the
command line and `client.enqueue("kind", ...)` read it back. Python code and requests use the same `new_job`, so a kind's locks
and limits are the same for every caller.

A request may not weaken what protects other jobs: locks in a request are added to the declared ones, and a declared slot or
unique key cannot be replaced. Queue, priority, delay, budgets and limits are defaults, which a request may override.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from holdfast.errors import ArgumentsInvalid, KeyNotGiven, UsageError
from holdfast.jobs.argument_schema import problems_of
from holdfast.jobs.given import a_payload, listed
from holdfast.jobs.key_template import KeyTemplate, key_template
from holdfast.jobs.model import Json, Lock, NewJob
from holdfast.jobs.periodic import schedule
from holdfast.jobs.periodic.schedule import Schedule

COMPUTED = {"computed": True}  # published for a key that a function computes
NO_KEYS: Final = ((), None, None)


@dataclass(frozen=True, slots=True)
class LockTemplate:
    """A lock that every job of a kind needs; its key may name arguments."""

    key: KeyTemplate
    most: int | None
    when_busy: str

    def of(self, payload: Mapping[str, Any]) -> Lock:
        return Lock(self.key.of(payload), self.most, self.when_busy)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A key that is computed by a function which is not in this process."""


Function = Callable[..., Any]
Key = KeyTemplate | Function | Elsewhere | None
Locks = tuple[LockTemplate, ...] | Function | Elsewhere | None


@dataclass(frozen=True, slots=True)
class Declaration:
    """The options of a kind: defaults for its jobs, which an enqueue may override."""

    kind: str
    version: int = 1
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 3
    max_crashes: int = 3
    max_runtime: timedelta | None = None
    public: bool = True  # whether the HTTP API and the command line may enqueue it
    locks: Locks = None
    slot: Key = None
    unique: Key = None
    arguments: Mapping[str, Any] | None = None  # JSON schema; None: anything
    periodic: Schedule | None = None  # the schedule of a periodic kind
    about: Mapping[str, Json] | None = None  # published for information only
    is_keyed: bool = field(init=False)  # whether a lock, slot or unique key depends on the arguments

    def __post_init__(self) -> None:
        keyed = self.locks is not None or self.slot is not None or self.unique is not None
        object.__setattr__(self, "is_keyed", keyed)


# ---------------------------------------------------------------------------------------------------------------------
# From a declaration to a job
# ---------------------------------------------------------------------------------------------------------------------


def new_job(
    declared: Declaration, payload: dict[str, Any], arguments: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> NewJob:
    """A new job with these arguments. `payload`: as stored; `arguments`: as Python values, for functions that compute keys."""
    locks, slot, unique = _keys(declared, payload, arguments, options) if declared.is_keyed else NO_KEYS
    new = NewJob(
        declared.kind,
        payload=payload,
        queue=declared.queue,
        priority=declared.priority,
        max_attempts=declared.max_attempts,
        max_crashes=declared.max_crashes,
        max_runtime=declared.max_runtime,
        kind_version=declared.version,
        locks=locks,
        slot_key=slot,
        unique_key=unique,
    )
    return replace(new, **options) if options else new


def _keys(
    declared: Declaration, payload: Mapping[str, Any], arguments: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> tuple[Any, Any, Any]:
    """The locks, the slot and the unique key computed from the arguments, without those that the caller has set."""
    locks, slot, unique = declared.locks, declared.slot, declared.unique
    return (
        () if locks is None or "locks" in options else _made(declared.kind, "locks", locks, payload, arguments),
        None if slot is None or "slot_key" in options else _made(declared.kind, "slot_key", slot, payload, arguments),
        None if unique is None or "unique_key" in options else _made(declared.kind, "unique_key", unique, payload, arguments),
    )


def _made(kind: str, name: str, rule: Any, payload: Mapping[str, Any], arguments: Mapping[str, Any] | None) -> Any:
    if callable(rule):
        made = rule(**arguments) if arguments else rule()
        return listed("locks", made, "Lock('…')") if name == "locks" else made
    if isinstance(rule, Elsewhere):
        raise KeyNotGiven(kind, name.removesuffix("_key"), name)
    if isinstance(rule, tuple):
        return tuple(lock.of(payload) for lock in rule)
    return rule.of(payload)


def requested_job(declared: Declaration, payload: Mapping[str, Any], options: Mapping[str, Any]) -> NewJob:
    """A new job for a caller that does not have the function, such as an HTTP request. Raises if a request may not do this."""
    a_payload(payload)
    if declared.arguments is not None:
        problems = problems_of(declared.arguments, payload, declared.kind)
        if problems:
            raise ArgumentsInvalid(declared.kind, problems)
    given = dict(options)
    for rule, name in ((declared.slot, "slot_key"), (declared.unique, "unique_key")):
        if isinstance(rule, KeyTemplate) and name in given:
            raise UsageError(
                f"{declared.kind} declares its {name}, {rule.text!r}, which a request cannot override; leave it out"
            )
    if isinstance(declared.locks, tuple) and "locks" in given:
        given["locks"] = (*(lock.of(payload) for lock in declared.locks), *given["locks"])
    return new_job(declared, dict(payload), None, given)


# ---------------------------------------------------------------------------------------------------------------------
# As JSON
# ---------------------------------------------------------------------------------------------------------------------


def as_json(declared: Declaration) -> dict[str, Json]:
    """The declaration as workers publish it."""
    return {
        "kind": declared.kind,
        "version": declared.version,
        "queue": declared.queue,
        "priority": declared.priority,
        "max_attempts": declared.max_attempts,
        "max_crashes": declared.max_crashes,
        "max_runtime_seconds": None if declared.max_runtime is None else declared.max_runtime.total_seconds(),
        "public": declared.public,
        "locks": _locks_as_json(declared.locks),
        "slot": _key_as_json(declared.slot),
        "unique": _key_as_json(declared.unique),
        "arguments": None if declared.arguments is None else dict(declared.arguments),
        "periodic": None if declared.periodic is None else schedule.as_json(declared.periodic),
        "about": dict(declared.about or {}),
    }


def from_json(said: Mapping[str, Any]) -> Declaration:
    """The declaration that a worker published, perhaps an older or newer version: unknown fields are ignored, missing ones get
    defaults."""
    schema, runtime = said.get("arguments"), said.get("max_runtime_seconds")
    return Declaration(
        str(said["kind"]),
        version=int(said.get("version", 1)),
        queue=said.get("queue", "default"),
        priority=said.get("priority", 0),
        max_attempts=said.get("max_attempts", 3),
        max_crashes=said.get("max_crashes", 3),
        max_runtime=None if runtime is None else timedelta(seconds=runtime),
        public=said.get("public", True),
        locks=_locks_from_json(said.get("locks"), schema),
        slot=_key_from_json(said.get("slot"), schema),
        unique=_key_from_json(said.get("unique"), schema),
        arguments=schema,
        periodic=schedule.from_json(said["periodic"]) if said.get("periodic") else None,
        about=said.get("about"),
    )


def digest_of(said: Mapping[str, Json]) -> str:
    """A hash of the declaration that does not depend on the order of its fields."""
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def lock_templates(locks: Sequence[Lock | str], schema: Mapping[str, Any] | None) -> tuple[LockTemplate, ...]:
    """Locks whose keys may contain arguments; a string is an exclusive lock."""
    made = [lock if isinstance(lock, Lock) else Lock(lock) for lock in locks]
    return tuple(LockTemplate(key_template(lock.key, schema), lock.most, lock.when_busy) for lock in made)


def _locks_as_json(locks: Locks) -> Json:
    if isinstance(locks, tuple):
        return [{"key": one.key.text, "most": one.most, "when_busy": one.when_busy} for one in locks]
    return None if locks is None else COMPUTED


def _key_as_json(key: Key) -> Json:
    if isinstance(key, KeyTemplate):
        return key.text
    return None if key is None else COMPUTED


def _locks_from_json(said: Json, schema: Mapping[str, Any] | None) -> Locks:
    if isinstance(said, list):
        return lock_templates([Lock(one["key"], one.get("most", 1), one.get("when_busy", "wait")) for one in said], schema)
    return None if said is None else Elsewhere()


def _key_from_json(said: Json, schema: Mapping[str, Any] | None) -> Key:
    if isinstance(said, str):
        return key_template(said, schema)
    return None if said is None else Elsewhere()
