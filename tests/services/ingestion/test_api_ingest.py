"""A paged HTTP API: a real server, a cursor that commits with the rows, origins and tokens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from ingestion_factories import YEAR, Back, Client, entries_of, run_elsewhere

from factories import rows
from holdfast.jobs.claim import claim_by_id
from holdfast.jobs.model import JobId
from holdfast.jobs.release import release_worker
from holdfast.services.ingestion import dispatch
from holdfast.services.ingestion.dispatch import EntriesAsked
from holdfast.services.ingestion.jobs import api_ingest
from holdfast.services.ingestion.loading.accept import ErrorPolicy
from holdfast.services.ingestion.models import store
from holdfast.services.ingestion.models.rules import model_of
from holdfast.services.ingestion.models.yaml_file import EXAMPLE, read_model
from holdfast.services.ingestion.views import runs
from holdfast.testing import crash_at

ASKED = EntriesAsked(model="co2", module="travel", det="flights", year=YEAR, mode="upsert")


class Source:
    """Pages of two rows, and who asked for them."""

    def __init__(self) -> None:
        self.pages, self.status = 3, 200
        self.asked: list[tuple[str, str | None]] = []

    def answer(self, path: str, token: str | None) -> tuple[int, dict[str, Any]]:
        query = parse_qs(urlsplit(path).query)
        cursor = query.get("cursor", ["0"])[0]
        self.asked.append((cursor, token))
        number = int(cursor)
        if number >= self.pages:
            return self.status, {"data": [], "next_cursor": None}
        found = [
            {"trip_id": f"T{number}{n}", "unit_id": "U1", "date": f"{query['year'][0]}-01-01", "cabin": "first", "distance": n}
            for n in (1, 2)
        ]
        return self.status, {"data": found, "next_cursor": str(number + 1)}


@pytest.fixture
def source() -> Iterator[tuple[Source, str]]:
    made = Source()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = made.answer(self.path, self.headers.get("Authorization"))
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield made, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


async def with_api(back: Back, url: str, *, allowed: bool = True) -> None:
    """The CO2 model with an API for flights."""
    definition = read_model(EXAMPLE)
    definition["modules"][0]["data_entry_types"][0]["api"] = {"url": f"{url}/flights"}
    async with back.conn.transaction():
        await store.apply(back.conn, model_of(definition), by="test")
    await back.provision()
    replace(back.here, api_origins=(url,) if allowed else (), api_token="secret").share()


async def test_pages_are_loaded_once_and_the_cursor_is_kept(
    back: Back, conn: Any, source: tuple[Source, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_ingest, "PAGES", 2)
    found, url = source
    await with_api(back, url)

    with crash_at("ingest.in_tx_loaded"):
        made = await dispatch.dispatch_api(conn, ASKED, ErrorPolicy(), by="t")
        await back.harness.drain()
        await conn.execute("UPDATE holdfast.jobs SET run_after = NULL WHERE state = 'pending'")
        await back.harness.drain()

    assert [key for key, *_ in await entries_of(conn)] == ["T01", "T02", "T11", "T12", "T21", "T22"]
    jobs = await back.pipeline(await runs.get(conn, made.job_id))
    assert [one.job_type for one in jobs] == ["api_ingest", "api_ingest", "emission_recalc", "aggregation"]
    assert await rows(conn, "SELECT cursor, pages FROM holdfast.ingestion_cursors") == [("3", 4)]
    assert {token for _, token in found.asked} == {"Bearer secret"}
    before = len(found.asked)
    found.pages = 4
    await dispatch.dispatch_api(conn, ASKED, ErrorPolicy(), by="t")
    await back.harness.drain()
    assert [cursor for cursor, _ in found.asked[before:]] == ["3", "4"], "it goes on where the last one ended"
    assert len(await entries_of(conn)) == 8


async def test_a_job_for_an_api_belongs_to_who_asked_over_http(back: Back, analyst: Client, conn: Any) -> None:
    await with_api(back, "http://127.0.0.1:9")
    asked = {"module": "travel", "det": "flights", "year": YEAR, "api": True}

    made = (await analyst.post("/api/ingestion/dispatch", json=asked)).json()["data"]

    assert await rows(conn, "SELECT owner FROM holdfast.jobs WHERE id = %s", made["job_id"]) == [("token:analyst",)]


async def test_only_listed_origins_are_called(back: Back, conn: Any, source: tuple[Source, str]) -> None:
    found, url = source
    await with_api(back, url, allowed=False)

    made = await dispatch.dispatch_api(conn, ASKED, ErrorPolicy(), by="t")
    await back.harness.drain()

    run = await runs.get(conn, made.job_id)
    assert run.result == "ERROR"
    assert "is not in HOLDFAST_INGESTION_API_ORIGINS (empty); add it there" in str(run.status_message)
    assert found.asked == []


async def test_a_lost_claim_asks_the_source_nothing(back: Back, conn: Any, database: str, source: tuple[Source, str]) -> None:
    """N-03: the claim comes before the first request. The pod that has the job asks for every page once."""
    found, url = source
    await with_api(back, url)
    made = await dispatch.dispatch_api(conn, ASKED, ErrorPolicy(), by="t")
    claimed = await claim_by_id(conn, back.harness.worker_id, JobId(made.job_id))
    assert claimed is not None

    assert not await run_elsewhere(conn, database, claimed.id)

    assert found.asked == []
    assert await entries_of(conn) == []
    await release_worker(conn, back.harness.worker_id)
    await back.harness.drain()
    assert [cursor for cursor, _ in found.asked] == ["0", "1", "2", "3"]


async def test_a_job_for_a_type_without_an_api_fails_at_once(back: Back, conn: Any) -> None:
    """It was enqueued by a program, or for a version of the data model that has none."""
    await back.provision()
    asked = api_ingest.api_ingest.new(model="co2", module="travel", det="flights", year=YEAR)

    made = await dispatch.start(conn, asked, by="t")
    await back.harness.drain()

    run = await runs.get(conn, made.job_id)
    assert (run.state, run.result) == ("FINISHED", "ERROR")
    assert "travel/flights has no `api` in the data model" in str(run.status_message)


@pytest.mark.parametrize(("status", "state"), [(503, "NOT_STARTED"), (403, "FINISHED"), (302, "FINISHED")])
async def test_errors_that_may_pass_are_retried(
    back: Back, conn: Any, source: tuple[Source, str], status: int, state: str
) -> None:
    found, url = source
    await with_api(back, url)
    found.status = status

    made = await dispatch.dispatch_api(conn, ASKED, ErrorPolicy(), by="t")
    await back.harness.drain()

    run = await runs.get(conn, made.job_id)
    assert (run.state, f"answers with status {status}" in str(run.status_message)) == (state, True)
    assert len(found.asked) == 1
