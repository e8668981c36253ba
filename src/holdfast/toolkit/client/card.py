"""A card in HTML: a title, a state, a bar for each part. All text is escaped. Pure.

Colours are mixed from `currentColor`, so that the card fits light, dark and custom themes.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.toolkit.client.progress import Line, ProgressView

GOOD, BAD, BUSY, IDLE = "#2e9e5b", "#d64545", "#3b82f6", "currentColor"
COLOURS = {
    "completed": GOOD,
    "ready": GOOD,
    "failed": BAD,
    "cancelled": BAD,
    "running": BUSY,
    "claimed": BUSY,
    "creating": BUSY,
    "submitted": BUSY,
}
BOX = (
    "font:13px/1.5 system-ui,sans-serif;max-width:44rem;padding:.7rem .9rem;border-radius:8px;"
    "border:1px solid color-mix(in srgb,currentColor 18%,transparent);"
    "background:color-mix(in srgb,currentColor 3%,transparent)"
)
TRACK = (
    "flex:1;height:6px;border-radius:3px;overflow:hidden;background:color-mix(in srgb,currentColor 14%,transparent)"
)  # fmt: skip


def card(view: ProgressView) -> str:
    """The card."""
    lines = "".join(map(_line, view.lines))
    note = f'<div style="opacity:.75;margin-top:.3rem">{escape(view.note)}</div>' if view.note else ""
    return (
        f'<div role="group" aria-label="{escape(view.title, quote=True)}" style="{BOX}">'
        f'<div style="display:flex;justify-content:space-between;gap:1rem;margin-bottom:.3rem">'
        f"<strong>{escape(view.title)}</strong>{_state(view.state)}</div>{lines}{note}</div>"
    )


def _state(state: str) -> str:
    colour = COLOURS.get(state, IDLE)
    return f'<span style="color:{colour};font-weight:600">{escape(state)}</span>'


def _line(line: Line) -> str:
    share = 1.0 if line.state in ("completed", "ready") else line.share or 0.0
    percent = f"{max(0.0, min(share, 1.0)):.0%}"
    colour = COLOURS.get(line.state, IDLE)
    bar = f'<div style="width:{percent};height:100%;background:{colour}"></div>'
    return (
        '<div style="display:flex;align-items:center;gap:.7rem;margin:.15rem 0">'
        f'<span style="width:11rem;overflow:hidden;text-overflow:ellipsis;white-space:nowrap">{escape(line.name)}</span>'
        f'<div role="progressbar" aria-valuenow="{percent[:-1]}" aria-valuemin="0" aria-valuemax="100" style="{TRACK}">'
        f"{bar}</div>"
        f'<span style="width:17rem;opacity:.75">{escape(line.note or line.state)}</span></div>'
    )
