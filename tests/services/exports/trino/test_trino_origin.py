"""Which addresses get a request of ours, and how long we wait before the next."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.addresses import Origin
from holdfast.engines.port import UntrustedUri
from holdfast.engines.trino import TrinoOptions
from holdfast.engines.trino.backoff import LONGEST, SHORTEST, backoff, retry_after
from holdfast.engines.trino.origin import (
    STATEMENTS,
    checked,
    checked_segment,
    origin_of_setting,
)
from holdfast.engines.trino.transport import Transport
from holdfast.errors import UsageError

TRINO = Origin("https", "trino.example.com", 8443)
GOOD = "https://trino.example.com:8443/v1/statement/queued/q/s/1"


def test_the_configured_origin_is_accepted_as_it_is():
    assert checked(GOOD, TRINO, STATEMENTS) == GOOD
    assert checked(GOOD.replace("trino.", "TRINO."), TRINO, STATEMENTS)
    default = Origin("https", "trino.example.com", 443)
    assert checked("https://trino.example.com/v1/statement/x", default, STATEMENTS)
    assert checked("https://trino.example.com:443/v1/statement/x", default, STATEMENTS)


@pytest.mark.parametrize(
    "uri",
    [
        "http://trino.example.com:8443/v1/statement/x",
        "https://trino.example.com/v1/statement/x",
        "https://trino.example.com:8444/v1/statement/x",
        "https://evil.example.com:8443/v1/statement/x",
        "https://trino.example.com.evil.com:8443/v1/statement/x",
        "https://trino.example.com:8443@evil.com/v1/statement/x",
        "https://user:pass@trino.example.com:8443/v1/statement/x",
        "https://@trino.example.com:8443/v1/statement/x",
        "https://trino.example.com.:8443/v1/statement/x",
        "https://evil.com\\@trino.example.com:8443/v1/statement/x",
        "https://trino.example.com:8443\\.evil.com/v1/statement/x",
        "https://evil.com#@trino.example.com:8443/v1/statement/x",
        "https://trino.example.com:8443/v1/statement/../../admin",
        "https://trino.example.com:8443/v1/statement/%2e%2e/%2e%2e/admin",
        "https://trino.example.com:8443/v1/statement/a%2Fb",
        "https://trino.example.com:8443/v1/statement//x",
        "https://trino.example.com:8443/v1/query/x",
        "https://trino.example.com:8443/V1/statement/x",
        "https://trino.example.com:99999/v1/statement/x",
        "https://trino.exa\tmple.com:8443/v1/statement/x",
        " https://trino.example.com:8443/v1/statement/x",
        "https://trinо.example.com:8443/v1/statement/x",
        "//trino.example.com:8443/v1/statement/x",
        "/v1/statement/x",
        "file:///etc/passwd",
        "https://trino.example.com:8443/v1/statement/" + "x" * 9000,
        "",
        None,
        7,
    ],
)
def test_f_51_an_address_that_is_not_exactly_ours_is_refused(uri: object):
    with pytest.raises(UntrustedUri):
        checked(uri, TRINO, STATEMENTS)


@given(st.text() | st.from_regex(r"https?://[a-z.@:/\\0-9%#?]{0,60}"))
def test_f_51_no_text_at_all_gets_through_but_ours(uri: str):
    try:
        accepted = checked(uri, TRINO, STATEMENTS)
    except UntrustedUri:
        return
    assert accepted.lower().startswith("https://trino.example.com:8443/v1/statement/")


def test_segments_may_be_in_a_store_that_was_named_and_then_without_our_credentials():
    store = Origin("https", "bucket.s3.example.com", 443)
    signed = "https://bucket.s3.example.com/spool/x?X-Amz-Signature=secret"
    assert checked_segment(signed, TRINO, frozenset({store})) == (signed, False)
    ours = "https://trino.example.com:8443/v1/spooled/download/x"
    assert checked_segment(ours, TRINO, frozenset()) == (ours, True)
    for uri in (signed, "https://trino.example.com:8443/v1/statement/x", None):
        with pytest.raises(UntrustedUri) as refused:
            checked_segment(uri, TRINO, frozenset())
        assert "secret" not in str(refused.value)


def test_w_22_a_secret_never_goes_in_the_clear_and_never_stands_in_an_address_or_a_repr():
    """W-22."""
    with pytest.raises(UsageError, match="unencrypted"):
        origin_of_setting("http://trino.example.com:8080", with_secret=True)
    assert origin_of_setting("http://127.0.0.1:8080", with_secret=True).is_loopback
    assert origin_of_setting("http://[::1]:8080", with_secret=True).is_loopback
    for url in ("https://u:p@trino.example.com", "https://trino.example.com/path", "trino.example.com", "ftp://x"):
        with pytest.raises(UsageError):
            Transport(TrinoOptions(url, "u", "p"))
    assert "hunter2" not in repr(TrinoOptions("https://trino.example.com", "u", "hunter2"))
    with pytest.raises(UsageError, match="both a password and a token"):
        TrinoOptions("https://trino.example.com", "u", "p", "t")


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("1", 1.0),
        ("0", SHORTEST),
        ("-5", SHORTEST),
        ("86400", LONGEST),
        ("1e9", LONGEST),
        ("inf", LONGEST),
        ("2.5", 2.5),
        ("Wed, 21 Oct 2026 07:28:10 GMT", 10.0),
        ("Wed, 21 Oct 2020 07:28:00 GMT", SHORTEST),
        ("Wed, 21 Oct 2099 07:28:00 GMT", LONGEST),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("٣", 3.0),
    ],
)
def test_f_47_retry_after_is_honoured_within_bounds(said: str, seconds: float | None):
    assert retry_after({"retry-after": said, "date": "Wed, 21 Oct 2026 07:28:00 GMT"}) == seconds


@given(st.text(), st.text())
def test_f_47_no_retry_after_raises(said: str, date: str):
    pause = retry_after({"retry-after": said, "date": date})
    assert pause is None or SHORTEST <= pause <= LONGEST


def test_f_45_pauses_begin_at_50_to_100_ms_and_grow():
    assert all(0.05 <= backoff(0) <= 0.1 for _ in range(100))
    assert all(backoff(tries) <= 10 for tries in range(100))
    assert math.isfinite(backoff(10_000))
