"""A card in HTML: a title, a state, a bar per part. Everything that comes from outside is escaped. Pure.

Light and dark come from the page around it: colours are mixed from `currentColor`, so the card looks right in either, and in
a theme that a person has made.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.client.showing import Line, Picture

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


def card(picture: Picture) -> str:
    """The card."""
    lines = "".join(map(_line, picture.lines))
    says = f'<div style="opacity:.75;margin-top:.3rem">{escape(picture.says)}</div>' if picture.says else ""
    return (
        f'<div role="group" aria-label="{escape(picture.title, quote=True)}" style="{BOX}">'
        f'<div style="display:flex;justify-content:space-between;gap:1rem;margin-bottom:.3rem">'
        f"<strong>{escape(picture.title)}</strong>{_state(picture.state)}</div>{lines}{says}</div>"
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
        f'<span style="width:17rem;opacity:.75">{escape(line.says or line.state)}</span></div>'
    )
