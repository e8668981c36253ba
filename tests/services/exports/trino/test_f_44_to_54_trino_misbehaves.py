"""An engine that is slow, overloaded, restarted, confused or hostile (F-44 to F-54)."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.engines.port import (
    EngineError,
    EngineLost,
    EngineTimeout,
    EngineUnavailable,
    Phase,
    ProtocolBroken,
    QueryRefused,
    RanTooLong,
    SubmitUnknown,
    UntrustedUri,
)
from holdfast.engines.trino.engine import TrinoEngine
from trino_queries import asking
from trino_server import Request, Result, TrinoServer, json_reply, reply, sig

COUNT = Result([("rows", sig("bigint"))], [[1]], update_count=1)
PEOPLE = Result([("id", sig("bigint"))], [[n] for n in range(30)])
POST, NEXT = "POST /v1/statement", "GET /v1/statement/"


async def ids(engine: TrinoEngine, **more: Any) -> list[int]:
    async with engine.stream(asking(**more)) as rows:
        return [value async for batch in rows.batches() for value in batch.column(0).to_pylist()]


async def test_f_44_a_query_that_waits_is_looked_at_and_holds_nothing(server: TrinoServer, engine: TrinoEngine):
    """W-25, W-14: each look is one request, and as many queries as anybody likes wait beside each other."""
    server.backend, server.hold = (lambda _: COUNT), True
    handles = [await engine.submit(asking(tag=f"t{n}")) for n in range(50)]
    for _ in range(3):
        asked = len(server.requests)
        polls = await asyncio.gather(*(engine.poll(handle, asking()) for handle in handles))
        assert {poll.phase for poll in polls} == {Phase.RUNNING}
        assert len(server.requests) == asked + 50
        handles = [poll.handle for poll in polls]


async def test_f_44_a_slow_reader_keeps_its_query(
    server: TrinoServer, engines: Callable[..., TrinoEngine], monkeypatch: pytest.MonkeyPatch
):
    """While the rows wait for their reader, Trino hears that they are still wanted."""
    monkeypatch.setattr("holdfast.engines.trino.rows.HEARTBEAT_SECONDS", 0.01)
    server.backend, server.page_rows = (lambda _: PEOPLE), 1
    async with engines(server.url, memory_bytes=10).stream(asking()) as rows:
        async for _ in rows.batches():
            while not server.sent("HEAD /v1/statement/"):
                await asyncio.sleep(0.01)
            break


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_f_45_a_poll_that_fails_is_repeated_at_the_same_address(server: TrinoServer, engine: TrinoEngine, status: int):
    server.backend = lambda _: PEOPLE
    server.misbehave(NEXT, reply(status), times=2)
    assert await ids(engine) == list(range(30))
    first, second, third = server.sent(NEXT)[:3]
    assert first.path == second.path == third.path
    assert len(server.sent(POST)) == 1


async def test_f_45_an_engine_that_stays_away_is_unavailable_and_not_lost(
    server: TrinoServer, engines: Callable[..., TrinoEngine]
):
    server.backend = lambda _: PEOPLE
    engine = engines(server.url, poll_retry_seconds=0.3)
    handle = await engine.submit(asking())
    server.misbehave(NEXT, reply(503), times=1000)
    with pytest.raises(EngineUnavailable) as raised:
        await engine.poll(handle, asking())
    assert raised.value.transient
    server.faults.clear()
    assert (await engine.poll(handle, asking())).phase is Phase.RUNNING  # the handle is as good as before


async def test_f_45_a_connection_that_breaks_under_a_poll_is_made_anew(server: TrinoServer, engine: TrinoEngine):
    server.backend = lambda _: PEOPLE
    server.misbehave(NEXT, None, times=2)
    assert await ids(engine) == list(range(30))


@pytest.mark.parametrize("answer", [reply(502), reply(503), reply(504), reply(500), None, b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_f_46_a_submit_whose_fate_is_unknown_is_never_sent_again_blindly(
    server: TrinoServer, engines: Callable[..., TrinoEngine], answer: bytes | None
):
    server.misbehave(POST, answer)
    seconds = 1 if answer and answer.startswith(b"HTTP/1.1 200") else 60  # nothing comes after half an answer
    with pytest.raises(SubmitUnknown):
        await engines(server.url, read_seconds=seconds).submit(asking())
    async with asyncio.timeout(60):
        while not server.sent(POST):
            await asyncio.sleep(0.01)
    assert len(server.sent(POST)) == 1


async def test_f_46_a_submit_without_an_answer_in_time_is_unknown(server: TrinoServer, engines: Callable[..., TrinoEngine]):
    arrived = asyncio.Event()

    async def never(_: Request) -> bytes:
        arrived.set()
        await asyncio.Event().wait()
        raise AssertionError

    server.misbehave(POST, never)
    with pytest.raises(SubmitUnknown):
        await engines(server.url, read_seconds=0.2).submit(asking())
    async with asyncio.timeout(60):
        await arrived.wait()
    assert len(server.sent(POST)) == 1


async def test_f_46_what_was_never_sent_is_no_riddle(engines: Callable[..., TrinoEngine], server: TrinoServer):
    """Nobody listens: nothing can have arrived."""
    async with TrinoServer() as other:
        url = other.url
    with pytest.raises(EngineUnavailable) as raised:
        await engines(url).submit(asking())
    assert not isinstance(raised.value, EngineTimeout)


async def test_f_46_a_lost_query_is_found_by_its_tag_and_stopped_before_the_next_is_sent(
    server: TrinoServer, engine: TrinoEngine
):
    """E-07: an answer that was lost on the way, from an engine that began at once."""
    server.backend = lambda _: PEOPLE

    async def lose(request: Request) -> None:
        await server.behave(request)
        (query,) = server.queries.values()
        server._begin(query)

    server.misbehave(POST, lose)
    assert await ids(engine) == list(range(30))
    lost, find, again = server.queries.values()
    assert lost.error is not None
    assert lost.error["errorName"] == "USER_CANCELED"
    assert "system.runtime.queries" in find.request.sql
    order = [f"{one.method} {one.path.partition('?')[0]}" for one in server.requests]
    assert order.index(f"DELETE /v1/query/{lost.id}") < [n for n, one in enumerate(order) if one == POST][2]
    assert again.request.sql == lost.request.sql


@pytest.mark.parametrize("said", ["1", "Wed, 21 Oct 2026 07:28:01 GMT", "soon", "-3"])
async def test_f_47_an_overloaded_engine_is_waited_for(
    server: TrinoServer, engine: TrinoEngine, said: str, monkeypatch: pytest.MonkeyPatch
):
    waited: list[float] = []
    real = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: waited.append(seconds) or real(0))
    server.backend = lambda _: PEOPLE
    server.misbehave(NEXT, reply(429, Retry_After=said, Date="Wed, 21 Oct 2026 07:28:00 GMT"))
    assert await ids(engine) == list(range(30))
    assert 1.0 in waited if said[0] in "1W" else all(0.05 <= pause <= 0.1 for pause in waited if pause < 1)


@pytest.mark.parametrize("said", ["86400", "1e9", "Wed, 21 Oct 2099 07:28:00 GMT"])
async def test_f_47_one_look_does_not_wait_a_minute_but_says_for_how_long(server: TrinoServer, engine: TrinoEngine, said: str):
    server.backend = lambda _: PEOPLE
    handle = await engine.submit(asking())
    server.misbehave(NEXT, reply(429, Retry_After=said, Date="Wed, 21 Oct 2026 07:28:00 GMT"))
    with pytest.raises(EngineUnavailable) as raised:
        await engine.poll(handle, asking())
    assert raised.value.detail["retry_after"] == 60.0


async def test_f_47_a_submit_that_was_turned_away_may_be_sent_again(server: TrinoServer, engine: TrinoEngine):
    server.backend = lambda _: PEOPLE
    server.misbehave(POST, reply(429, Retry_After="0"))
    assert await ids(engine) == list(range(30))
    server.misbehave(POST, reply(429, Retry_After="0"))
    with pytest.raises(EngineUnavailable, match="429"):
        await engine.submit(asking())


@pytest.mark.parametrize("status", [500, 404, 410])
async def test_f_48_a_query_whose_next_address_is_not_known_has_failed(server: TrinoServer, engine: TrinoEngine, status: int):
    server.backend = lambda _: PEOPLE
    server.misbehave(NEXT, reply(status), times=100)
    with pytest.raises(EngineLost) as raised:
        await ids(engine)
    assert raised.value.transient
    handle = await engine.submit(asking())
    assert (await engine.poll(handle, asking())).phase is Phase.GONE  # asked by its id: never begun


GARBAGE = {
    "garbage": reply(200, b"{]"),
    "truncated": b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\nConnection: close\r\n\r\n{"id": "x"',
    "html": reply(200, b"<html>please log in</html>", Content_Type="text/html"),
    "empty": reply(200, b""),
    "null": reply(200, b"null"),
    "a list": reply(200, b"[1, 2]"),
    "NaN": reply(200, b'{"id": "x", "stats": {"progressPercentage": NaN}}'),
    "no id": reply(200, b'{"stats": {}}'),
    "a bad id": reply(200, b'{"id": "../../x", "stats": {}}'),
    "another id": json_reply({"id": "20200101_000000_00000_other", "stats": {"state": "RUNNING"}}),
    "deep": reply(200, b'{"id":"x","columns":' + b"[" * 100_000),
    "not utf-8": reply(200, b'{"id": "\xff\xfe"}'),
    "no gzip": reply(200, b"plain", Content_Encoding="gzip"),
    "half a gzip": reply(200, gzip.compress(b"x" * 1000)[:20], Content_Encoding="gzip"),
    "brotli": reply(200, b"x", Content_Encoding="br"),
}


@pytest.mark.parametrize("kind", GARBAGE)
async def test_f_49_an_answer_that_is_none_is_asked_for_again_and_then_a_protocol_error(
    server: TrinoServer, engines: Callable[..., TrinoEngine], kind: str
):
    server.backend = lambda _: PEOPLE
    server.misbehave(NEXT, GARBAGE[kind], times=2)
    assert await ids(engines(server.url)) == list(range(30))  # twice is a mishap
    engine = engines(server.url, stream_retry_seconds=0.5, poll_retry_seconds=0.5)
    server.misbehave(NEXT, GARBAGE[kind], times=1000)
    with pytest.raises(EngineError) as raised:
        await ids(engine)
    assert raised.value.code == ("engine_unavailable" if kind == "truncated" else "engine_protocol_error")
    handle = await engine.submit(asking())
    with pytest.raises(EngineError):
        await engine.poll(handle, asking())


@pytest.mark.more
@pytest.mark.parametrize("kind", ["plain", "gzip"])
async def test_f_49_a_body_without_end_is_not_read_to_its_end(
    server: TrinoServer, engines: Callable[..., TrinoEngine], kind: str
):
    """A gzip bomb of 200 MB takes no more memory than the bound."""
    server.backend = lambda _: PEOPLE
    engine = engines(server.url, max_body_bytes=1 << 20)
    huge = b'{"id": "' + b"x" * (200 << 20 if kind == "gzip" else 8 << 20) + b'"}'
    bomb = reply(200, gzip.compress(huge, 1), Content_Encoding="gzip") if kind == "gzip" else reply(200, huge)
    del huge
    server.misbehave(NEXT, bomb, times=100)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolBroken, match="more than 1,048,576 bytes"):
            await ids(engine)
        assert tracemalloc.get_traced_memory()[1] < 60 << 20
    finally:
        tracemalloc.stop()


async def test_f_49_rows_that_do_not_fit_their_columns_are_a_protocol_error(server: TrinoServer, engine: TrinoEngine):
    for rows in ([["a"]], [[1, 2]], [[]], [[1.5]], [[{"a": 1}]], [[[1]]], [[2**63]], [[True]]):
        server.backend = lambda _, rows=rows: Result([("id", sig("bigint"))], rows)
        with pytest.raises(ProtocolBroken):
            await ids(engine)
    for bad in (
        {"rawType": 7},
        {"rawType": "array", "arguments": []},
        {"rawType": "decimal", "arguments": [{"value": "x"}] * 2},
    ):
        page = {"id": "x", "columns": [{"name": "a", "type": "b", "typeSignature": bad}], "stats": {}}
        server.misbehave(POST, json_reply(page))
        with pytest.raises(ProtocolBroken):
            await ids(engine)


async def test_f_49_a_segment_is_only_what_it_says(server: TrinoServer, engines: Callable[..., TrinoEngine]):
    server.backend, server.spooling = (lambda _: PEOPLE), ("json+zstd",)
    engine = engines(server.url, stream_retry_seconds=0.3, max_body_bytes=1 << 20)

    async def tampered(change: Callable[[dict[str, Any]], None]) -> type[EngineError]:
        async def change_it(request: Request) -> bytes:
            _, _, body = (await server.behave(request)).partition(b"\r\n\r\n")
            page = json.loads(body)
            if "data" in page:
                change(page["data"])
            return json_reply(page)

        server.misbehave(NEXT, change_it, times=100)
        with pytest.raises(EngineError) as raised:
            await ids(engine)
        server.faults.clear()
        return type(raised.value)

    def last(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
        return lambda data: data["segments"][-1]["metadata"].update({name: value})

    assert await tampered(last("rowsCount", 3)) is ProtocolBroken
    assert await tampered(last("uncompressedSize", 5)) is ProtocolBroken
    assert await tampered(last("uncompressedSize", 1 << 40)) is ProtocolBroken
    assert await tampered(last("segmentSize", 3)) is ProtocolBroken
    assert await tampered(last("segmentSize", -3)) is ProtocolBroken
    assert await tampered(lambda data: data.update(encoding="json+xz")) is ProtocolBroken
    assert await tampered(lambda data: data["segments"][0].update(data="&&&")) is ProtocolBroken
    assert await tampered(lambda data: data["segments"][-1].update(type="elsewhere")) is ProtocolBroken
    server.misbehave("GET /v1/spooled/download", reply(404), times=100)
    with pytest.raises(EngineLost):
        await ids(engine)


async def test_f_50_a_lost_answer_is_asked_for_again_with_the_handle_before_it(server: TrinoServer, engine: TrinoEngine):
    server.backend = lambda _: COUNT
    handle = await engine.submit(asking())
    second = (await engine.poll(handle, asking())).handle
    await engine.poll(second, asking())  # this answer was never written down
    third = await engine.poll(second, asking())
    assert third.phase is Phase.RUNNING or third.phase is Phase.FINISHED
    behind = await engine.poll(handle, asking())  # two steps behind: the address is gone, the query is not
    assert behind.phase in (Phase.RUNNING, Phase.FINISHED)


ELSEWHERE = [
    "http://127.0.0.1:{other}/v1/statement/executing/q/s/1",
    "https://127.0.0.1:{port}/v1/statement/executing/q/s/1",
    "http://localhost:{port}/v1/statement/executing/q/s/1",
    "http://127.0.0.1:{port}@127.0.0.1:{other}/v1/statement/x",
    "http://user:pass@127.0.0.1:{port}/v1/statement/x",
    "http://127.0.0.1:{port}/v1/statement/../../steal",
]


@pytest.mark.parametrize("elsewhere", ELSEWHERE)
async def test_f_51_an_address_elsewhere_gets_no_request(server: TrinoServer, engine: TrinoEngine, elsewhere: str):
    async with TrinoServer() as thief:
        uri = elsewhere.format(port=server.port, other=thief.port)
        page = json_reply({"id": "q1", "nextUri": uri, "stats": {"state": "QUEUED"}})
        server.misbehave(POST, page, times=2)
        with pytest.raises(UntrustedUri):
            await engine.submit(asking())
        with pytest.raises(UntrustedUri):
            await ids(engine)
        with pytest.raises(UntrustedUri):
            await engine.poll({"query_id": "q1", "next_uri": uri}, asking())
        with pytest.raises(UntrustedUri):
            await engine.cancel({"query_id": "q1", "next_uri": uri}, asking())
        assert thief.requests == []
        assert len(server.requests) == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_f_51_no_redirect_is_followed(server: TrinoServer, engine: TrinoEngine, status: int):
    server.backend = lambda _: PEOPLE
    async with TrinoServer() as thief:
        server.misbehave(POST, reply(status, Location=f"{thief.url}/v1/statement"))
        with pytest.raises(UntrustedUri):
            await engine.submit(asking())
        handle = await engine.submit(asking())
        server.misbehave(NEXT, reply(status, Location=f"{thief.url}/v1/statement/x"), times=10)
        with pytest.raises(UntrustedUri):
            await engine.poll(handle, asking())
        assert thief.requests == []


async def test_f_51_a_segment_elsewhere_needs_a_store_that_was_named_and_gets_no_credentials(
    server: TrinoServer, engines: Callable[..., TrinoEngine]
):
    server.backend, server.spooling = (lambda _: PEOPLE), ("json",)
    async with TrinoServer() as store:
        server.segment_base, store.segments = store.url, server.segments
        with pytest.raises(UntrustedUri, match="HOLDFAST_TRINO_SEGMENT_ORIGINS"):
            await ids(engines(server.url))
        assert store.requests == []
        assert await ids(engines(server.url, segment_origins=(store.url,))) == list(range(30))
        for request in store.requests:
            assert "authorization" not in request.headers
            assert not any(name.startswith("x-trino") for name in request.headers)
            assert request.headers["x-store-key"] == "s3cr3t"


async def test_f_52_a_query_that_never_moves_is_ended_by_its_time_and_cancelled(server: TrinoServer, engine: TrinoEngine):
    server.backend = lambda _: PEOPLE

    def same_again(request: Request) -> bytes:
        id_ = request.path.split("/")[4]
        return json_reply({"id": id_, "nextUri": f"{server.url}{request.path}", "stats": {"state": "RUNNING"}})

    server.misbehave(NEXT, same_again, times=10**9)
    with pytest.raises(RanTooLong):
        await ids(engine, max_seconds=0.5)
    assert len(server.sent(NEXT)) < 50  # and it was not asked in a frenzy
    (query,) = server.queries.values()
    assert query.error is not None
    assert query.error["errorName"] == "USER_CANCELED"


async def test_f_53_a_query_that_ends_while_it_is_cancelled_has_one_end(server: TrinoServer, engine: TrinoEngine):
    server.backend, server.hold = (lambda _: COUNT), True
    handle = (await engine.poll(await engine.submit(asking()), asking())).handle
    (query,) = server.queries.values()

    async def finish_first(request: Request) -> bytes:
        query.may_end.set()
        query.state = "FINISHED"
        return await server.behave(request)

    server.misbehave("DELETE", finish_first)
    await engine.cancel(handle, asking())
    assert (await engine.poll({"query_id": query.id, "next_uri": None}, asking())).phase is Phase.FINISHED

    again = (await engine.poll(await engine.submit(asking()), asking())).handle
    await asyncio.gather(engine.cancel(again, asking()), engine.cancel(again, asking()))
    look = await engine.poll(again, asking())
    assert (look.phase, look.error.detail["engine_error"]) == (Phase.FAILED, "USER_CANCELED")


async def test_f_54_after_a_restart_every_query_is_lost_within_one_look(server: TrinoServer, engine: TrinoEngine):
    server.backend, server.hold = (lambda _: COUNT), True
    handles = [(await engine.poll(await engine.submit(asking()), asking())).handle for _ in range(5)]
    server.restart()
    polls = await asyncio.gather(*(engine.poll(handle, asking()) for handle in handles))
    assert {poll.phase for poll in polls} == {Phase.GONE}
    assert all(isinstance(poll.error, EngineLost) and poll.error.transient for poll in polls)
    assert await engine.find(asking().tag, asking()) is None


@pytest.mark.parametrize("status", [400, 401, 403, 405, 418])
async def test_a_refusal_without_a_query_is_final_and_shows_no_secret(server: TrinoServer, engine: TrinoEngine, status: int):
    """W-22: not even when a proxy echoes what it was sent."""
    server.misbehave(POST, lambda request: reply(status, f"no: {request.headers['authorization']} hunter2".encode()))
    with pytest.raises(QueryRefused) as raised:
        await engine.submit(asking())
    assert "hunter2" not in str(raised.value)
    assert "Basic" not in str(raised.value)


async def test_a_role_that_is_not_given_is_refused_and_no_riddle(server: TrinoServer, engine: TrinoEngine):
    """Trino answers 500 to it, before there is a query."""
    denied = b"io.trino.spi.security.AccessDeniedException: Access Denied: Cannot set role x\n\tat io.trino.Foo"
    server.misbehave(POST, reply(500, denied))
    with pytest.raises(QueryRefused, match="Cannot set role x$"):
        await engine.submit(asking())
