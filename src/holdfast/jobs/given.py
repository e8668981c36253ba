"""Validate arguments of callers before they reach SQL. Each error names the field, the value and the fix. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeGuard
from uuid import UUID

from holdfast.errors import PayloadInvalid, UsageError

LONGEST_KEY: Final = 1_500  # bytes
RESERVED: Final = ("!", "@")  # special hints on the channel that otherwise carries names of queues
LARGEST_INT, LARGEST_ID = 2**31 - 1, 2**63 - 1
LONGEST: Final = timedelta(days=36_500)  # every timestamp of the database can be moved by this much
LAST_YEAR: Final = 9_000  # well before the last year that Python can represent in any time zone


def wrong(field: str, given: object, instead: str) -> UsageError:
    """The error for a field: the value that it got, and what it must be."""
    shown = repr(given)
    return UsageError(f"{field} cannot be {shown if len(shown) <= 100 else shown[:100] + '…'}: {instead}")


def a_key(field: str, given: object) -> None:
    """Check a key. It has to fit into an index together with the name of a kind."""
    if not isinstance(given, str):
        raise wrong(field, given, f"must be text; use {field}=str(…), or leave it out")
    if not given:
        raise wrong(field, given, "must not be empty; leave it out for no key")
    _fits(field, given)


def _fits(field: str, given: str) -> None:
    # "replace": text that cannot be encoded gets a separate error when it is written.
    if len(given) > LONGEST_KEY // 4 and (size := len(given.encode("utf-8", "replace"))) > LONGEST_KEY:
        raise wrong(field, given, f"it has {size:,} bytes, the limit is {LONGEST_KEY:,}; use a hash instead")


def a_lock_key(given: object) -> None:
    """Check the name of a lock."""
    if not isinstance(given, str) or not 0 < len(given) <= 500:
        raise wrong("the key of a lock", given, "must be text of 1 to 500 characters")
    _fits("the key of a lock", given)


def a_queue(given: object) -> None:
    """Check the name of a queue. Notifications carry it, so it must differ from the two special hints."""
    a_name("queue", given, "the name of a queue must have 1 to 200 characters")
    if given in RESERVED:
        raise wrong("queue", given, "that name is reserved; use another one")


def a_name(field: str, given: object, instead: str) -> None:
    """Check the name of a kind or a queue; a `StrEnum` member is allowed."""
    if not isinstance(given, str) or not 0 < len(given) <= 200:
        raise wrong(field, given, instead)


def a_kind(given: object) -> None:
    """Check the name of a kind."""
    if not isinstance(given, str):
        instead = "pass its .kind" if hasattr(given, "kind") else "must be the name of a kind, like 'invoice.render'"
        raise wrong("kind", given, instead)


def a_payload(given: object) -> None:
    """Check that a payload is a mapping: its items are the arguments of the handler."""
    if not isinstance(given, Mapping):
        raise PayloadInvalid(str(wrong("payload", given, "must be a mapping of arguments; use payload={'name': value}")))


def a_count(field: str, given: object) -> None:
    """Check an integer that must be positive."""
    if not _is_int(given) or not 1 <= given <= LARGEST_INT:
        raise wrong(field, given, "must be a whole number, 1 or more")


def a_priority(given: object) -> None:
    if not _is_int(given) or not -32768 <= given <= 32767:
        raise wrong("priority", given, "must be a whole number between -32768 and 32767; smaller runs first")


def a_niceness(field: str, given: object) -> None:
    """Check by how much a process yields the CPU to others."""
    if not _is_int(given) or not 0 <= given <= 19:
        raise wrong(field, given, "must be a whole number between 0 and 19; a process with 19 runs when no other wants to")


def a_time(given: object) -> None:
    """Check the time from which a job may run."""
    if not isinstance(given, datetime | timedelta):
        raise wrong("run_after", given, f"use {_as_span(given)} from now, or a datetime with a time zone")
    if isinstance(given, datetime) and given.tzinfo is None:
        raise wrong("run_after", given, "it needs a time zone, like tzinfo=UTC; or use a timedelta from now")
    if isinstance(given, datetime) and given.year > LAST_YEAR:
        raise wrong("run_after", given, f"must be before the year {LAST_YEAR + 1}")
    if isinstance(given, timedelta) and abs(given) > LONGEST:
        raise wrong("run_after", given, f"must be at most {LONGEST.days} days from now")


def a_span(field: str, given: object) -> None:
    """Check a duration."""
    if not isinstance(given, timedelta):
        raise wrong(field, given, f"must be a timedelta; use {_as_span(given)}")
    if given <= timedelta(0):
        raise wrong(field, given, "must be positive")
    if given > LONGEST:
        raise wrong(field, given, f"must be at most {LONGEST.days} days; leave it out for no limit")


SIZES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9}
SMALLEST_MEMORY = 64 * 2**20  # a Python process with a database driver uses about this much


def a_memory(field: str, given: object) -> int:
    """An amount of memory in bytes, from a number of bytes or a text such as 512MiB."""
    size: object = given
    if isinstance(given, str):
        found = re.fullmatch(r"(\d+)\s*([KMG]iB|[kMG]B)", given.strip())
        size = int(found[1]) * SIZES[found[2]] if found else None
    if not _is_int(size):
        raise wrong(field, given, "must be a number of bytes, or text like '512MiB' or '2GiB'")
    if not SMALLEST_MEMORY <= size <= LARGEST_ID:
        raise wrong(field, given, f"must be at least {size_text(SMALLEST_MEMORY)}: a Python process alone uses about this much")
    return size


def size_text(size: int) -> str:
    """The size in the largest unit that divides it, such as 512MiB."""
    unit = next((name for name in ("GiB", "MiB", "KiB") if size % SIZES[name] == 0), None)
    return f"{size} bytes" if unit is None else f"{size // SIZES[unit]}{unit}"


def one_of(field: str, given: object, *allowed: str) -> None:
    if given not in allowed:
        raise wrong(field, given, f"must be {' or '.join(map(repr, allowed))}")


def a_function(field: str, given: object, like: str) -> None:
    """Check a function that is called for every job."""
    if not callable(given):
        raise wrong(field, given, f"must be a function; use {field}={like}")


def listed(field: str, given: object, one: str) -> tuple[Any, ...]:
    """The items as a tuple. A string or an `Enqueued` is refused, although Python could iterate over it."""
    if isinstance(given, str) or hasattr(given, "_fields") or not isinstance(given, Iterable):
        raise wrong(field, given, f"must be a list; use {field}=[{one}]")
    return tuple(given)


def mappings(field: str, given: object, one: str) -> list[dict[str, Any]]:
    """Sets of arguments, as dicts. A single mapping is refused, although Python could iterate over its keys."""
    if isinstance(given, Mapping):
        raise wrong(field, given, f"must be a list with one mapping for each job; use [{one}]")
    several = listed(field, given, one)
    try:
        return [dict(each) for each in several]
    except (TypeError, ValueError):
        raise wrong(field, given, f"must be a list of mappings; use [{one}]") from None


def an_id(field: str, given: object) -> int:
    """The id of a job, from a number or from text such as a part of a URL."""
    number: object = int(given) if isinstance(given, str) and given.isascii() and given.isdecimal() else given
    if _is_int(number) and 0 < number <= LARGEST_ID:
        return number
    if hasattr(given, "_fields"):
        raise wrong(field, given, "pass its .id")
    raise wrong(field, given, "must be the id of a job: the number that enqueue returned as .id")


def a_uuid(field: str, given: object) -> str:
    """A UUID in the form in which Postgres prints it."""
    try:
        return str(UUID(str(given)))
    except ValueError:
        raise UsageError(f"{field} {str(given)[:100]!r} is not a UUID; use one like str(uuid.uuid4())") from None


def _is_int(given: object) -> TypeGuard[int]:
    return isinstance(given, int) and not isinstance(given, bool)


def _as_span(given: object) -> str:
    return f"timedelta(seconds={given})" if _is_int(given) or isinstance(given, float) else "a timedelta"
