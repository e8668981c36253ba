"""How things look: a card in a notebook, a line in a terminal. Whatever comes from outside is escaped here, and only here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

# Follows the notebook's own theme. Colour is kept for states.
STYLE: Final = (
    "color-scheme:light dark;font:13px/1.5 system-ui,sans-serif;border:1px solid light-dark(#d9dde3,#2b3542);"
    "background:light-dark(#ffffff,#161d26);color:light-dark(#1b2430,#e6ebf2);border-radius:6px;padding:10px 14px;"
    "max-width:60em"
)
COLOURS: Final = {
    "ready": "light-dark(#17663a,#7fd6a1)",
    "completed": "light-dark(#17663a,#7fd6a1)",
    "creating": "light-dark(#1f5fbf,#7db3ff)",
    "claimed": "light-dark(#1f5fbf,#7db3ff)",
    "submitted": "light-dark(#1f5fbf,#7db3ff)",
    "failed": "light-dark(#a11d2b,#ff9aa5)",
}
MUTED: Final = "light-dark(#566273,#9aa7b8)"


def card(title: str, facts: Mapping[str, Any], columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A thing as HTML: what it is, what is known of it, and a table of its parts. Pure."""
    known = " · ".join(f"<b>{_text(name)}</b> {_word(value)}" for name, value in facts.items() if value not in (None, ""))
    head = "".join(f'<th style="text-align:left;padding:0 14px 0 0;color:{MUTED}">{_text(one)}</th>' for one in columns)
    lines = "".join(
        "<tr>" + "".join(f'<td style="padding:0 14px 0 0">{_word(one)}</td>' for one in row) + "</tr>" for row in rows
    )
    table = (
        f'<table style="margin-top:8px;border-collapse:collapse">{head and f"<tr>{head}</tr>"}{lines}</table>' if rows else ""
    )
    return f'<div style="{STYLE}"><div style="font-weight:600">{_text(title)}</div><div>{known}</div>{table}</div>'


def _word(value: Any) -> str:
    """A value, coloured if it is a state."""
    shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str("–" if value is None else value)
    colour = COLOURS.get(shown)
    return f'<span style="color:{colour};font-weight:600">{_text(shown)}</span>' if colour else _text(shown)


def _text(value: object) -> str:
    return escape(str(value), quote=True)
