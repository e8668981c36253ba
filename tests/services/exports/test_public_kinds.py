"""Every kind of a service is public or reserved, and requests may enqueue the public ones only."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from factories import publish_kinds, value
from holdfast.jobs.declare import Declaration
from holdfast.services.exports.kinds import KINDS
from holdfast.services.exports.service import SERVICE

Client = httpx2.AsyncClient
RESERVED = sorted(kind.kind for kind in KINDS if not kind.policy.public)


def test_the_api_and_the_handlers_agree_on_what_is_public():
    public = {kind.kind for kind in KINDS if kind.policy.public}

    assert public == {kind.name for kind in SERVICE.kinds if kind.public} == {"exports.run"}


def test_every_kind_begins_with_the_name_of_its_service():
    assert [kind.kind for kind in KINDS if not kind.kind.startswith("exports.")] == []


@pytest.mark.parametrize("kind", RESERVED)
async def test_a_worker_that_publishes_a_reserved_kind_as_public_does_not_open_it(
    admin: Client, database: str, conn: Any, kind: str
) -> None:
    publish_kinds(database, Declaration(kind, public=True))

    answer = await admin.post("/api/jobs", json={"kind": kind, "payload": {}})

    assert (answer.status_code, answer.json()["code"]) == (403, "RESERVED_KIND")
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 0
