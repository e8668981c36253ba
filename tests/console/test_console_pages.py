"""Every page, for every role, on real data: what it shows, what it hides, and that nothing needs a script."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from tests.console.conftest import AsRole, Client
from tests.console.scene import BIG, TABLE, Scene

from factories import add, rows, submit, take
from holdfast.api.policy import POLICY, Role, allows
from holdfast.console.pages import KERNEL_PAGES


def addresses(app: FastAPI, scene: Scene, **given: str) -> dict[str, str]:
    """Every page of the console with its action, filled with ids of the scene, or with what is given in their place."""
    values = {
        "job_id": scene.running,
        "pipeline_id": scene.pipeline,
        "mapping_id": scene.mapping,
        "snapshot_id": scene.snapshot,
        "instance_id": scene.graph,
        "db": TABLE.namespace,
        "table": TABLE.name,
        "name": "nightly-sales",
        "ingestion_id": scene.ingestion,
        **given,
    }
    mounted = next(route.app for route in app.routes if getattr(route, "path", "") == "/console" and hasattr(route, "app"))
    return {f"/console/{page.path.format_map(values)}": page.action for page in mounted.state.pages}


@pytest.mark.more
async def test_every_page_and_fragment_is_rendered_for_the_roles_that_may_see_it_and_refused_to_the_others(
    app: FastAPI, scene: Scene, as_role: AsRole
) -> None:
    pages = addresses(app, scene)
    assert len(pages) >= len(KERNEL_PAGES) + 4
    clients = {role: await as_role(role) for role in Role}

    for role, (path, action) in product(Role, pages.items()):
        client = clients[role]
        may = allows(action, role, scopes=None, permissions=frozenset())
        for headers in ({}, {"X-Fragment": "1"}):
            answer = await client.get(path, headers=headers)
            assert answer.status_code == (200 if may else 403), (path, answer.text)
            assert answer.headers["Content-Type"].startswith("text/html")
            assert "unsafe" not in answer.headers["Content-Security-Policy"]
            assert answer.headers["Referrer-Policy"] == "same-origin"  # otherwise browsers send forms with Origin: null
            assert ('<nav aria-label="Pages">' in answer.text) is (not headers)  # the frame
            if not may:
                assert "Roles that may" in answer.text


@pytest.mark.more
async def test_no_page_and_no_response_has_the_handle_of_an_effect(
    app: FastAPI, scene: Scene, as_role: AsRole, conn: Any
) -> None:
    """A handle may have a secret: that of a Thrift session ends the session's work."""
    made = """
        INSERT INTO holdfast.effects (job_id, attempt_id, fence_token, kind, tag, handle, state)
        SELECT id, attempt_id, fence_token, 'maintenance.remote_work', 'tag-of-work', '{"work": "a1.5ec4e7"}', 'made'
        FROM holdfast.jobs WHERE id = %s
    """
    await conn.execute(made, [scene.running])
    client = await as_role("admin", "ada")
    asked = [*addresses(app, scene), *gets_of_a_job(scene)]

    texts = {path: (await client.get(path)).text for path in asked}

    assert "tag-of-work" in texts[f"/console/jobs/{scene.running}"]
    assert f"/api/jobs/{scene.running}" in texts
    assert [path for path, text in texts.items() if "5ec4e7" in text] == []


def gets_of_a_job(scene: Scene) -> list[str]:
    """Every GET of the API with the number of a job in its path, and the list of jobs; without streams.

    From the committed document, which is the one that is served (`tests/api/test_contract.py`) and takes seconds to make.
    """
    document = json.loads((Path(__file__).parents[2] / "docs/reference/openapi.json").read_text())
    found = [
        path.replace("{job_id}", str(scene.running))
        for path, methods in document["paths"].items()
        if "get" in methods
        and path.count("{") == path.count("{job_id}") == 1
        and "text/event-stream" not in methods["get"]["responses"]["200"]["content"]
    ]
    return ["/api/jobs", *found]


@pytest.mark.more
async def test_without_credentials_every_page_leads_to_the_login(app: FastAPI, scene: Scene, as_role: AsRole) -> None:
    stranger = await as_role(None)

    for path in addresses(app, scene):
        answer = await stranger.get(path)
        assert answer.status_code == 303, path
        assert answer.headers["Location"].startswith("/console/login?next=") or path == "/console/"
    assert (await stranger.get("/console/jobs", headers={"X-Fragment": "1"})).status_code == 401
    assert (await stranger.get("/console/events")).status_code == 303


@pytest.mark.more
async def test_pages_have_no_inline_script_or_style(app: FastAPI, scene: Scene, ops: Client) -> None:
    for path in addresses(app, scene):
        text = (await ops.get(path)).text
        assert not re.search(r"<script(?![^>]*\ssrc=)", text), path
        assert not re.search(r"\sstyle=|<style|\son[a-z]+=|javascript:", text), path


@pytest.mark.more
async def test_a_job_shows_its_attempts_with_fences_and_its_payload_with_exact_numbers_and_without_secrets(
    scene: Scene, ops: Client, conn: Any
) -> None:
    text = (await ops.get(f"/console/jobs/{scene.running}")).text

    assert str(BIG) in text
    assert "sk-live-very-secret" not in text
    assert "&#34;api_key&#34;: &#34;***&#34;" in text
    statement = "SELECT attempt_id FROM holdfast.{} WHERE attempt_id IS NOT NULL AND {} = %s"
    ended = await rows(conn, statement.format("history", "job_id"), scene.running)
    running = await rows(conn, statement.format("jobs", "id"), scene.running)
    fences = {str(fence)[:8] for (fence,) in [*ended, *running]}
    assert len(fences) == 2
    assert all(f">{fence}</code>" in text for fence in fences)
    for said in ("1,204,000 of 1,970,000 rows", "query submitted", "table:hive.crm.orders", "trino.query", "ConnectionReset"):
        assert said in text, said
    assert f"https://grafana.example/d/jobs?var-job={scene.running}&amp;kind=exports.run" in text


async def test_a_viewer_sees_neither_payload_nor_log_nor_buttons(scene: Scene, as_role: AsRole) -> None:
    viewer = await as_role("viewer")

    text = (await viewer.get(f"/console/jobs/{scene.running}")).text

    for hidden in (str(BIG), "query submitted", "/console/act/", "Audit</h2>"):
        assert hidden not in text, hidden
    assert "may not see payloads" in text


async def test_only_the_owner_and_operators_see_the_handle_of_a_job(conn: Any, as_role: AsRole) -> None:
    job_id = await add(conn, "exports.run")
    await conn.execute("UPDATE holdfast.jobs SET owner = 'token:ada'")
    await submit(conn, await take(conn, job_id), {"next_uri": "http://engine/slug"})

    async def sees(role: str, name: str) -> bool:
        page = await (await as_role(role, name)).get(f"/console/jobs/{job_id}")
        assert page.status_code == 200
        return "http://engine/slug" in page.text

    seen = {
        name: await sees(role, name) for role, name in [("analyst", "ada"), ("analyst", "bob"), ("viewer", "v"), ("ops", "o")]
    }

    assert seen == {"ada": True, "bob": False, "v": False, "o": True}


@pytest.mark.more
async def test_a_failed_job_shows_its_error_and_its_traceback_folded(scene: Scene, ops: Client) -> None:
    text = (await ops.get(f"/console/jobs/{scene.failed}")).text

    assert "QueryRefused: Table" in text
    assert re.search(r"<details[^>]*><summary>Traceback.*?engine\.stream", text, re.DOTALL)


async def test_the_overview_names_what_needs_attention_with_a_page_and_a_command(scene: Scene, ops: Client) -> None:
    text = (await ops.get("/console/")).text

    assert "1 job without a live worker; worker export-55aa has been silent for 14m" in text
    assert "/console/jobs?f=cond%3Astale" in text
    assert "holdfast job list --condition stale" in text
    assert "/console/bulk?action=recover&amp;f=cond%3Astale" in text
    assert "report.aggregate</b> is" in text


@pytest.mark.more
async def test_workers_of_different_versions_and_commits_are_warned_of(scene: Scene, ops: Client, conn: Any) -> None:
    assert "Workers run" not in (await ops.get("/console/workers")).text

    await conn.execute("UPDATE holdfast.workers SET version = '2', git_sha = 'ffff000011' WHERE name = 'ingest-1c2b'")

    for page in ("workers", ""):
        text = (await ops.get(f"/console/{page}")).text
        assert "Workers run 2 versions: 1, 2" in text, page
        assert "Workers run 2 commits: ab12cd34, ffff0000" in text, page
    assert re.search(
        r"warning</span>.{0,80}workers.{0,80}alive, version 1, 2", (await ops.get("/console/system")).text, re.DOTALL
    )


async def test_a_filter_is_in_the_address_and_a_mistake_is_named(scene: Scene, ops: Client) -> None:
    found = await ops.get("/console/jobs", params={"f": "state:failed kind:exports.run age:<24h"})
    mistake = await ops.get("/console/jobs", params={"f": "stat:failed"})
    wrong = await ops.get("/console/jobs", params={"f": "state:faild"})

    states = set(
        re.findall(r'<span class="badge \w+"><span aria-hidden="true">.</span> (\w+)</span>', found.text.split("<tbody>")[1])
    )
    assert states == {"failed"}
    assert (mistake.status_code, wrong.status_code) == (422, 422)
    assert "there is no filter &#39;stat&#39;" in mistake.text.replace("There", "there")
    assert "no state &#39;faild&#39;; there are: blocked" in wrong.text.replace("No state", "no state")


async def test_pages_of_jobs_do_not_overlap_and_do_not_skip(ops: Client, conn: Any) -> None:
    await conn.execute("INSERT INTO holdfast.jobs (kind, queue) SELECT 'k', 'default' FROM generate_series(1, 120)")

    seen: list[int] = []
    address = "/console/jobs"
    while address:
        text = (await ops.get(address)).text
        seen += [int(found) for found in re.findall(r'id="job-(\d+)"', text)]
        following = re.search(r'href="([^"]+)" rel="next"', text)
        address = following[1].replace("&amp;", "&") if following else ""

    assert len(seen) == 120
    assert seen == sorted(set(seen), reverse=True)


async def test_a_mapping_shows_its_versions_their_difference_and_what_the_engine_says(
    scene: Scene, ops: Client, as_role: AsRole
) -> None:
    text = (await ops.get(f"/console/mappings/{scene.mapping}", params={"from": 1, "to": 2, "check": "1"})).text
    viewer = (await (await as_role("viewer")).get(f"/console/mappings/{scene.mapping}", params={"check": "1"})).text

    assert "accepts every definition" in text
    assert "modified" in text
    assert "WHERE true" in text
    assert "accepts every definition" not in viewer


async def test_a_snapshot_shows_the_progress_of_every_node_and_edge(scene: Scene, ops: Client) -> None:
    text = (await ops.get(f"/console/snapshots/{scene.snapshot}")).text

    assert text.count("Progress of ") == 4  # three exports and the whole
    assert "21 of 50 rows" in text


async def test_an_ingestion_job_shows_the_steps_of_its_pipeline_with_those_that_wait(scene: Scene, ops: Client) -> None:
    text = (await ops.get(f"/console/ingestion/{scene.ingestion}")).text.partition('id="steps"')[2]

    found = re.findall(r'<span class="badge \w+"><span aria-hidden="true">.</span> (\w+)</span>.*?(\w+) \d+</(?:a|b)>', text)
    assert found == [("WARNING", "csv_ingest"), ("RUNNING", "emission_recalc"), ("blocked", "aggregation")]


async def test_every_action_of_a_button_has_a_rule_and_a_route(app: FastAPI) -> None:
    mounted = next(route.app for route in app.routes if getattr(route, "path", "") == "/console" and hasattr(route, "app"))
    served = {(route.method, re.sub(r"\{(\w+)(:\w+)?\}", "{}", route.path)): route.action for route in app.state.table}

    for action in mounted.state.renderer.actions.values():
        path = re.sub(r"\{\w+\}", "{}", action.path)
        assert action.policy in POLICY, action.name
        assert served[action.method, path] == action.policy, action.name
