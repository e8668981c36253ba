"""Charts of the overview from a sample of jobs: finished jobs over time, and how long jobs wait and run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.console.views.overview import BUCKETS, Sampled
from holdfast.toolkit.cli.times import took

WIDTH, HEIGHT = 600, 96
LOW: Final = 56  # height of the charts of durations
PARTS: Final = 20  # of the window, in these charts
ENDED: Final = ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart: a place, and the parts from bottom to top."""

    x: float
    width: float
    parts: tuple[tuple[str, float, float], ...]  # tone, y, height
    label: str


@dataclass(frozen=True, slots=True)
class Times:
    """Half and 95 % of the jobs took less than this, in seconds."""

    half: float | None
    most: float | None


@dataclass(frozen=True, slots=True)
class Charts:
    """What the overview draws."""

    bars: list[Bar]
    highest: int
    finished: int
    failed: int
    step: int  # 1: every job of the window was read
    wait: Times
    run: Times
    waits: Curve
    runs: Curve
    by_kind: dict[str, KindTimes]


@dataclass(frozen=True, slots=True)
class Curve:
    """Durations over time: for each part of the window a bar up to the 95 %, in it one up to the median."""

    bars: list[Bar]
    highest: float | None  # seconds


@dataclass(frozen=True, slots=True)
class KindTimes:
    """One kind in the window."""

    trend: list[int]
    wait: Times
    run: Times
    finished: int


def charts_of(found: Sequence[Sampled], minutes: float) -> Charts:
    """Everything that is drawn from one sample."""
    step = found[0].step if found else 1
    ended = [one for one in found if one.state in ENDED and 0 <= one.bucket < BUCKETS]
    counts = [dict.fromkeys(ENDED, 0) for _ in range(BUCKETS)]
    for one in ended:
        counts[BUCKETS - 1 - one.bucket][one.state] += step
    highest = max([sum(bucket.values()) for bucket in counts] + [0])
    kinds: dict[str, list[Sampled]] = {}
    for one in found:
        kinds.setdefault(one.kind, []).append(one)
    return Charts(
        [_bar(place, bucket, highest, minutes) for place, bucket in enumerate(counts)],
        highest,
        sum(bucket["completed"] for bucket in counts),
        sum(bucket["failed"] for bucket in counts),
        step,
        times_of(one.wait for one in found),
        times_of(one.run for one in found),
        curve_of([(one.bucket, one.wait) for one in found], minutes),
        curve_of([(one.bucket, one.run) for one in found], minutes),
        {kind: _kind(own, step) for kind, own in kinds.items()},
    )


def _bar(place: int, bucket: dict[str, int], highest: int, minutes: float) -> Bar:
    width, parts, y = WIDTH / BUCKETS, [], float(HEIGHT)
    for tone in ENDED:
        height = round(bucket[tone] / highest * (HEIGHT - 6), 1) if highest else 0.0
        if height:
            y = round(y - height, 1)
            parts.append((tone, y, height))
    before = (BUCKETS - place) * minutes / BUCKETS
    said = ", ".join(f"{count:,} {tone}" for tone, count in bucket.items() if count) or "none"
    return Bar(round(place * width + 0.5, 1), round(width - 1, 1), tuple(parts), f"{before:.0f} min ago: {said}")


def curve_of(found: Sequence[tuple[int, float | None]], minutes: float) -> Curve:
    """How long it took in each of some parts of the window; empty parts have no bar."""
    groups: list[list[float | None]] = [[] for _ in range(PARTS)]
    for bucket, value in found:
        if 0 <= bucket < BUCKETS:
            groups[bucket * PARTS // BUCKETS].append(value)
    values = [times_of(group) for group in groups]
    highest = max((one.most for one in values if one.most is not None), default=None)
    width = WIDTH / PARTS
    bars = []
    for part, one in enumerate(values):
        if one.half is None or one.most is None or not highest:
            continue
        parts = tuple(
            (tone, round(LOW - tall, 1), tall)
            for tone, value in (("most", one.most), ("half", one.half))
            for tall in [round(max(1.0, value / highest * (LOW - 4)), 1)]
        )
        said = f"{(part + 1) * minutes / PARTS:.0f} min ago: median {took(one.half)}, 95 % {took(one.most)}"
        bars.append(Bar(round((PARTS - 1 - part) * width + 1, 1), round(width - 2, 1), parts, said))
    return Curve(bars, highest)


def _kind(found: Sequence[Sampled], step: int) -> KindTimes:
    trend = [0] * (BUCKETS // 5)
    ended = [one for one in found if one.state in ENDED and 0 <= one.bucket < BUCKETS]
    for one in ended:
        trend[len(trend) - 1 - one.bucket // 5] += step
    return KindTimes(trend, times_of(one.wait for one in found), times_of(one.run for one in found), len(ended) * step)


def times_of(values: Iterable[float | None]) -> Times:
    """The median and the 95th percentile; None without values. Negative values, after a clock change, count as zero."""
    ordered = sorted(max(0.0, value) for value in values if value is not None)
    if not ordered:
        return Times(None, None)
    return Times(ordered[(len(ordered) - 1) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))])
