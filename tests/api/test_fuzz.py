"""Whatever the document allows, and much that it does not, for every role: no fault of ours, no status that is not in it.

`make test-more` sends new examples every time, valid and invalid, each by every role; `HOLDFAST_FUZZ_EXAMPLES` says how many
of each. An example costs more to make than to send, so one example is sent by several roles. Without HOLDFAST_TEST_EVERYTHING
each operation gets the same few examples, without streams and waits.

    HOLDFAST_TEST_EVERYTHING=1 python -m pytest tests/api/test_fuzz.py
    python -m pytest -m more tests/api/test_fuzz.py
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import requests
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api_factories import GENEROUS
from holdfast import catalog
from holdfast.api.app import make_app
from holdfast.api.auth import create_token
from holdfast.api.policy import Role
from holdfast.apps.loops import ScheduledLoops
from holdfast.database.pool import pool
from holdfast.jobs.enqueue import enqueue_sync
from holdfast.jobs.model import NewJob
from holdfast.settings import settings as our_settings

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
ROLES = (None, *(role for role in Role if role is not Role.ADMIN), Role.ADMIN)  # the one that may change most comes last
VALID: dict[Role | None, int] = {}  # examples of each operation; one for the roles that are not named
INVALID: dict[Role | None, int] = {Role.ADMIN: 1}
DEEP = os.environ.get("HOLDFAST_TEST_EVERYTHING") == "1"
MANY = int(os.environ.get("HOLDFAST_FUZZ_EXAMPLES", "40"))  # of each operation, role and sort in the deep run
Headers = dict[Role | None, dict[str, str]]
LONG = ("/wait",)  # it waits where it is asked to
PATIENCE = 120  # seconds for an answer: the machine may be busy with other things


class Running:
    """The app behind a real server, in a thread of its own."""

    def __init__(self, database: str) -> None:
        services = catalog.resources(our_settings())
        self.app = make_app(pool(database, most=6), GENEROUS, loops=ScheduledLoops(), nouns=catalog.nouns(), services=services)
        self.server = uvicorn.Server(uvicorn.Config(self.app, port=0, log_config=None, access_log=False))
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve()), daemon=True)

    def start(self) -> str:
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            self.thread.join(0.02)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(60)


@pytest.fixture
def running(database: str, document: Any) -> Iterator[tuple[str, Any]]:
    with psycopg.connect(database) as conn:
        for number in range(5):  # the ids that are tried first
            enqueue_sync(conn, NewJob("k", {"number": number}))
    made = Running(database)
    url = made.start()
    made.app.state.hub.close_streams()
    yield url, document
    made.stop()


@pytest.mark.more
def test_no_generated_request_returns_a_server_error(running: tuple[str, Any], database: str) -> None:
    """API3, API8 of OWASP's list: valid and invalid data for every operation of the document, by every role."""
    url, document = running
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=url)
    headers = asyncio.run(_headers(database))
    tried = 0

    with requests.Session() as session:
        for result in schema.get_all_operations():
            operation = result.ok()
            streams = "text/event-stream" in str(operation.definition.raw.get("responses", {}))
            if not DEEP and (streams or operation.path.endswith(LONG)):
                continue
            tried += 1
            valid, invalid = Senders(headers, VALID, 1, session), Senders(headers, INVALID, 0, session)
            _try(operation.as_strategy(), valid)
            with contextlib.suppress(Unsatisfiable):  # where nothing is asked for, nothing can be wrong
                _try(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE), invalid)
    assert tried > 50


class Senders:
    """The roles that send the examples of one operation."""

    def __init__(self, headers: Headers, most: dict[Role | None, int], others: int, session: requests.Session) -> None:
        """`most`: how many examples each role sends; `others`: the same for a role that is not named."""
        self._headers, self._session = headers, session
        self._left = {role: MANY if DEEP else most.get(role, others) for role in ROLES}
        self.examples = max(self._left.values())

    def send(self, case: Any) -> None:
        for role in ROLES:
            if self._left[role] > 0 or DEEP:
                self._left[role] -= 1
                try:
                    self._send_as(role, case)
                except BaseException as error:
                    error.add_note(f"the request was sent as {role or 'nobody'}")
                    raise

    def _send_as(self, role: Role | None, case: Any) -> None:
        answer = case.call(headers=self._headers[role], timeout=PATIENCE, session=self._session)
        if answer.status_code == 503 and answer.json()["code"] in ("DRAINING", "TOO_MANY_STREAMS"):
            return  # an earlier example may have drained it; streams are closed, else one that is let in would not end
        case.validate_response(answer, checks=CHECKS)


def _try(cases: Any, senders: Senders) -> None:
    @given(case=cases)
    @settings(
        max_examples=senders.examples,
        deadline=None,
        database=None,
        derandomize=not DEEP,
        print_blob=DEEP,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def one(case: Any) -> None:
        if case.path.endswith(LONG):
            case.body = _shorter(case.body)
        senders.send(case)

    one()


def _shorter(body: Any) -> Any:
    """The same, but for a wait that would be long: nothing is to be learned from it."""
    seconds = body.get("seconds") if isinstance(body, dict) else None
    is_long = isinstance(seconds, int | float) and 0.01 < seconds <= 30
    return {**body, "seconds": 0.01} if is_long else body


async def _headers(database: str) -> Headers:
    """The headers that each role sends; those of nobody are empty."""
    conn = await psycopg.AsyncConnection.connect(database, autocommit=True)
    try:
        tokens = {role: (await create_token(conn, role, role, by="test"))[1] for role in Role}
    finally:
        await conn.close()
    return {None: {}, **{role: {"Authorization": f"Bearer {token}"} for role, token in tokens.items()}}
