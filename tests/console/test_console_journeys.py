"""The five journeys in a real browser, on a real control plane with real workers: each has a killed worker or a refused write.

Workers are processes that are really killed. Their leases are 30 s long; a test moves the row of a killed worker into the past
instead of waiting.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from tests.console.browsing import DESKTOP, PHONE, needs_chromium, tab
from tests.console.conftest import listening

import holdfast
import programs
from factories import add, end, everything, hold, rows, state_of, value
from holdfast.jobs.outcome import Fail
from holdfast.jobs.rerun import rerun
from holdfast.services.maintenance.settings import maintenance_settings
from holdfast.services.maintenance.setup import maintenance_from
from holdfast.settings import settings
from iceberg_tables import end_threads
from maintenance_factories import ORDERS, know, make_table
from programs import Started
from serving import serving
from workers import doomed, until, until_gone

TokenOf = Callable[[str], Awaitable[str]]
StartWorker = Callable[..., Started]
pytestmark = [pytest.mark.more, needs_chromium]

JOBS = """
import asyncio
import pathlib
import holdfast

@holdfast.job("exports.nightly", max_attempts=3)
async def nightly(ctx: holdfast.Context, table: str, may_end: str) -> dict:
    while not pathlib.Path(may_end).exists():
        await asyncio.sleep(0.02)
    return {"table": table, "attempt": ctx.job.attempt_no}

@holdfast.job("invoice.render", max_attempts=1)
async def render(invoice_id: int) -> dict:
    if invoice_id == 4711:
        raise ValueError("the template of invoice 4711 is missing")
    return {"url": f"/invoices/{invoice_id}.pdf"}
"""
THEIRS = ("--import", "their_jobs")
PERSON = {
    "label": "Person",
    "sql": "SELECT range AS id, 'person ' || range AS name FROM range(1, 21)",
    "primary_key": {"name": "id", "type": "INT64"},
    "properties": [{"name": "name", "type": "STRING"}],
}
KNOWS = {
    "type": "KNOWS",
    "from_node": "Person",
    "to_node": "Person",
    "sql": "SELECT range AS a, range % 20 + 1 AS b FROM range(1, 21)",
    "from_key": "a",
    "to_key": "b",
    "properties": [],
}


@pytest.fixture
def start_worker(database: str, tmp_path: Path) -> Iterator[StartWorker]:
    """Starts workers of the test's database; what is left of them is killed afterwards."""
    (tmp_path / "their_jobs.py").write_text(JOBS)
    started: list[Started] = []

    def start(*words: str, url: str = database, **environment: str) -> Started:
        own = {"PYTHONPATH": str(tmp_path), "HOLDFAST_BEAT_SECONDS": "0.3", "HOLDFAST_POLL_SECONDS": "0.3"}
        with (tmp_path / f"worker-{len(started)}.log").open("w") as log:
            env = os.environ | own | environment
            started.append(
                programs.start("worker", "run", "--dsn", url, *words, env=env, folder=tmp_path, out=log, err=log, session=True)
            )
        return started[-1]

    yield start
    for worker in started:
        worker.kill_group()
        worker.wait()
    for entry in Path("/proc").iterdir():  # graph servers outlive a control plane; those of a test that failed are ended here
        with suppress(OSError, ValueError):
            if str(tmp_path) in (entry / "cmdline").read_text():
                os.kill(int(entry.name), signal.SIGKILL)


async def runs(conn: Any, job_id: int, attempt: int = 1) -> None:
    """Until a worker runs this attempt."""

    async def is_running() -> bool:
        found = await rows(conn, "SELECT state, attempt_no FROM holdfast.jobs WHERE id = %s", job_id)
        return found == [("running", attempt)]

    await until(is_running)


async def kill(conn: Any, worker: Started, job_id: int) -> None:
    """Kill the worker of this job, which has the address `doomed`, with SIGKILL, and let its lease be over."""
    worker.kill_group()
    await until_gone(conn)
    await conn.execute(
        "UPDATE holdfast.workers SET lease_until = clock_timestamp() - interval '9 min', beat_at = clock_timestamp() - "
        "interval '14 min' WHERE id = (SELECT worker_id FROM holdfast.jobs WHERE id = %s)",
        [job_id],
    )


async def jobs_of(conn: Any) -> Any:
    """All jobs and their history; workers renew their rows all the time."""
    found = await everything(conn)
    return found["jobs"], found["history"]


async def test_3_1_the_first_five_minutes_show_a_killed_worker_and_its_replacement(
    database: str, tmp_path: Path, conn: Any, chromium: Any, start_worker: StartWorker
) -> None:
    """UX 3.1: the link that is printed signs in; kill -9 of a worker; another one finishes the job, and the page follows."""
    may_end = tmp_path / "now"
    with serving(database, tmp_path / "serve") as served:
        first = start_worker(*THEIRS, url=doomed(database))
        job_id = await add(conn, "exports.nightly", payload={"table": "crm.accounts", "may_end": str(may_end)})
        await runs(conn, job_id)
        async with tab(chromium, served.url, "none", viewport=DESKTOP) as one:
            page = one.page
            await page.goto(served._wait_for(r"\n *(http://\S+/login\?code=\S+)"))
            await page.get_by_role("heading", name="Overview").wait_for()
            await page.get_by_role("link", name="1 running").click()
            await page.get_by_role("link", name=str(job_id), exact=True).click()
            await page.locator("#timeline").get_by_text("attempt 1").wait_for()
            start_worker(*THEIRS)
            await kill(conn, first, job_id)
            await page.locator("#timeline").get_by_text("attempt 2").wait_for()  # by itself, without a reload
            assert await page.locator("#timeline code").count() == 2  # two fences
            may_end.touch()
            await page.locator("#head .badge.completed").wait_for()
            assert '"attempt": 2' in await page.locator("#result").inner_text()
            await one.open("workers?all=1")
            await page.locator("tr", has=page.locator(".badge.stale")).wait_for()

    assert one.violations == []


async def test_3_2_a_data_engineer_gets_from_a_mapping_to_a_graph_query_and_a_refused_delete_changes_nothing(
    database: str, tmp_path: Path, conn: Any, chromium: Any, start_worker: StartWorker
) -> None:
    """UX 3.2 in the console: dry run, snapshot with progress, graph, Cypher as a drawing, expand, download."""
    own = {
        "HOLDFAST_GRAPHS_DIR": str(tmp_path / "graphs"),
        "HOLDFAST_SNAPSHOTS_TO": str(tmp_path / "snapshots"),
        "HOLDFAST_EXPORT_DIRS": str(tmp_path),
        "HOLDFAST_INSTANCE_ORCHESTRATION_JOB_INTERVAL_SECONDS": "1",
        "HOLDFAST_SCHEDULER_LOOK_SECONDS": "0.2",
    }
    with serving(database, tmp_path / "serve", **own) as served:
        async with served.client() as client:
            made = await client.post("/api/mappings", json={"name": "social", "nodes": [PERSON], "edges": [KNOWS]})
            assert made.status_code == 201, made.text
        async with tab(chromium, served.url, served.token, viewport=DESKTOP, accept_downloads=True) as one:
            page = one.page
            await one.open("mappings")
            await page.get_by_role("link", name="social").click()
            await page.get_by_role("link", name="Dry run").click()
            await page.get_by_text("accepts every definition").wait_for()
            await page.get_by_role("link", name="New snapshot").click()
            await page.get_by_role("dialog").get_by_role("button", name="New snapshot").click()
            await page.locator("#snapshots").get_by_role("link").first.click()
            killed = start_worker(url=doomed(database), **own)
            await until(lambda: _claimed(conn))
            killed.kill_group()  # whatever it has written is not published
            await until_gone(conn)
            await conn.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp() - interval '1 s'")
            start_worker(**own)
            await page.locator(".top .badge.completed").wait_for()
            before = await jobs_of(conn), await rows(conn, "SELECT id, current_version FROM holdfast.mappings")
            await one.open("mappings/1")
            await page.get_by_role("link", name="Delete").click()
            await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
            await page.locator(".note.refused").wait_for()
            assert (await jobs_of(conn), await rows(conn, "SELECT id, current_version FROM holdfast.mappings")) == before
            await one.open("graphs")
            await page.get_by_role("link", name="New graph").click()
            dialog = page.get_by_role("dialog")
            await dialog.locator("[name=name]").fill("people")
            await dialog.locator("[name=snapshot_id]").fill("1")
            await dialog.get_by_role("button", name="New graph").click()
            await page.get_by_role("link", name="Query people").click()  # appears by itself, when the graph runs
            await page.get_by_label("Cypher").fill("MATCH (a:Person)-[e]->(b) WHERE a.id = 7 RETURN a, e, b")
            await page.get_by_role("button", name="Run").click()
            await page.get_by_role("link", name="Graph", exact=True).click()
            assert await page.locator(".net circle").count() == 2
            await page.locator(".net a").last.click()
            await page.locator(".net circle").nth(2).wait_for()
            async with page.expect_download() as download:
                await page.get_by_role("link", name="CSV").click()
            assert (await download.value).suggested_filename.endswith(".csv")
            await one.open("graphs")
            await page.get_by_role("link", name="Delete").click()
            await page.get_by_role("dialog").get_by_label("Reason").fill("done")
            await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
            await until(lambda: _gone(conn))

    assert one.violations == []


async def _claimed(conn: Any) -> bool:
    return bool(await value(conn, "SELECT max(attempt_no) FROM holdfast.jobs WHERE kind LIKE 'exports.%%'"))


async def _gone(conn: Any) -> bool:
    return not await rows(conn, "SELECT id FROM holdfast.graph_instances")


async def test_3_3_a_platform_engineer_maintains_a_table_and_a_second_maintenance_is_refused(
    database: str,
    tmp_path: Path,
    conn: Any,
    chromium: Any,
    start_worker: StartWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """UX 3.3: health with its parts, maintain, the conflict names the job that has the table, before and after."""
    own = {"HOLDFAST_ICEBERG_WAREHOUSE": str(tmp_path / "warehouse")}
    monkeypatch.setenv(*next(iter(own.items())))
    settings.cache_clear()
    here = maintenance_from(maintenance_settings())
    make_table(here, database)
    await here.close()
    end_threads()
    await know(conn)
    address = f"tables/{ORDERS.namespace}/{ORDERS.name}"
    with serving(database, tmp_path / "serve", **own) as served:
        async with tab(chromium, served.url, served.token, viewport=DESKTOP) as one:
            page, dialog = one.page, one.page.get_by_role("dialog")
            await one.open("tables")
            await page.get_by_role("link", name=f"{ORDERS.namespace}.{ORDERS.name}").click()
            await page.locator("#health").get_by_text("small files").first.wait_for()
            planner = start_worker(**own)
            await page.get_by_role("link", name="Dry run").click()
            await dialog.get_by_label("Actions").fill("rewrite_data_files")
            await dialog.get_by_role("button", name="Dry run").click()
            await page.locator("#plan").get_by_text("data files 12 → 1").wait_for()  # by itself, when the dry run has ended
            planner.kill_group()
            await page.get_by_role("link", name="Maintain").click()
            await dialog.get_by_label("Reason").fill("slow dashboards")
            async with served.client() as colleague:
                body = {"actions": ["rewrite_data_files"], "reason": "was faster"}
                first = (await colleague.post(f"/api/{address}/maintenance", json=body)).json()["data"]["id"]
            await dialog.get_by_role("button", name="Maintain").click()
            await page.locator(".note.refused").wait_for()
            assert f"job {first}" in await page.locator(".note.refused").inner_text()
            assert await value(conn, "SELECT max(job_id) FROM holdfast.maintenance_runs") == first
            start_worker(**own)
            await until(lambda: _ended(conn, first))
            await one.open(address)
            changed = page.locator(f"#run-{first} tr", has_text="data files").first
            assert (await changed.inner_text()).split()[-2:] == ["12", "1"]
    settings.cache_clear()

    assert one.violations == []


async def _ended(conn: Any, job_id: int) -> bool:
    state = await state_of(conn, job_id)
    assert state != "failed", await rows(conn, "SELECT error FROM holdfast.jobs WHERE id = %s", job_id)
    return state == "completed"


async def test_3_4_a_backend_developer_has_the_console_in_an_application_and_a_late_retry_is_refused(
    database: str, conn: Any, chromium: Any, start_worker: StartWorker
) -> None:
    """UX 3.4: the application's own users; a job of its own; a colleague was faster, and that is said next to the row."""

    async def known(request: Any) -> tuple[str, str] | None:
        return ("ada", "ops") if request.headers.get("x-user") == "ada" else None

    app, embedded = FastAPI(), holdfast.console(database, auth=known)
    app.mount("/jobs", embedded)
    start_worker(*THEIRS)
    job_id = await add(conn, "invoice.render", payload={"invoice_id": 4711}, max_attempts=1)
    async with embedded.running(), _bare(app) as site:
        context = await chromium.new_context(viewport=DESKTOP, extra_http_headers={"x-user": "ada"})
        page = await context.new_page()
        page.set_default_timeout(60_000)
        await until(lambda: _failed(conn, job_id))
        await page.goto(f"{site}/jobs/jobs?f=kind:invoice.render")
        await page.get_by_text("the template of invoice 4711 is missing").wait_for()
        await page.get_by_role("link", name=f"Retry {job_id}").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Reason").fill("the template is back")
        await conn.execute("INSERT INTO holdfast.controls (kind, paused_at, actor) VALUES ('invoice.render', now(), 'test')")
        await rerun(conn, job_id, actor="a colleague", reason="was faster")
        before = await jobs_of(conn)
        await dialog.get_by_role("button", name="Retry").click()
        refusal = page.locator(f"#job-{job_id} + tr.refused")
        await refusal.wait_for()
        assert str(job_id) in await refusal.inner_text()
        assert await jobs_of(conn) == before
        async with httpx2.AsyncClient(trust_env=False) as client:
            stranger = await client.get(f"{site}/jobs/jobs")
        await context.close()

    assert stranger.status_code == 401


async def _failed(conn: Any, job_id: int) -> bool:
    return await state_of(conn, job_id) == "failed"


@asynccontextmanager
async def _bare(app: FastAPI) -> AsyncIterator[str]:
    app.state.hub = _NoStreams()
    async with listening(app) as site:
        yield site


class _NoStreams:
    """The application has no event streams of ours: its live pages poll."""

    def close_streams(self) -> None: ...


async def test_3_5_on_call_a_job_of_a_killed_worker_is_recovered_from_a_phone(
    app: FastAPI,
    site: str,
    database: str,
    conn: Any,
    token_of: TokenOf,
    tmp_path: Path,
    chromium: Any,
    start_worker: StartWorker,
) -> None:
    """UX 3.5: link of the alert, one tap to the job, what will happen, reason, verified live; the audit has who and why."""
    may_end, taps = tmp_path / "now", 0
    worker = start_worker(*THEIRS, url=doomed(database))
    job_id = await add(conn, "exports.nightly", payload={"table": "crm.accounts", "may_end": str(may_end)})
    await runs(conn, job_id)
    fence = await value(conn, "SELECT attempt_id FROM holdfast.jobs WHERE id = %s", job_id)

    async with tab(chromium, site, await token_of("ops"), viewport=PHONE, has_touch=True) as phone:
        page = phone.page
        await phone.open(f"jobs/{job_id}")
        assert "valid for another" in await page.locator(".button.off", has_text="Recover").get_attribute("title")
        await kill(conn, worker, job_id)
        await phone.open("jobs?f=cond:stale")  # the link of the alert
        for step in (
            page.get_by_role("link", name=str(job_id), exact=True),
            page.get_by_role("link", name="Recover"),
        ):
            await step.tap()
            taps += 1
        dialog = page.get_by_role("dialog")
        await dialog.get_by_text("can no longer write").wait_for()
        await dialog.get_by_label("Reason").fill("StaleJobs alert")
        await dialog.get_by_role("button", name="Recover").tap()
        taps += 1
        await page.get_by_text("was taken from its worker").wait_for()
        start_worker(*THEIRS)
        await page.locator("#head .badge.running").wait_for()  # by itself, without a reload
        may_end.touch()
        await page.locator("#head .badge.completed").wait_for()

    assert taps <= 5
    assert fence != await value(
        conn, "SELECT attempt_id FROM holdfast.history WHERE job_id = %s AND state = 'completed'", job_id
    )
    audited = await rows(conn, "SELECT actor, action, reason FROM holdfast.audit WHERE object = %s", f"job/{job_id}")
    assert audited == [("token:ops", "jobs.recover", "StaleJobs alert")]
    assert phone.violations == []


# ---------------------------------------------------------------------------------------------------------------------
# How pages behave
# ---------------------------------------------------------------------------------------------------------------------


IN_BACKGROUND = """(hidden) => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
NOTE_PROGRESS = """() => new MutationObserver(() => sessionStorage.setItem("shown", "yes"))
    .observe(document.querySelector("progress[data-upload]"), { attributes: true })"""


async def _has_streams(app: FastAPI, count: int) -> bool:
    return len(app.state.hub) == count


async def test_an_upload_shows_its_progress_and_a_refusal_next_to_the_form(
    app: FastAPI, site: str, token_of: TokenOf, tmp_path: Path, chromium: Any
) -> None:
    (tmp_path / "units.csv").write_text("code;name\nA;Unit A\n" * 50_000)

    async with tab(chromium, site, await token_of("ops"), viewport=DESKTOP) as one:
        page = one.page
        await one.open("ingestion/upload")
        await page.locator("[name=file]").set_input_files(tmp_path / "units.csv")
        await page.get_by_role("button", name="Upload").click()
        await page.locator("form .note.refused").get_by_text("Choose a data entry type").wait_for()
        await page.locator("[name=file]").set_input_files(tmp_path / "units.csv")
        await page.locator("[name=what]").select_option("units")
        await page.evaluate(NOTE_PROGRESS)
        await page.get_by_role("button", name="Upload").click()
        await page.get_by_text("The file was uploaded, and its job was started").wait_for()
        assert await page.evaluate("() => sessionStorage.getItem('shown')") == "yes"

    assert one.violations == []


async def test_a_page_follows_by_itself_and_keeps_focus_text_selection_and_open_parts(
    app: FastAPI, site: str, conn: Any, token_of: TokenOf, chromium: Any
) -> None:
    first = await add(conn, "csv.ingest")

    async with tab(chromium, site, await token_of("ops"), viewport=DESKTOP) as one:
        page = one.page
        await one.open("jobs")
        await page.locator("[data-live-status][data-state=live]").wait_for()
        await page.get_by_label(f"Select job {first}").check()
        await page.get_by_label("Filter").fill("kind:csv")
        await page.locator("#columns summary").click()
        await page.get_by_label("Filter").focus()
        second = await add(conn, "csv.ingest")
        await page.locator(f"#job-{second}").wait_for()

        assert await page.get_by_label("Filter").input_value() == "kind:csv"
        assert await page.evaluate("() => document.activeElement.name") == "f"
        assert await page.locator("#columns").get_attribute("open") is not None
        options = await page.evaluate("() => [...document.querySelectorAll('#suggestions option')].map((one) => one.value)")
        assert options == ["kind:csv.ingest"]
        chosen = await page.evaluate("() => [...document.querySelectorAll('input[name=job]:checked')].map((one) => one.value)")
        assert chosen == [str(first)]  # the row moved down, and the box moved with it
        assert await page.get_by_text("1 selected:").is_visible()

        await page.get_by_role("link", name=str(first), exact=True).focus()
        await page.keyboard.press("x")
        assert await page.get_by_text("selected:").is_hidden()
        await page.keyboard.press("p")
        await page.locator("[data-live-status][data-state=paused]").wait_for()
        third = await add(conn, "csv.ingest")
        await page.keyboard.press("p")
        await page.locator(f"#job-{third}").wait_for()
        await page.get_by_role("button", name="Times: UTC").click()
        await page.get_by_role("button", name="Times: local").wait_for()
        await page.evaluate(IN_BACKGROUND, True)
        await until(lambda: _has_streams(app, 0))  # a tab in the background has no connection
        await page.evaluate(IN_BACKGROUND, False)
        await until(lambda: _has_streams(app, 1))
        await page.keyboard.press("g")
        await page.keyboard.press("w")
        await page.wait_for_url("**/console/workers")
        await page.keyboard.press("?")
        await page.get_by_role("dialog").get_by_text("pause or continue live updates").wait_for()

    assert first < second < third
    assert one.violations == []


async def test_failures_are_retried_as_a_group_or_by_selection_and_nothing_else_is_touched_without_javascript(
    app: FastAPI, site: str, conn: Any, token_of: TokenOf, chromium: Any
) -> None:
    failed = []
    for number in range(3):
        claim = await hold(conn, "exports.run", max_attempts=1)
        await end(conn, claim, Fail(f"Table 'crm.t{number}' does not exist"))
        failed.append(claim.id)
    other = await hold(conn, "csv.ingest", max_attempts=1)
    await end(conn, other, Fail("ValueError: bad row"))

    async with tab(chromium, site, await token_of("ops"), viewport=DESKTOP, java_script_enabled=False) as one:
        page = one.page
        await one.open("failures")
        row = page.locator("tr", has_text="does not exist")
        await row.get_by_role("link", name="Retry all…").click()
        await page.get_by_text("3 jobs match").wait_for()
        await page.get_by_label("Reason").fill("the tables are back")
        await page.get_by_role("button", name="Retry 3 jobs").click()
        await page.get_by_text("Started: retry for 3 jobs").wait_for()
        await one.open("jobs?f=state:failed")
        for job_id in failed[:2]:
            await page.get_by_label(f"Select job {job_id}").check()
        await page.get_by_role("button", name="Retry selected…").click()
        await page.get_by_text("2 jobs match").wait_for()
        await page.get_by_label("Reason").fill("only these")
        await page.get_by_role("button", name="Retry 2 jobs").click()
        await page.get_by_text("Started: retry for 2 jobs").wait_for()

    by_group, by_hand = [
        one for (one,) in await rows(conn, "SELECT payload FROM holdfast.jobs WHERE kind = 'holdfast.bulk' ORDER BY id")
    ]
    assert (by_group["matched"], list(by_group["filter"])) == (3, ["fingerprint"])
    assert by_hand["filter"] == {"ids": failed[1::-1]}
    assert await state_of(conn, other.id) == "failed"
