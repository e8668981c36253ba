"""Whether and when a call that failed is sent again. Pure. Used by `cluster.py` and `watching.py`."""

from __future__ import annotations

from typing import Final

# The server is overloaded, restarts, or lost its own database for a moment. Every call of ours may be repeated: a create that
# was carried out is found by its name, a delete names the uid, and a patch sets absolute values.
TEMPORARY: Final = frozenset({408, 429, 500, 502, 503, 504})
FIRST: Final = 0.2
LONGEST: Final = 5.0


def delay(tries: int, chance: float, retry_after: float | None) -> float:
    """Seconds before the next try: exponential with jitter, and never before the server wants it. `chance` is in [0, 1)."""
    backoff = min(LONGEST, FIRST * 2.0 ** min(tries, 10)) * (0.5 + chance / 2)
    return max(backoff, retry_after * (1 + chance / 4)) if retry_after else backoff


def parsed_retry_after(value: str | None) -> float | None:
    """The header as seconds. The API server sends whole seconds; a date or nonsense is ignored."""
    try:
        seconds = float(value) if value else 0.0
    except ValueError:
        return None
    return seconds if 0 < seconds < float("inf") else None
