"""How values look: times, durations, counts, bytes, JSON and states. Pure. Used by: the templates, as filters.

The words and the durations are those of the command line.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from markupsafe import Markup, escape

from holdfast.telemetry import redact
from holdfast.toolkit.cli.times import relative, took

# State or condition: glyph and tone. The tone is a class of the style sheet; the word is always written beside the glyph.
STATES: Final[dict[str, tuple[str, str]]] = {
    "pending": ("○", "queued"),
    "blocked": ("◷", "scheduled"),
    "waiting": ("◷", "scheduled"),
    "waiting_for_snapshot": ("◷", "scheduled"),
    "waiting_lock": ("◷", "scheduled"),
    "waiting_parents": ("◷", "scheduled"),
    "delayed": ("◷", "scheduled"),
    "claimed": ("◐", "claimed"),
    "submitted": ("◐", "claimed"),
    "running": ("●", "running"),
    "creating": ("●", "running"),
    "starting": ("●", "running"),
    "resuming": ("●", "running"),
    "loading": ("●", "running"),
    "fetching": ("●", "running"),
    "copying": ("●", "running"),
    "queued": ("○", "queued"),
    "retrying": ("↻", "retrying"),
    "cancelling": ("↻", "retrying"),
    "partial": ("◒", "retrying"),
    "paused": ("‖", "retrying"),
    "drained": ("‖", "retrying"),
    "suspended": ("‖", "retrying"),
    "quiet": ("‖", "retrying"),
    "completed": ("✓", "completed"),
    "success": ("✓", "completed"),
    "healthy": ("✓", "completed"),
    "loaded": ("✓", "completed"),
    "ready": ("✓", "completed"),
    "alive": ("✓", "completed"),
    "done": ("✓", "completed"),
    "ok": ("✓", "completed"),
    "failed": ("✕", "failed"),
    "error": ("✕", "failed"),
    "unhealthy": ("✕", "failed"),
    "quarantined": ("✕", "failed"),
    "denied": ("✕", "failed"),
    "removed": ("✕", "failed"),
    "cancelled": ("⊘", "cancelled"),
    "stopping": ("⊘", "cancelled"),
    "stopped": ("⊘", "cancelled"),
    "skipped": ("⊘", "cancelled"),
    "stale": ("⚠", "stale"),
    "lost": ("⚠", "stale"),
    "warning": ("⚠", "stale"),
    "added": ("+", "completed"),
    "modified": ("~", "retrying"),
}
UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


@lru_cache(maxsize=500)
def badge(state: str, word: str = "") -> Markup:
    """A state as glyph and word in its colour."""
    glyph, tone = STATES.get(state, ("·", "queued"))
    said = (word or state).replace("_", " ")
    return Markup('<span class="badge {}"><span aria-hidden="true">{}</span> {}</span>').format(tone, glyph, said)


def ago(at: datetime | None, now: datetime) -> Markup:
    """A time as `3m ago`, with the exact one in UTC for the pointer and for the script that shows local times."""
    if at is None:
        return Markup('<span class="none">–</span>')
    return Markup(f'<time datetime="{at.isoformat()}" title="{_exact(at)} UTC">{relative(at, now)}</time>')  # noqa: S704 - a time


def clock(at: datetime | None) -> Markup:
    """A time of day in UTC, with the date for the pointer."""
    if at is None:
        return Markup('<span class="none">–</span>')
    exact = _exact(at)
    return Markup(f'<time class="clock" datetime="{at.isoformat()}" title="{exact} UTC">{exact[11:]}</time>')  # noqa: S704


def _exact(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(" ", "seconds")[:19]


def span(seconds: float | timedelta | None) -> str:
    """A duration: 0.4s, 3m 20s, 2h."""
    if seconds is None:
        return "–"
    return took(seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds))


def number(value: float | None) -> str:
    """A number with separators."""
    return "–" if value is None else f"{value:,}"


def size(value: float | None) -> str:
    """Bytes: 3.4 MB."""
    if value is None:
        return "–"
    left = float(value)
    for unit in UNITS:
        if left < 1000 or unit == UNITS[-1]:
            return f"{left:.0f} {unit}" if unit == "B" or left >= 100 else f"{left:.1f} {unit}"
        left /= 1000
    raise AssertionError("the last unit has no limit")


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.0f} %"


def short(text: Any, length: int = 8) -> str:
    """The start of an id, which is enough to tell a few of them apart."""
    return str(text or "")[:length]


def safe_json(value: Any) -> str:
    """JSON for people, indented: secrets are masked, and whole numbers keep every digit."""
    return json.dumps(redact.clean(value), indent=2, ensure_ascii=False, default=str)


def fields_line(fields: dict[str, Any]) -> str:
    """The fields of a log line as name=value."""
    cleaned = redact.fields(fields)
    return " ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, default=str)}" for name, value in cleaned.items()
    )


def spark(values: list[int], label: str) -> Markup:
    """A sparkline as inline SVG: one bar for each value. Nothing of the label or the values is interpreted as markup."""
    highest = max([*values, 1])
    bars = Markup("").join(
        Markup('<rect x="{}" y="{}" width="3" height="{}"/>').format(place * 4, 20 - height, height)
        for place, value in enumerate(values)
        for height in [max(1, round(value / highest * 20))]
        if value
    )
    width = len(values) * 4
    return Markup('<svg class="spark" viewBox="0 0 {} 20" width="{}" height="20" role="img" aria-label="{}">{}</svg>').format(
        width, width, escape(label), bars
    )
