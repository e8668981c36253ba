"""The topic `ingestion:<job id>`: one ingestion job as it is now, until it has finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from holdfast.api.envelope import etag_of, jsonable
from holdfast.api.sse import Event
from holdfast.services.ingestion.views import runs
from holdfast.services.ingestion.views.runs import Run


async def read(conn: psycopg.AsyncConnection[Any], keys: Sequence[str]) -> dict[str, list[Event]]:
    """The events of each job."""
    found = await runs.several(conn, [int(key) for key in keys])
    return {str(job_id): events_of(run) for job_id, run in found.items()}


def events_of(run: Run) -> list[Event]:
    """A job as an event that a client can tell from the one it has, and its end. Pure."""
    plain = jsonable(run)
    told = [Event("ingestion", plain, id=etag_of(plain).strip('"'))]
    if run.state == "FINISHED":
        told.append(Event("stream_closed", {"job_id": run.job_id, "state": run.state, "result": run.result}, last=True))
    return told
