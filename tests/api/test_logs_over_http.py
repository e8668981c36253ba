"""Log lines of handlers over HTTP: permissions, pages, filters, and what a worker may send."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import httpx2
import pytest

from factories import hold, replace, rows, value
from holdfast.jobs.logs import Numbered, write
from holdfast.jobs.model import Claim
from holdfast.jobs.views.logs import read_lines
from holdfast.telemetry import redact
from holdfast.telemetry.kept import Line

Client = httpx2.AsyncClient
SAID_AT = "2026-01-01T00:00:00+00:00"


async def say(conn: Any, claim: Claim, *messages: str, level: str = "info", first: int = 1) -> None:
    lines = [Numbered(claim, n, Line(SAID_AT, level, text, {"n": n})) for n, text in enumerate(messages, first)]
    assert await write(conn, lines) == {claim.attempt_id}


async def test_line_has_position_time_level_and_fields(analyst: Client, conn: Any) -> None:
    claim = await hold(conn)
    await say(conn, claim, "begun", level="warning")

    answer = await analyst.get(f"/api/jobs/{claim.id}/logs")

    (line,) = answer.json()["data"]
    assert line.pop("at")
    assert line == {
        "id": "1.1",
        "attempt_no": 1,
        "line_no": 1,
        "said_at": "2026-01-01T00:00:00Z",
        "level": "warning",
        "message": "begun",
        "fields": {"n": 1},
    }


async def test_pages_continue_across_attempts(analyst: Client, conn: Any) -> None:
    first = await hold(conn, max_crashes=9)
    await say(conn, first, "a", "b", "c")
    second = await replace(conn, first)
    await say(conn, second, "d", "e")
    path, found = f"/api/jobs/{first.id}/logs", []

    answer = (await analyst.get(path, params={"limit": 2})).json()
    while True:
        found.append([line["message"] for line in answer["data"]])
        cursor = answer["page"]["next_cursor"]
        if cursor is None:
            break
        answer = (await analyst.get(path, params={"limit": 2, "cursor": cursor})).json()

    assert found == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, "abcde"),
        ({"attempt": 1}, "abc"),
        ({"attempt": 3}, ""),
        ({"level": "error"}, "de"),
        ({"tail": 2}, "de"),
        ({"tail": 3, "limit": 1}, "c"),
        ({"tail": 1, "attempt": 1}, "c"),
        ({"after": "1.2"}, "cde"),
        ({"after": "2.2"}, ""),
    ],
)
async def test_lines_can_be_filtered(analyst: Client, conn: Any, asked: dict[str, Any], told: str) -> None:
    first = await hold(conn, max_crashes=9)
    await say(conn, first, "a", "b", "c")
    await say(conn, await replace(conn, first), "d", "e", level="error")

    answer = await analyst.get(f"/api/jobs/{first.id}/logs", params=asked)

    assert "".join(line["message"] for line in answer.json()["data"]) == told


@pytest.mark.parametrize(
    "asked",
    [
        {"level": "loud"},
        {"tail": 0},
        {"attempt": 0},
        {"attempt": 2**31},
        {"after": "1"},
        {"after": "1.9999999999"},
        {"limit": 0},
    ],
)
async def test_invalid_filter_is_refused(analyst: Client, conn: Any, asked: dict[str, Any]) -> None:
    claim = await hold(conn)

    assert (await analyst.get(f"/api/jobs/{claim.id}/logs", params=asked)).status_code == 422


async def test_job_without_lines_is_empty_and_an_unknown_job_is_not_found(analyst: Client, conn: Any) -> None:
    claim = await hold(conn)

    assert (await analyst.get(f"/api/jobs/{claim.id}/logs")).json()["data"] == []
    assert (await analyst.get("/api/jobs/4711/logs")).status_code == 404


async def test_lines_need_the_right_to_see_payloads(viewer: Client, conn: Any) -> None:
    """Q-01."""
    claim = await hold(conn)

    assert (await viewer.get(f"/api/jobs/{claim.id}/logs")).status_code == 403


# ---------------------------------------------------------------------------------------------------------------------
# From a worker
# ---------------------------------------------------------------------------------------------------------------------


def fence(attempt_id: str) -> dict[str, str]:
    return {"If-Match": f'"{attempt_id}"'}


def sent(**fields: Any) -> dict[str, Any]:
    line = {"number": 1, "said_at": SAID_AT, "level": "info", "message": "m"}
    return {"lines": [line | fields]}


async def test_worker_sends_its_attempt_id_and_a_replaced_one_is_refused(as_role: Any, conn: Any) -> None:
    worker = await as_role("worker")
    stale = await hold(conn, max_crashes=9)
    path = f"/api/worker/jobs/{stale.id}/logs"
    kept = await worker.post(path, json=sent(), headers=fence(stale.attempt_id))
    following = await replace(conn, stale)

    late = await worker.post(path, json=sent(number=2), headers=fence(stale.attempt_id))
    unknown = await worker.post(path, json=sent(), headers=fence(str(uuid4())))
    without = await worker.post(path, json=sent())

    assert kept.status_code == 204
    assert [(answer.status_code, answer.json()["code"]) for answer in (late, unknown, without)] == [
        (412, "STALE_ATTEMPT"),
        (412, "STALE_ATTEMPT"),
        (428, "ATTEMPT_REQUIRED"),
    ]
    assert (await worker.post(path, json=sent(), headers=fence(following.attempt_id))).status_code == 204
    assert await rows(conn, "SELECT attempt_no, line_no FROM holdfast.log_lines ORDER BY 1") == [(1, 1), (2, 1)]


@pytest.mark.parametrize("role", ["viewer", "analyst", "ops", "admin", "autoscaler", None])
async def test_only_workers_write_lines(as_role: Any, conn: Any, role: str | None) -> None:
    claim = await hold(conn)
    client = await as_role(role)

    answer = await client.post(f"/api/worker/jobs/{claim.id}/logs", json=sent(), headers=fence(claim.attempt_id))

    assert answer.status_code == (401 if role is None else 403)


async def test_f_75_line_sent_by_a_worker_is_sanitised(as_role: Any, conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q-02: whoever wrote that worker, no secret is kept, and nothing that Postgres could not store fails it."""
    monkeypatch.setattr(redact, "_hidden", {})
    redact.hide("the-canary")
    worker = await as_role("worker")
    claim = await hold(conn)
    hostile = {
        "message": "the-canary \x00 password=other " + "x" * 50_000,
        "fields": {"api_key": "other", "deep": [[[[[[[["the-canary"]]]]]]]], "n": 2**80, "\x00": "\x00", "big": "y" * 90_000},
    }

    answer = await worker.post(f"/api/worker/jobs/{claim.id}/logs", json=sent(**hostile), headers=fence(claim.attempt_id))

    assert answer.status_code == 204, answer.text
    (line,) = await read_lines(conn, claim.id)
    assert "the-canary" not in str(line)
    assert "other" not in str(line)
    assert len(str(line)) < 20_000


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"lines": []},
        {"lines": [{}]},
        sent(number=0),
        sent(number=2**31),
        sent(level="loud"),
        sent(said_at="yesterday"),
        sent(said_at="2026-01-01T00:00:00"),
        sent(other=1),
        {"lines": sent()["lines"] * 1001},
    ],
)
async def test_invalid_line_is_refused(as_role: Any, conn: Any, body: Any) -> None:
    worker = await as_role("worker")
    claim = await hold(conn)

    answer = await worker.post(f"/api/worker/jobs/{claim.id}/logs", json=body, headers=fence(claim.attempt_id))

    assert answer.status_code == 422
    assert await value(conn, "SELECT count(*) FROM holdfast.log_lines") == 0
