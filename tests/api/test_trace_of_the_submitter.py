"""The span of a job is linked to the span of the HTTP request that enqueued it (W3C `traceparent`)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from factories import value
from holdfast import Worker
from holdfast.telemetry import trace
from holdfast.worker.kinds import Job, Policy

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def nothing() -> None: ...


async def test_job_span_is_linked_to_the_callers_span(analyst: Any, database: str) -> None:
    made = await analyst.post("/api/jobs", json={"kind": "traced"}, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
    assert made.status_code == 202
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.enable(provider)
    try:
        await asyncio.wait_for(Worker(database, [Job("traced", nothing, Policy())]).run(until_empty=True), 90)
    finally:
        trace.disable()

    (span,) = exporter.get_finished_spans()
    (link,) = span.links
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (TRACE, SPAN)


@pytest.mark.parametrize(
    "wrong", ["", "00-x-y-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01\tx", f"00-{TRACE.upper()}-{SPAN}-01"]
)
async def test_invalid_trace_header_is_ignored(analyst: Any, conn: Any, wrong: str) -> None:
    await analyst.post("/api/jobs", json={"kind": "traced"}, headers={"traceparent": wrong})

    assert "traceparent" not in str(await value(conn, "SELECT trace FROM holdfast.jobs"))
