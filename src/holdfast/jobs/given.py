"""What callers hand in, looked at before SQL sees it: an error names the field, what was given and the way out. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeGuard
from uuid import UUID

from holdfast.errors import UsageError

LONGEST_KEY: Final = 1_500  # bytes
RESERVED: Final = ("!", "@")  # hints to workers and watchers on the channel that names queues
LARGEST_INT, LARGEST_ID = 2**31 - 1, 2**63 - 1
LONGEST: Final = timedelta(days=36_500)  # what every timestamp of the database can still be moved by
LAST_YEAR: Final = 9_000  # well before the last that Python can read back, in whatever zone


def wrong(field: str, given: object, instead: str) -> UsageError:
    """The error for a field: what it got, and what it wants."""
    shown = repr(given)
    return UsageError(f"{field} cannot be {shown if len(shown) <= 100 else shown[:100] + '…'}: {instead}")


def a_key(field: str, given: object) -> None:
    """A text that tells one thing from another. It has to fit into an index beside the name of a kind."""
    if not isinstance(given, str):
        raise wrong(field, given, f"it is text; use {field}=str(…), or leave it out")
    if not given:
        raise wrong(field, given, "it needs at least one character; leave it out for none")
    _fits(field, given)


def _fits(field: str, given: str) -> None:
    # "replace": a text that cannot be encoded at all is refused with its own error, when it is written.
    if len(given) > LONGEST_KEY // 4 and (size := len(given.encode("utf-8", "replace"))) > LONGEST_KEY:
        raise wrong(field, given, f"it has {size:,} bytes and may have {LONGEST_KEY:,}; use a hash of what it stands for")


def a_lock_key(given: object) -> None:
    """The name of a lock."""
    if not isinstance(given, str) or not 0 < len(given) <= 500:
        raise wrong("the key of a lock", given, "it is a text of 1 to 500 characters")
    _fits("the key of a lock", given)


def a_queue(given: object) -> None:
    """The name of a queue. Workers are told of new jobs by it, beside two hints that are no queue."""
    a_name("queue", given, "a queue's name has 1 to 200 characters")
    if given in RESERVED:
        raise wrong("queue", given, "that name is reserved; use another one")


def a_name(field: str, given: object, instead: str) -> None:
    """The name of a kind or a queue; an enum of texts is one."""
    if not isinstance(given, str) or not 0 < len(given) <= 200:
        raise wrong(field, given, instead)


def a_kind(given: object) -> None:
    """The name of a kind."""
    if not isinstance(given, str):
        instead = "pass its .kind" if hasattr(given, "kind") else "it is the name of a kind, like 'invoice.render'"
        raise wrong("kind", given, instead)


def a_count(field: str, given: object) -> None:
    """A whole number from 1."""
    if not _is_int(given) or not 1 <= given <= LARGEST_INT:
        raise wrong(field, given, "it is a whole number, 1 or more")


def a_priority(given: object) -> None:
    if not _is_int(given) or not -32768 <= given <= 32767:
        raise wrong("priority", given, "it is a whole number between -32768 and 32767; smaller runs first")


def a_time(given: object) -> None:
    """When a job may run."""
    if not isinstance(given, datetime | timedelta):
        raise wrong("run_after", given, f"use {_as_span(given)} from now, or a datetime with a time zone")
    if isinstance(given, datetime) and given.tzinfo is None:
        raise wrong("run_after", given, "it needs a time zone, like tzinfo=UTC; or use a timedelta from now")
    if isinstance(given, datetime) and given.year > LAST_YEAR:
        raise wrong("run_after", given, f"it is a time until the year {LAST_YEAR}")
    if isinstance(given, timedelta) and abs(given) > LONGEST:
        raise wrong("run_after", given, f"it is at most {LONGEST.days} days from now")


def a_span(field: str, given: object) -> None:
    """How long something may last."""
    if not isinstance(given, timedelta):
        raise wrong(field, given, f"it is a timedelta; use {_as_span(given)}")
    if given <= timedelta(0):
        raise wrong(field, given, "it must be longer than nothing")
    if given > LONGEST:
        raise wrong(field, given, f"it is at most {LONGEST.days} days; leave it out for no limit")


SIZES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9}
SMALLEST_MEMORY = 64 * 2**20  # an interpreter with a database driver takes about as much


def a_memory(field: str, given: object) -> int:
    """How much memory something may take, in bytes: a number of them, or a text such as 512MiB."""
    size: object = given
    if isinstance(given, str):
        found = re.fullmatch(r"(\d+)\s*([KMG]iB|[kMG]B)", given.strip())
        size = int(found[1]) * SIZES[found[2]] if found else None
    if not _is_int(size):
        raise wrong(field, given, "it is a number of bytes, or a text like '512MiB' or '2GiB'")
    if not SMALLEST_MEMORY <= size <= LARGEST_ID:
        raise wrong(field, given, f"it is at least {size_text(SMALLEST_MEMORY)}: an interpreter alone takes about as much")
    return size


def size_text(size: int) -> str:
    """As people write it, in the largest unit that leaves nothing over."""
    unit = next((name for name in ("GiB", "MiB", "KiB") if size % SIZES[name] == 0), None)
    return f"{size} bytes" if unit is None else f"{size // SIZES[unit]}{unit}"


def one_of(field: str, given: object, *allowed: str) -> None:
    if given not in allowed:
        raise wrong(field, given, f"it is {' or '.join(map(repr, allowed))}")


def a_function(field: str, given: object, like: str) -> None:
    """What is worked out anew every time."""
    if not callable(given):
        raise wrong(field, given, f"it is a function; use {field}={like}")


def listed(field: str, given: object, one: str) -> tuple[Any, ...]:
    """Several of something, as a tuple. A text is no list of its characters, and an `Enqueued` no list of its fields."""
    if isinstance(given, str) or hasattr(given, "_fields") or not isinstance(given, Iterable):
        raise wrong(field, given, f"it is a list; use {field}=[{one}]")
    return tuple(given)


def mappings(field: str, given: object, one: str) -> list[dict[str, Any]]:
    """Several sets of arguments, as dicts. One of them alone is no list of its names."""
    if isinstance(given, Mapping):
        raise wrong(field, given, f"it is a list, with one mapping for each job; use [{one}]")
    several = listed(field, given, one)
    try:
        return [dict(each) for each in several]
    except (TypeError, ValueError):
        raise wrong(field, given, f"it is a list of mappings; use [{one}]") from None


def an_id(field: str, given: object) -> int:
    """The id of a job: a number, or one that stood in an address."""
    number: object = int(given) if isinstance(given, str) and given.isascii() and given.isdecimal() else given
    if _is_int(number) and 0 < number <= LARGEST_ID:
        return number
    if hasattr(given, "_fields"):
        raise wrong(field, given, "pass its .id")
    raise wrong(field, given, "it is the id of a job: the number that its enqueue gave back as .id")


def a_uuid(field: str, given: object) -> str:
    """A uuid in the one way that Postgres writes it."""
    try:
        return str(UUID(str(given)))
    except ValueError:
        raise UsageError(f"{field} {str(given)[:100]!r} is not a uuid; use one like str(uuid.uuid4())") from None


def _is_int(given: object) -> TypeGuard[int]:
    return isinstance(given, int) and not isinstance(given, bool)


def _as_span(given: object) -> str:
    return f"timedelta(seconds={given})" if _is_int(given) or isinstance(given, float) else "a timedelta"
