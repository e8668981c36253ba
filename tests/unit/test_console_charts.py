"""Charts of the overview: durations in each part of the window."""

from __future__ import annotations

from holdfast.console.charts import LOW, PARTS, WIDTH, charts_of, curve_of
from holdfast.console.views.overview import BUCKETS, Sampled


def test_chart_has_a_bar_for_each_interval_with_jobs_newest_right() -> None:
    found = [(0, 1.0), (0, 3.0), (BUCKETS - 1, 4.0), (BUCKETS, 99.0), (-1, 99.0), (0, None)]

    curve = curve_of(found, minutes=60)

    newest, oldest = curve.bars
    assert curve.highest == 4.0
    assert (oldest.x, newest.x) == (1.0, round(WIDTH - WIDTH / PARTS + 1, 1))
    assert newest.label == "3 min ago: median 1.0s, 95 % 3.0s"
    assert [tone for tone, _, _ in newest.parts] == ["most", "half"]
    assert all(y >= 0 and y + tall <= LOW + 0.1 for bar in curve.bars for _, y, tall in bar.parts)


def test_chart_without_jobs_is_empty() -> None:
    charts = charts_of([], 60)

    assert (charts.waits.bars, charts.waits.highest, charts.runs.bars, charts.by_kind) == ([], None, [], {})


def test_jobs_without_duration_do_not_divide_by_zero() -> None:
    charts = charts_of([Sampled(1, "k", "completed", 0, 0.0, 0.0)], 60)

    assert charts.waits.bars == []
    assert charts.by_kind["k"].finished == 1
