"""The signals for a separate worker, as the how-to shows them: each is measured, in an application that runs the jobs."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
from fastapi import FastAPI
from ingestion_factories import FLIGHTS, Back, Client
from prometheus_client import generate_latest

import holdfast
from holdfast.services.ingestion import offers
from holdfast.services.ingestion.views import runs
from holdfast.telemetry.metrics import REGISTRY
from holdfast.worker.kinds import Job

HOWTO = Path(__file__).resolve().parents[3] / "docs/howto/ingest-files.md"
NAME = re.compile(r"\b(?:ingestion|holdfast)_[a-z_]+(?=[\[{)])")


def samples(text: str) -> dict[str, float]:
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[:1] not in ("", "#")}


def queries() -> dict[str, str]:
    """The queries of the how-to by their first metric."""
    lines = [line for line in HOWTO.read_text().splitlines() if line.startswith("| ") and "`" in line and "_" in line]
    found = [line.replace(r"\|", "/").split("|")[2].strip(" `") for line in lines]  # an escaped bar ends no cell
    return {NAME.findall(query)[0]: query for query in found}


def test_every_signal_of_the_decision_rule_has_its_threshold() -> None:
    """V-15: a p95 of 1.5 times that of an hour ago, 100 jobs a minute, 4 GB, a second between the steps of a chain."""
    found = queries()
    web = found.pop("ingestion_web_request_duration_seconds_bucket")

    assert {metric: query[query.rindex(">") :] for metric, query in found.items()} == {
        "holdfast_attempts_total": "> 100",
        "ingestion_peak_memory_bytes": "> 4e9",
        "holdfast_attempt_wait_seconds_bucket": "> 1",
    }
    assert found["holdfast_attempts_total"].startswith("60 * sum(rate("), "a minute"
    now, _, before = web.partition(" > 1.5 * ")
    assert now.startswith("histogram_quantile(0.95, ")
    assert before.partition(" and on () ")[0] == now.replace("[5m]", "[5m] offset 1h")
    assert web.endswith(' and on () sum(ingestion_jobs{result="RUNNING"}) > 0'), "during an ingestion"


async def test_every_signal_of_the_decision_rule_is_measured(back: Back, conn: Any, database: str, ops: Client) -> None:
    """B-02, V-15: latency of the routes during an ingestion, jobs, memory of a job, latency of a chain; as in the how-to."""
    await back.provision()
    await back.factors()
    kinds = [Job(one.kind, one.function, replace(one.policy, run_in=None, nice=0)) for one in offers.KINDS]
    app = FastAPI(lifespan=holdfast.lifespan(database, kinds=kinds))
    app.add_middleware(offers.WebLatency)

    @app.get("/small/{number}")
    async def small(number: int) -> int:
        return 1 // number

    before = samples(generate_latest(REGISTRY).decode())
    made = await back.dispatch(FLIGHTS)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with app.router.lifespan_context(app), httpx2.AsyncClient(transport=transport, base_url="http://app") as browser:
        asked = 0
        async with asyncio.timeout(60):
            while len(done := await runs.listed(conn, limit=9, pipeline_id=made.pipeline_id, state="FINISHED")) < 3:
                assert (await browser.get(f"/small/{asked + 1}")).status_code == 200
                asked += 1
        assert (await browser.get("/small/0")).status_code == 500
        assert (await browser.get("/nothing/here")).status_code == 404

    here = samples(generate_latest(REGISTRY).decode())
    plane = samples((await ops.get("/metrics")).text)

    def rise(name: str) -> float:
        return here.get(name, 0.0) - before.get(name, 0.0)

    count = "ingestion_web_request_duration_seconds_count"
    assert rise(f'{count}{{route="/small/{{number}}",status="200"}}') == asked
    assert rise(f'{count}{{route="/small/{{number}}",status="500"}}') == 1
    assert rise(f'{count}{{route="none",status="404"}}') == 1, "paths do not become time series"
    for kind in ("csv_ingest", "emission_recalc", "aggregation"):
        assert rise(f'holdfast_attempts_total{{kind="ingestion.{kind}",outcome="complete"}}') == 1
        assert rise(f'holdfast_attempt_wait_seconds_count{{kind="ingestion.{kind}"}}') == 1
    assert plane["ingestion_peak_memory_bytes"] > 10_000_000
    assert {one.result for one in done} == {"SUCCESS"}
    measured = {name.partition("{")[0] for name in (*here, *plane)}
    shown = {name for query in queries().values() for name in NAME.findall(query)}
    assert {"ingestion_jobs", "ingestion_peak_memory_bytes", "holdfast_attempts_total"} <= shown
    assert shown <= measured
