"""The card of a notebook: what comes from outside stays text."""

from __future__ import annotations

from html.parser import HTMLParser

from holdfast.client.card import card
from holdfast.client.showing import Line, Picture

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


def test_nothing_that_comes_from_outside_becomes_markup() -> None:
    seen = _read(card(Picture(NASTY, NASTY, [Line(NASTY, NASTY, 0.5, NASTY)], NASTY)))

    assert seen.tags == {"div", "span", "strong"}
    assert seen.text.count(NASTY) == 5


def test_a_bar_says_how_far_it_is_to_those_who_cannot_see_it() -> None:
    html = card(Picture("snapshot 1", "creating", [Line("Person", "claimed", 0.25), Line("KNOWS", "completed", None)]))

    assert 'role="progressbar" aria-valuenow="25"' in html
    assert 'role="progressbar" aria-valuenow="100"' in html


def test_a_share_beyond_its_bounds_stays_within_the_bar() -> None:
    html = card(Picture("t", "s", [Line("a", "claimed", 7.0), Line("b", "claimed", -1.0)]))

    assert 'aria-valuenow="100"' in html
    assert 'aria-valuenow="0"' in html
