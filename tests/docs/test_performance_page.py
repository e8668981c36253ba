"""The table of figures on the performance page is what `python -m benchmarks.page` makes of the results."""

from __future__ import annotations

import json

from benchmarks.page import BEGIN, END, PAGE, RESULTS, table


def test_page_has_the_recorded_figures() -> None:
    shown = PAGE.read_text().split(BEGIN)[1].split(END)[0].strip()

    assert shown == table(json.loads(RESULTS.read_text())), "run: python -m benchmarks.page"
