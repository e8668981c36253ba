"""Which mappings and snapshots expire, as a table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.services.exports.lifecycle.decide import (
    ExpiryReason,
    Life,
    TooManyExpired,
    decide,
    invalid_durations,
    refuse_too_many,
)

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def life(after: timedelta, **fields: Any) -> Life:
    """One that is this old, and was last used when it was made."""
    whole = {"used_at": CREATED, "ttl": None, "inactivity_timeout": None, **fields}
    return Life(1, "ada", "bank", CREATED, now=CREATED + after, **whole)


@pytest.mark.parametrize(
    ("after", "fields", "because"),
    [
        (HOUR * 1000, {}, None),
        (HOUR - timedelta(microseconds=1), {"ttl": "PT1H"}, None),
        (HOUR, {"ttl": "PT1H"}, ExpiryReason.TTL),
        (HOUR * 2, {"ttl": "PT1H"}, ExpiryReason.TTL),
        (HOUR * 2, {"ttl": "PT1H", "used_at": CREATED + HOUR * 2}, ExpiryReason.TTL),
        (HOUR * 2, {"ttl": "whenever"}, None),
        (HOUR - timedelta(microseconds=1), {"inactivity_timeout": "PT1H"}, None),
        (HOUR, {"inactivity_timeout": "PT1H"}, ExpiryReason.INACTIVITY),
        (HOUR * 2, {"inactivity_timeout": "PT1H", "used_at": CREATED + HOUR * 1.5}, None),
        (HOUR * 3, {"inactivity_timeout": "PT1H", "ttl": "PT2H"}, ExpiryReason.INACTIVITY),
        (HOUR * 3, {"inactivity_timeout": "PT2H", "ttl": "PT1H"}, ExpiryReason.TTL),
        (HOUR * 3, {"inactivity_timeout": "PT1H", "ttl": "P0D"}, ExpiryReason.INACTIVITY),
        (HOUR, {"ttl": "P7D", "deleting_since": CREATED}, ExpiryReason.TTL),
    ],
)
def test_expiry_and_its_reason(after: timedelta, fields: dict[str, Any], because: ExpiryReason | None) -> None:
    """L-07, L-06: expired when now >= created_at + ttl."""
    verdict = decide(life(after, **fields))

    assert (None if verdict is None else verdict.because) == because
    assert verdict is None or verdict.blocked_by is None


@pytest.mark.parametrize("fields", [{"is_open": True}, {"users": 2}])
def test_resource_in_use_is_not_deleted(fields: dict[str, Any]) -> None:
    """L-03, L-05"""
    verdict = decide(life(HOUR, ttl="PT1H", **fields))

    assert verdict is not None
    assert verdict.blocked_by


def test_verdict_has_the_time_of_expiry() -> None:
    """L-10"""
    verdict = decide(life(HOUR * 5, ttl="PT2H", inactivity_timeout="PT3H"))

    assert verdict is not None
    assert verdict.since == CREATED + HOUR * 2


def test_every_invalid_duration_is_reported() -> None:
    """L-06"""
    assert len(invalid_durations(life(HOUR, ttl="P0D", inactivity_timeout="P1DT12H"))) == 2
    assert invalid_durations(life(HOUR, ttl="P1D")) == []


@pytest.mark.parametrize(
    ("expired", "total", "is_manual", "refused"),
    [(19, 19, False, False), (20, 40, False, False), (21, 40, False, True), (40, 40, True, False), (0, 0, False, False)],
)
def test_scheduled_pass_never_deletes_most_resources(expired: int, total: int, is_manual: bool, refused: bool) -> None:
    if not refused:
        refuse_too_many("snapshot", expired=expired, total=total, is_manual=is_manual)
        return
    with pytest.raises(TooManyExpired, match="21 of 40 snapshots"):
        refuse_too_many("snapshot", expired=expired, total=total, is_manual=is_manual)
