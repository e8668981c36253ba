"""Durations of mappings and snapshots: the forms of the document, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.services.exports.durations import InvalidDuration, end_of, parse

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("PT24H", timedelta(hours=24)),
        ("PT30M", timedelta(minutes=30)),
        ("P7D", timedelta(days=7)),
        ("P2W", timedelta(weeks=2)),
        ("PT007M", timedelta(minutes=7)),
    ],
)
def test_four_documented_forms_are_parsed(text: str, length: timedelta) -> None:
    """L-06"""
    assert parse(text) == length
    assert end_of(NOON, text) == NOON + length


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "P",
            "PT",
            "PT1H30M",
            "P1DT12H",
            "P1Y",
            "P1M",
            "PT10S",
            "PTH",
            "P-1D",
            "P1.5D",
            " P1D",
            "P1D\n",
            "p1d",
            "1D",
            "P٣D",
        ),
        *("P0D", "PT0M", "P" + "9" * 30 + "W", "P" + "9" * 5000 + "D"),
    ],
)
def test_other_forms_are_invalid_and_never_expire(text: str) -> None:
    """L-06"""
    with pytest.raises(InvalidDuration):
        parse(text)
    assert end_of(NOON, text) is None


def test_duration_beyond_the_calendar_never_expires() -> None:
    assert end_of(NOON, "P500000W") is None


def test_missing_duration_never_expires() -> None:
    """L-06"""
    assert end_of(NOON, None) is None
