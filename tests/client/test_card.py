"""The card in a notebook: external text is escaped."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from holdfast.toolkit.client.card import card
from holdfast.toolkit.client.progress import Card, Line, ProgressView, progress_display

NASTY = '"><script>alert(1)</script>'


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def _read(html: str) -> _Tags:
    reader = _Tags()
    reader.feed(html)
    return reader


def test_external_text_is_escaped() -> None:
    seen = _read(card(ProgressView(NASTY, NASTY, [Line(NASTY, NASTY, 0.5, NASTY)], NASTY)))

    assert seen.tags == {"div", "span", "strong"}
    assert seen.text.count(NASTY) == 5


def test_progress_bar_has_an_accessible_value() -> None:
    html = card(ProgressView("snapshot 1", "creating", [Line("Person", "claimed", 0.25), Line("KNOWS", "completed", None)]))

    assert 'role="progressbar" aria-valuenow="25"' in html
    assert 'role="progressbar" aria-valuenow="100"' in html


def test_progress_beyond_its_bounds_is_clamped() -> None:
    html = card(ProgressView("t", "s", [Line("a", "claimed", 7.0), Line("b", "claimed", -1.0)]))

    assert 'aria-valuenow="100"' in html
    assert 'aria-valuenow="0"' in html


def _notebook(shown: list[str]) -> ModuleType:
    """As much of IPython as a kernel offers: one output that can be replaced."""

    def display(thing: str, display_id: bool) -> Any:
        shown.append(thing)
        return SimpleNamespace(update=lambda again: shown.append(f"instead: {again}"))

    made = ModuleType("IPython.display")
    vars(made).update(display=display, HTML=lambda html: html)
    return made


def test_notebook_output_is_replaced_on_change(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", _notebook(shown))

    showing = progress_display(lambda state: ProgressView("t", state, []))
    with showing:
        for state in ("pending", "pending", "ready"):
            showing.show(state)

    assert isinstance(showing, Card)
    assert [one.startswith("instead: ") for one in shown] == [False, True]
    assert "ready" in shown[-1]
