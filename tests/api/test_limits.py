"""Too much, too deep, too often, too far: each has its answer, and none is a fault of ours."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from api_factories import GENEROUS
from factories import add, rows, value
from holdfast.api import limits
from holdfast.api.limits import DEEPEST, depth_of
from holdfast.api.plane import ApiOptions

Client = httpx2.AsyncClient
JSON = {"Content-Type": "application/json"}
DEEP = b'{"kind": "k", "payload": {"a": ' + b"[" * 20_000 + b"]" * 20_000 + b"}}"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"kind": "k", "payload": {"a": "' + b"x" * 10_000_000 + b'"}}', 413),
        (DEEP, 422),
        (b"[" * 1_000_000, 422),
        (json.dumps({"kind": "k", "payload": {f"key{n}": n for n in range(100_000)}}).encode(), 413),
        (json.dumps({"kind": "k", "payload": {f"key{n}": n for n in range(20_000)}}).encode(), 202),
        (b'{"kind": "k", "payload": {"a": "\\u0000"}}', 422),
        (b'{"kind": "k", "payload": {"\\u0000": 1}}', 422),
        (b'{"kind": "k\\u0000", "payload": {}}', 422),
        (b'{"kind": "k", "payload": {"a": "\\ud800"}}', 422),
        (b'{"kind": "\\ud800"}', 422),
        (b'{"kind": "k", "payload": {"a": "\\ud83d\\ude00"}}', 202),
        (b'{"kind": "k", "payload": {"a": "\xff"}}', 400),
        (b'{"kind": "k", "payload": {"a": NaN}}', 422),
        (b'{"kind": "k", "payload": {"a": 1e999}}', 422),
        (b'{"kind": "k", "payload": {"a": ' + b"9" * 5000 + b"}}", 400),
        (b'{"kind": "k", "payload": [1]}', 422),
        (b'{"kind": "k", "unknown": 1}', 422),
        (b'{"kind": "k", "priority": 99999}', 422),
        (b'{"kind": "k", "after": [9223372036854775808]}', 422),
        (b'{"kind": "k", "after": [4711]}', 404),
        (b'{"kind": "k", "run_after": "2026-01-01T00:00:00"}', 422),
        (b'{"kind": "k", "delay_seconds": 1e300}', 422),
        (b'{"kind": "k", "slot_key": "\\u0000"}', 422),
        (b'{"kind": "k", "locks": [{"key": "a\\u0000"}]}', 422),
        (b"{", 422),
        (b"", 422),
        (b"\x00", 422),
    ],
    ids=range(27),
)
async def test_f_72_hostile_bodies_are_refused_with_a_problem(analyst: Client, body: bytes, status: int) -> None:
    answer = await analyst.post("/api/jobs", content=body, headers=JSON)

    assert answer.status_code == status, answer.text
    if status >= 400:
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json()["what_to_do"]


async def test_key_that_is_too_long_for_an_index_is_refused_with_its_limit(analyst: Client) -> None:
    for field in ("unique_key", "slot_key"):
        answer = await analyst.post("/api/jobs", json={"kind": "k" * 200, field: "😀" * 500, "allow_unknown_kind": True})

        assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_REQUEST"), answer.text
        assert "it has 2,000 bytes, the limit is 1,500" in answer.text


async def test_f_72_lone_surrogate_is_refused_in_every_text(admin: Client) -> None:
    asked = {"name": "ci", "role": "viewer", "days": 7, "reason": "test"}
    for field in ("name", "reason"):
        answer = await admin.post("/api/tokens", content=json.dumps({**asked, field: "\ud800"}), headers=JSON)

        assert (answer.status_code, "surrogate" in answer.text) == (422, True), answer.text


async def test_f_72_body_without_a_length_is_counted_while_read(analyst: Client) -> None:
    async def endless() -> Any:
        yield b'{"kind": "k", "payload": {"a": "'
        for _ in range(100):
            yield b"x" * 100_000

    answer = await analyst.post("/api/jobs", content=endless(), headers=JSON)

    assert (answer.status_code, answer.json()["largest"]) == (413, 1_048_576)


@pytest.mark.parametrize("path", ["/api/jobs?kind=%00", "/api/locks?key=%00", "/api/jobs/99999999999999999999", "/api/jobs/-1",
                                  "/api/jobs/0x1", "/api/audit?actor=%00", "/api/jobs?kind=%ed%a0%80", "/api/jobs?state=gone",
                                  "/api/jobs?worker_id=1", "/api/stats/queue-depth?queue=%00"])  # fmt: skip
async def test_f_72_hostile_queries_are_refused_with_a_problem(ops: Client, path: str) -> None:
    answer = await ops.get(path)

    assert answer.status_code in (200, 422), answer.text
    assert answer.status_code == 422 or "%ed" in path


def test_depth_ignores_brackets_in_strings() -> None:
    assert depth_of(b"[" * 150) == 150
    assert depth_of(b'"' + b"[" * 150 + b'"') == 0
    assert depth_of(b'"\\"' + b"[" * 150 + b'"') == 0
    assert depth_of(b"[]" * 150) == 1
    assert depth_of(b'{"a\\\\": [' + b"[" * 150) == 152, "a backslash may be escaped itself"
    assert depth_of(b'["\\"]]]]]", ' + b"[{" * 75) == 151
    assert depth_of(b"[" * DEEPEST) == 0, "few brackets cannot be deep, and are not counted"


async def test_large_body_is_parsed_outside_the_event_loop(analyst: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for the loop; a megabyte takes tens of milliseconds."""
    seen: list[bool] = []

    def looking(body: bytes) -> int:
        seen.append(threading.current_thread() is threading.main_thread())
        return depth_of(body)

    monkeypatch.setattr(limits, "depth_of", looking)
    many = json.dumps({"kind": "k", "payload": {f"key{n}": [] for n in range(10_000)}}).encode()
    for body in (b'{"kind": "k"}', many):
        assert (await analyst.post("/api/jobs", content=body, headers=JSON)).status_code == 202

    assert seen == [True, False]


# ---------------------------------------------------------------------------------------------------------------------
# Pages
# ---------------------------------------------------------------------------------------------------------------------


async def test_pages_continue_when_rows_are_added(viewer: Client, conn: Any) -> None:
    made = [await add(conn) for _ in range(5)]
    first = (await viewer.get("/api/jobs", params={"limit": 2, "count": True})).json()
    await add(conn)

    second = await viewer.get("/api/jobs", params={"limit": 2, "count": True, "cursor": first["page"]["next_cursor"]})
    third = await viewer.get(second.headers["Link"].split(">")[0].strip("<"))

    ids = [job["id"] for page in (first, second.json(), third.json()) for job in page["data"]]
    assert ids == made[::-1]
    assert first["page"]["total"] == {"value": 5, "capped": False}
    assert (third.json()["page"]["next_cursor"], "Link" in third.headers) == (None, False)


@pytest.mark.parametrize("limit", ["0", "-1", "201", "1000000000", "1e9", "x", ""])
async def test_f_78_page_size_is_bounded(viewer: Client, limit: str) -> None:
    assert (await viewer.get("/api/jobs", params={"limit": limit})).status_code == 422


async def test_f_78_forged_or_foreign_cursor_is_refused(viewer: Client, conn: Any) -> None:
    for _ in range(3):
        await add(conn)
    cursor = (await viewer.get("/api/jobs", params={"limit": 1})).json()["page"]["next_cursor"]
    text, signature = cursor.split(".")

    for forged, params in (
        (f"{text}.{'B' if signature[0] == 'A' else 'A'}{signature[1:]}", {}),
        (f"MTAw.{signature}", {}),
        (text, {}),
        ("", {}),
        ("é.é", {}),
        ("'; DROP TABLE holdfast.jobs; --", {}),
        (cursor, {"state": "failed"}),
    ):
        answer = await viewer.get("/api/jobs", params={"limit": 1, "cursor": forged, **params})
        assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_CURSOR"), forged
    elsewhere = await viewer.get("/api/workers", params={"limit": 1, "cursor": cursor})
    assert elsewhere.json()["code"] == "INVALID_CURSOR"


async def test_f_73_sort_and_filters_cannot_inject_sql(viewer: Client, conn: Any) -> None:
    job_id = await add(conn)
    for name in ("kind", "queue", "slot_key"):
        answer = await viewer.get("/api/jobs", params={name: "' OR true --"})
        assert (answer.status_code, answer.json()["data"]) == (200, []), name

    refused = await viewer.get("/api/jobs", params={"sort": "id; DROP TABLE holdfast.jobs", "offset": "1000000"})
    assert refused.status_code == 422, "there is no sort and no offset to abuse"
    assert [job["id"] for job in (await viewer.get("/api/jobs")).json()["data"]] == [job_id]


# ---------------------------------------------------------------------------------------------------------------------
# How often
# ---------------------------------------------------------------------------------------------------------------------


class TestHowOften:
    @pytest.fixture
    def options(self) -> ApiOptions:
        return replace(GENEROUS, per_minute=1, burst=3)

    async def test_rate_limited_client_gets_retry_after(self, viewer: Client) -> None:
        answers = [await viewer.get("/api/jobs") for _ in range(4)]

        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert answers[3].json()["code"] == "RATE_LIMITED"
        assert 1 <= int(answers[3].headers["Retry-After"]) <= 60

    async def test_rate_limit_recovers_over_time(self, viewer: Client, conn: Any) -> None:
        for _ in range(4):
            last = await viewer.get("/api/jobs")
        assert last.status_code == 429

        await conn.execute("UPDATE holdfast.rate_limits SET full_at = full_at - interval '60 seconds'")

        assert [(await viewer.get("/api/jobs")).status_code for _ in range(2)] == [200, 429]

    async def test_f_78_rate_limit_applies_across_paths_addresses_and_tokens(self, as_role: Any, conn: Any) -> None:
        tokens = [await as_role("viewer", name="ada") for _ in range(3)]
        for number, client in enumerate(tokens):
            path = ("/api/jobs", "/API/jobs", "/api/locks")[number]
            await client.get(path if number != 1 else "/api/workers", headers={"X-Forwarded-For": f"10.0.0.{number}"})

        late = await tokens[0].get("/api/pipelines", headers={"X-Forwarded-For": "10.0.0.9"})

        assert late.status_code == 429
        assert await rows(conn, "SELECT key FROM holdfast.rate_limits") == [("token:ada",)]

    async def test_rate_limit_does_not_affect_other_clients(self, viewer: Client, ops: Client) -> None:
        for _ in range(5):
            await viewer.get("/api/jobs")

        assert (await ops.get("/api/jobs")).status_code == 200

    async def test_probes_are_not_rate_limited(self, anyone: Client, conn: Any) -> None:
        assert {(await anyone.get("/health")).status_code for _ in range(20)} == {200}
        assert await value(conn, "SELECT count(*) FROM holdfast.rate_limits") == 0
