"""Secrets and control characters stay out of what is written: known values, patterns, names of fields, and hostile texts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.database.pool import careful
from holdfast.telemetry import redact

CANARY = 'c4n@ry/"\\ä secret'


@pytest.fixture(autouse=True)
def nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_hidden", {})


@pytest.mark.parametrize(
    "spelling",
    [
        CANARY,
        "c4n%40ry%2F%22%5C%C3%A4%20secret",
        'c4n@ry/\\"\\\\\\u00e4 secret',
        repr(CANARY),
        {"inner": [CANARY]},
        ValueError(CANARY),
    ],
)
def test_f_75_known_secret_is_redacted_in_every_encoding(spelling: Any):
    """Q-02, W-22."""
    redact.hide(CANARY)

    said = str(redact.clean({"a field": spelling}))

    assert "c4n" not in said
    assert redact.HIDDEN in said


@pytest.mark.parametrize(
    "text",
    [
        "connecting to postgresql://ops:CANARY@db.example:5432/jobs",
        "host=db user=ops password=CANARY dbname=jobs",
        "PGPASSWORD='CANARY with spaces'",
        "Authorization: Bearer CANARY.CANARY",
        "authorization=Basic CANARYCANARY==",
        "GET https://store.example/object?sig=CANARY&x=1",
        "https://store.example/o?X-Amz-Signature=CANARYCANARY",
        '{"api_key": "CANARY"}',
        "{'client_secret': 'CANARY'}",
        "token: CANARY",
        "hf_ab12cd34_CANARYCANARYCANARY",
        "eyJhbGciOi.eyJzdWIiCANARY.CANARY",
        "-----BEGIN RSA PRIVATE KEY-----\nCANARY\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nCANARY, cut off",
    ],
)
def test_f_75_common_secret_patterns_are_redacted(text: str):
    """Q-02, W-22."""
    assert "CANARY" not in redact.text(text)


@pytest.mark.parametrize(
    "name", ["password", "DB_PASSWORD", "client_secret", "access_token", "Authorization", "x-api-key", "cookie"]
)
def test_f_75_value_of_a_secret_field_is_redacted(name: str):
    assert redact.fields({name: "CANARY"}) == {name: "***"}
    assert redact.clean({"request": {"headers": {name: ["CANARY"]}}}) == {"request": {"headers": {name: "***"}}}


@pytest.mark.parametrize(
    "text",
    [
        "job 7 ended: no such table public.orders",
        "http://127.0.0.1:8080/jobs?next=a@b.example",
        "fence_token=42 attempt_id=0a6c2c0e-4f6e-4b63-b6b7-2c1f1c9d2f11",
        "the tokens of a model: 5",
        "idempotency_key=abc",
    ],
)
def test_other_text_is_unchanged(text: str):
    assert redact.text(text) == text


def test_numbers_ids_and_times_stay_readable():
    assert redact.fields({"fence_token": 7, "tokens": 3, "id": UUID(int=1), "ok": True, "none": None}) == {
        "fence_token": 7, "tokens": 3, "id": str(UUID(int=1)), "ok": True, "none": None,
    }  # fmt: skip


def test_unprintable_value_does_not_lose_the_line():
    @dataclass
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "cannot be printed" in redact.clean(Broken())


@pytest.mark.parametrize(
    "hostile", ["password" * 20_000, "://a:" * 40_000, "eyJaaaaa." * 20_000, "-----BEGIN PRIVATE KEY-----" * 5_000]
)
def test_hostile_text_is_cut_in_bounded_time(hostile: str):
    began = time.process_time()

    said = redact.text(hostile)

    assert len(said) < 2 * redact.LONGEST
    assert time.process_time() - began < 10  # a pattern that backtracks needs hours for this, not a slow machine's second


def test_database_password_is_redacted_after_connecting():
    careful("postgresql://ops:quite-secret@127.0.0.1:1/jobs")
    careful("postgresql://postgres:postgres@127.0.0.1:1/jobs")  # a name that stands in a hundred harmless lines

    assert redact.text("quite-secret of postgres") == "*** of postgres"


@given(st.text())
def test_f_75_terminal_escapes_are_removed(text: str):
    shown = redact.escaped(text)

    assert shown.isprintable()
    assert "\n" not in shown


PIECES = [
    *("password", "PASSWD", "secret", "token", "fence_token", "api_key", "private-key", "access key", "Authorization"),
    *("bearer ", "Basic ", "hf_ab_", "eyJ", "AKIA", "ASIA", "://", "@", ":", "=", "?sig=", "&key=", "?X-Amz-Signature="),
    *("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "CANARYCANARY0123", "a.b.c", " ", '"', "'"),
    *("ſ", "ı", "K", "\n"),
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=12).map("".join))
def test_f_75_pre_check_skips_no_matching_pattern(text: str):
    """Neither by the order of the patterns nor by letters that only count as the same in any case."""
    everywhere = text
    for pattern, instead, _ in redact.PATTERNS:
        everywhere = pattern.sub(instead, everywhere)

    assert redact.text(text) == everywhere


def test_a_line_without_secrets_runs_no_substitution(monkeypatch: pytest.MonkeyPatch):
    """A handler's line has a dozen fields: each pattern on each name and value took half a millisecond."""
    ran: list[str] = []

    class Counted:
        def __init__(self, pattern: Any) -> None:
            self._pattern = pattern

        def sub(self, instead: str, value: str) -> str:
            ran.append(value)
            return str(self._pattern.sub(instead, value))

    monkeypatch.setattr(redact, "PATTERNS", tuple((Counted(one), *rest) for one, *rest in redact.PATTERNS))
    line = {"event": "batch written", "level": "info", "job_id": 7, "kind": "exports.export", "file": "part-1.parquet"}

    assert redact.fields(line) == line
    assert ran == []
    assert redact.text("password=CANARY") == "password=***"
    assert ran == ["password=CANARY"]


@pytest.mark.parametrize("field", ["actor", "triggered_by", "paused_by"])
def test_actor_is_shown_and_a_secret_in_its_place_is_not(field: str):
    assert redact.fields({field: "token:ada"}) == {field: "token:ada"}
    assert redact.fields({field: "token:hf_ab12cd34_CANARYCANARYCANARY"}) == {field: "token:hf_***"}
    assert redact.fields({"note": "token:ada"}) == {"note": "token:***"}
