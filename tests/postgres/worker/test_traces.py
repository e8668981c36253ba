"""A job's span is linked to its submitter's, and the request of the submitter is on every line that its jobs write."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import structlog
from opentelemetry import trace as api
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from factories import column
from holdfast import Done, Worker, WorkerOptions
from holdfast.errors import UsageError
from holdfast.jobs.enqueue import enqueue, enqueue_many
from holdfast.jobs.model import NewJob
from holdfast.telemetry import fields, redact, trace
from holdfast.worker.kinds import Job, Policy

Conn = psycopg.AsyncConnection[Any]


@pytest.fixture
def exported() -> Iterator[InMemorySpanExporter]:
    """Every span that has ended, of ours and of the tests."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.enable(provider)
    exporter.tracer = provider.get_tracer("a web application")  # type: ignore[attr-defined]
    yield exporter
    trace.disable()


def kind(name: str, function: Any, **policy: Any) -> Job[..., Any]:
    return Job(name, function, Policy(**policy))


async def run(database: str, *kinds: Job[..., Any]) -> None:
    await asyncio.wait_for(Worker(database, kinds, WorkerOptions(concurrency=2)).run(until_empty=True), 60)


def spans(exported: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exported.get_finished_spans() if span.name == name]


async def test_attempt_span_is_linked_to_the_enqueueing_span(conn: Conn, database: str, exported: InMemorySpanExporter):
    seen: list[Any] = []

    async def good() -> None:
        seen.append(api.get_current_span().get_span_context())

    def plain() -> None:
        seen.append(api.get_current_span().get_span_context())

    with exported.tracer.start_as_current_span("request"):  # type: ignore[attr-defined]
        made = await enqueue(conn, NewJob("good"))
        await enqueue_many(conn, [NewJob("plain") for _ in range(60)])  # by COPY

    await run(database, kind("good", good), kind("plain", plain))

    (request,) = spans(exported, "request")
    (one,) = spans(exported, "job good")
    many = spans(exported, "job plain")
    assert len(many) == 60
    for span in (one, *many):
        assert [link.context.span_id for link in span.links] == [request.context.span_id]
        assert span.parent is None
        assert span.context.trace_id != request.context.trace_id
        assert span.attributes is not None
        assert span.attributes["holdfast.outcome"] == "complete"
    assert one.attributes is not None
    assert dict(one.attributes) | {"holdfast.job_id": made.id, "holdfast.attempt": 1, "holdfast.kind": "good"} == dict(
        one.attributes
    )
    assert {context.span_id for context in seen} == {span.context.span_id for span in (one, *many)}


async def test_f_75_failure_is_an_error_span_without_secrets(
    conn: Conn, database: str, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(redact, "_hidden", {})
    redact.hide("the-canary")

    async def bad() -> None:
        raise RuntimeError("the-canary is not accepted")

    await enqueue(conn, NewJob("bad", max_attempts=1))
    await run(database, kind("bad", bad))

    (span,) = spans(exported, "job bad")
    assert span.attributes is not None
    assert span.attributes["holdfast.outcome"] == "fail"
    assert span.status.status_code is api.StatusCode.ERROR
    assert "not accepted" in str(span.status.description)
    assert "the-canary" not in span.to_json()
    assert list(span.links) == []


@pytest.mark.parametrize("children", [1, 2])
async def test_child_is_linked_to_the_attempt_that_created_it(
    conn: Conn, database: str, exported: InMemorySpanExporter, children: int
):
    """One child is taken along in the same commit, two are not."""

    async def parent() -> Done:
        return Done(then=[NewJob("child", step=str(number)) for number in range(children)])

    async def child() -> None: ...

    await enqueue(conn, NewJob("parent"))
    await run(database, kind("parent", parent), kind("child", child))

    (first,) = spans(exported, "job parent")
    followed = spans(exported, "job child")
    assert len(followed) == children
    for span in followed:
        assert [link.context.span_id for link in span.links] == [first.context.span_id]


async def test_request_id_is_passed_to_jobs_and_children(conn: Conn, database: str):
    """V-04: request id if any."""
    found: dict[str, Any] = {}

    async def parent() -> Done:
        found["parent"] = fields.job_fields()["request_id"]
        return Done(then=[NewJob("child")])

    async def child() -> None:
        found["child"] = fields.job_fields()["request_id"]

    with structlog.contextvars.bound_contextvars(request_id="r-1"):
        await enqueue(conn, NewJob("parent"))
    await run(database, kind("parent", parent), kind("child", child))

    assert found == {"parent": "r-1", "child": "r-1"}


async def test_job_without_a_request_id_stores_none(conn: Conn):
    made = await enqueue(conn, NewJob("k"))

    assert await column(conn, made.id, "trace") is None


@pytest.mark.parametrize("request_id", ["x" * 10_000, "\x00\ud800\n", 7])
async def test_enqueue_accepts_any_request_id(conn: Conn, request_id: Any):
    with structlog.contextvars.bound_contextvars(request_id=request_id):
        made = await enqueue(conn, NewJob("k"))
        await enqueue_many(conn, [NewJob("k") for _ in range(60)])

    assert len(await column(conn, made.id, "trace") or "") < 4000


def test_without_the_packages_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)

    with pytest.raises(UsageError, match=r"pip install 'holdfast-jobs\[otel\]'"):
        trace.enable()


def test_unknown_exporter_error_lists_the_known_ones():
    with pytest.raises(UsageError, match="HOLDFAST_TRACES=nonsense: .* there are: .*console.*host"):
        trace.export_to("nonsense")


def test_disabled_tracing_creates_no_spans():
    assert trace.begin(None) is None  # type: ignore[arg-type]
    assert trace.carrier() is None
