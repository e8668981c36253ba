"""The HTTP requests of a remote worker: authentication, refusals, retries, and where the token is sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from conformance.conftest import Api, serving
from factories import everything, hold, start_worker, state_of
from holdfast.api.auth import create_token
from holdfast.api.policy import Role
from holdfast.errors import CancelRequested, ClaimLost, PayloadInvalid, Refused, Unreachable, UsageError
from holdfast.jobs.model import Claim, WorkerId
from holdfast.jobs.outcome import Done, decide
from holdfast.jobs.renew import WorkerInfo
from holdfast.worker.transports import http
from holdfast.worker.transports.interface import Takes
from holdfast.worker.transports.remote import Remote

TAKES = Takes({"k": 1}, ("default",))
COMPLETE = {"move": "complete", "state": "completed"}


@pytest.fixture
async def client(api: Api) -> Any:
    """The bare protocol, without our own client in front of it."""
    headers = {"Authorization": f"Bearer {api.token}"}
    async with httpx2.AsyncClient(base_url=f"{api.url}/api/worker", headers=headers, timeout=60) as one:
        yield one


def shows(claim: Claim) -> dict[str, str]:
    return {"If-Match": f'"{claim.attempt_id}"'}


# ---------------------------------------------------------------------------------------------------------------------
# What the API refuses
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "status", "code"),
    [
        (None, 428, "ATTEMPT_REQUIRED"),
        ("*", 428, "ATTEMPT_REQUIRED"),
        ("", 428, "ATTEMPT_REQUIRED"),
        ('"not-a-uuid"', 412, "STALE_ATTEMPT"),
        ('"00000000-0000-4000-8000-000000000000"', 412, "STALE_ATTEMPT"),
    ],
)
async def test_writes_without_an_attempt_id_are_refused(
    client: Any, conn: Any, shown: str | None, status: int, code: str
) -> None:
    claim = await hold(conn)
    before = await everything(conn)
    headers = {} if shown is None else {"If-Match": shown}

    for path, body in [("finish", COMPLETE), ("chain", {"child": {"kind": "k"}}), ("progress", {"progress": 1})]:
        answer = await client.post(f"/jobs/{claim.id}/{path}", json=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert answer.headers["content-type"] == "application/problem+json"
        assert {"type", "title", "status", "detail", "code"} <= answer.json().keys()
    assert await everything(conn) == before


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.WORKER])
async def test_only_the_worker_role_is_allowed(api: Api, conn: Any, role: Role) -> None:
    claim = await hold(conn)
    _, secret = await create_token(conn, "other", role, by="test")
    async with httpx2.AsyncClient(base_url=f"{api.url}/api/worker") as other:
        answer = await other.post(
            f"/jobs/{claim.id}/finish", json=COMPLETE, headers={"Authorization": f"Bearer {secret}", **shows(claim)}
        )
        nobody = await other.post(f"/jobs/{claim.id}/finish", json=COMPLETE, headers=shows(claim))

    assert (answer.status_code, nobody.status_code) == (403, 401)
    assert await state_of(conn, claim.id) == "running"


async def test_unauthenticated_request_is_refused_before_its_body_is_read(api: Api) -> None:
    async with httpx2.AsyncClient(base_url=f"{api.url}/api/worker") as nobody:
        answer = await nobody.put(f"/{uuid4()}", content=b"x" * 100)
    assert answer.status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        {"move": "rescue", "state": "pending"},
        {"move": "complete", "state": "failed"},
        {"move": "complete", "state": "completed", "errors": -5},
        {"move": "submit", "state": "submitted", "handle": 1},
        {"move": "retry", "state": "pending", "then": [{"kind": "k"}]},
        {"move": "complete", "state": "completed", "worker_id": "me"},
        {"move": "complete", "state": "completed", "then": [{"kind": "k", "parent_id": 1}]},
        {"move": "complete", "state": "completed", "then": [{"kind": "k", "pipeline_id": "mine"}]},
        {"move": "complete", "state": "completed", "delay": 1e300},
        {"move": "complete", "state": "completed", "detail": {"a": 1}},
        ["complete"],
        None,
    ],
)
async def test_invalid_end_is_refused(client: Any, conn: Any, body: Any) -> None:
    claim = await hold(conn)
    before = await everything(conn)

    answer = await client.post(f"/jobs/{claim.id}/finish", content=json.dumps(body), headers=shows(claim))

    assert (answer.status_code, answer.json()["status"]) == (422, 422)
    assert await everything(conn) == before


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"move": "complete", "state": "completed", "result": "' + b"x" * 8_000_000 + b'"}', 413),
        (b'{"move": "complete", "state": "completed", "result": ' + b"[" * 100_000, 422),
        (b'{"move": "complete", "state": "completed", "result": ' + b"[" * 90 + b"]" * 90 + b"}", 422),
        (b'{"move": "complete", "state": "completed", "result": "\\ud800"}', 422),
        (b'{"move": "complete", "state": "completed", "result": "a\\u0000b"}', 422),
        (b'{"move": "complete", "state": "completed", "result": NaN}', 422),
        (b"\xff\xfe", 422),
        (b"", 422),
    ],
    ids=[
        "too large",
        "too deep to parse",
        "too deep to store",
        "half a character",
        "NUL",
        "not a number",
        "no text",
        "nothing",
    ],
)
async def test_body_that_cannot_be_stored_is_refused(client: Any, conn: Any, body: bytes, status: int) -> None:
    claim = await hold(conn)

    answer = await client.post(f"/jobs/{claim.id}/finish", content=body, headers=shows(claim))

    assert answer.status_code == status
    assert await state_of(conn, claim.id) == "running"


async def test_chained_child_that_is_not_plain_is_not_claimed(client: Any, conn: Any) -> None:
    """What it asks for would be forgotten on that way."""
    claim = await hold(conn)

    for child in (
        {"kind": "k", "locks": [{"key": "t"}]},
        {"kind": "k", "run_after_seconds": 5},
        {"kind": "k", "slot_key": "s"},
    ):
        answer = await client.post(f"/jobs/{claim.id}/chain", json={"child": child}, headers=shows(claim))
        assert answer.status_code == 422
    assert await state_of(conn, claim.id) == "running"


async def test_unregistered_worker_cannot_claim(api: Api, client: Any, conn: Any) -> None:
    """A job that nobody known holds could never be rescued."""
    await hold(conn)
    body = {"kinds": {"k": 1}, "queues": ["default"]}

    for path in ("claims", "claims/1", "polls"):
        assert (await client.post(f"/{uuid4()}/{path}", json=body)).status_code == 404
    remote = Remote(api.url, api.token)
    with pytest.raises(Unreachable, match="register it before it claims"):
        await remote.claim(WorkerId(str(uuid4())), TAKES, 1)
    await remote.close()


async def test_response_has_a_maximum_number_of_claims(client: Any, conn: Any) -> None:
    worker = await start_worker(conn)
    await conn.execute("INSERT INTO holdfast.jobs (kind) SELECT 'k' FROM generate_series(1, 30)")

    answer = await client.post(f"/{worker}/claims", json={"kinds": {"k": 1}, "queues": ["default"], "limit": 500})

    assert len(answer.json()["claims"]) == 20


# ---------------------------------------------------------------------------------------------------------------------
# What the client makes of answers
# ---------------------------------------------------------------------------------------------------------------------


class Scripted:
    """An ASGI app that answers what it is told to, and keeps what it was asked."""

    def __init__(self, *answers: tuple[int, dict[str, str], bytes]) -> None:
        self.answers, self.asked = list(answers), []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        headers = {name.decode(): text.decode() for name, text in scope["headers"]}
        self.asked.append((scope["method"], scope["path"], headers))
        status, more, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        raw = [(name.encode(), text.encode()) for name, text in more.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": body})


OK_CLAIMS = (200, {}, b'{"claims": []}')


def a_claim() -> Claim:
    nothing: dict[str, Any] = dict.fromkeys(Claim._fields)
    return Claim(**nothing | {"id": 7, "attempt_id": str(uuid4()), "worker_id": "me", "kind": "k", "errors": 0})


async def asked(app: Scripted, ask: Callable[[Remote], Any]) -> Any:
    with serving(app) as url:
        remote = Remote(url, "secret")
        try:
            return await ask(remote)
        finally:
            await remote.close()


def claiming(remote: Remote) -> Any:
    return remote.claim(WorkerId("w"), TAKES, 5)


def problem(status: int, code: str, **more: Any) -> tuple[int, dict[str, str], bytes]:
    return (
        status,
        {"content-type": "application/problem+json"},
        json.dumps({"code": code, "detail": "so it is", **more}).encode(),
    )


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem(412, "STALE_ATTEMPT"), ClaimLost),
        (problem(412, "stale-attempt"), ClaimLost),
        (problem(409, "CANCEL_REQUESTED", reason="enough"), CancelRequested),
        (problem(409, "LOCK_BUSY"), Refused),
        (problem(413, "TOO_LARGE"), PayloadInvalid),
        (problem(422, "INVALID_PAYLOAD"), PayloadInvalid),
        (problem(401, "UNAUTHENTICATED"), Unreachable),
        (problem(403, "FORBIDDEN"), Unreachable),
        (problem(500, "INTERNAL"), Unreachable),
        ((502, {}, b"<html>"), Unreachable),
        ((200, {}, b"<html>welcome to the hotel</html>"), Unreachable),
    ],
)
async def test_every_status_code_has_its_exception(answer: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        await asked(Scripted(answer), lambda remote: remote.finish(a_claim(), decide(a_claim(), Done("x"))))


async def test_response_of_another_server_is_refused() -> None:
    for body in (b"{}", b"[]", b'{"claims": [{"id": 1}]}'):
        with pytest.raises(Unreachable):
            await asked(Scripted((200, {}, body)), claiming)


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_respected(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    waited: list[float] = []
    monkeypatch.setattr(http, "_sleep", lambda seconds: _note(waited, seconds))
    put_off = (status, {"retry-after": "7"}, b"")
    app = Scripted(put_off, (status, {"retry-after": "100000"}, b""), (200, {}, b'{"promoted": 3}'))

    assert await asked(app, lambda remote: remote.promote()) == (3, None)

    assert waited == [7.0, 30.0], "as it is told, within reason"
    assert len(app.asked) == 3


async def _note(waited: list[float], seconds: float) -> None:
    waited.append(seconds)


async def test_finish_after_a_503_is_looked_up_before_it_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database may have been lost after the commit."""
    monkeypatch.setattr(http, "_sleep", lambda seconds: _note([], seconds))
    app = Scripted((503, {"retry-after": "1"}, b""), (204, {}, b""))

    with pytest.raises(Unreachable):
        await asked(app, lambda remote: remote.finish(a_claim(), decide(a_claim(), None)))
    assert len(app.asked) == 1


async def test_token_is_sent_to_the_configured_origin_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: no redirect is followed, whatever it promises, and no proxy is taken from the environment."""
    elsewhere, proxy = Scripted(OK_CLAIMS), Scripted(OK_CLAIMS)
    with serving(elsewhere) as other, serving(proxy) as between:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, between)
        for status in (301, 302, 307, 308):
            with pytest.raises(Unreachable, match="redirects are not followed"):
                await asked(Scripted((status, {"location": f"{other}/api/worker/w/claims"}, b"")), claiming)
        here = Scripted(OK_CLAIMS)
        assert await asked(here, claiming) == ([], [], False)

    assert (elsewhere.asked, proxy.asked) == ([], [])
    assert here.asked[0][2]["authorization"] == "Bearer secret"


async def test_endless_response_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LARGEST_ANSWER", 1000)
    with pytest.raises(Unreachable, match="more than 1,000 bytes"):
        await asked(Scripted((200, {}, b" " * 5000)), claiming)


async def test_silent_server_times_out() -> None:
    hung_up = asyncio.Event()

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])
        hung_up.set()

    server = await asyncio.start_server(says_nothing, "127.0.0.1", 0)
    remote = Remote(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "secret", timeout=0.2)
    with pytest.raises(Unreachable, match="ReadTimeout"):
        await asyncio.wait_for(remote.promote(), 60)
    await remote.close()
    await asyncio.wait_for(hung_up.wait(), 60)
    server.close()
    await server.wait_closed()


async def test_invalid_url_or_token_is_reported_at_start(api: Api) -> None:
    me = WorkerInfo(WorkerId(str(uuid4())), "w", "h", 1, "1")
    with pytest.raises(UsageError, match="http:// or https://"):
        Remote("localhost:8000")
    for remote in (Remote(api.url, "hf_wrong"), Remote(f"{api.url}/elsewhere", api.token)):
        with pytest.raises(UsageError, match="is http.* the API, and the token one for workers"):
            await remote.register(me, lease=timedelta(seconds=30))
        await remote.close()


async def test_token_can_be_read_again_for_every_request() -> None:
    tokens = iter(["one", "two"])
    app = Scripted((200, {}, b'{"promoted": 0}'))
    with serving(app) as url:
        remote = Remote(url, lambda: next(tokens))
        await remote.promote()
        await remote.promote()
        await remote.close()
    assert [headers["authorization"] for *_, headers in app.asked] == ["Bearer one", "Bearer two"]
