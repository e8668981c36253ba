"""The pages of maintenance: tables and their filter, one table with its plan and its lock, policies with their preview."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from tests.console.conftest import AsRole, Client
from tests.console.scene import TABLE, Scene

from factories import rows, value
from holdfast.services.maintenance.engines.actions import parse_actions
from holdfast.services.maintenance.pages.changes import plan_of, suggested
from holdfast.services.maintenance.run import read
from holdfast.services.maintenance.savings import Prices
from holdfast.services.maintenance.tables import cache
from holdfast.services.maintenance.tables.health import health_of
from maintenance_factories import HEALTHY, INPUTS

PAGE = f"/console/tables/{TABLE.namespace}/{TABLE.name}"
BUTTON = {"db": TABLE.namespace, "table": TABLE.name, "catalog": TABLE.catalog}
EVIL = '<img src=x onerror="alert(1)">'


async def send(client: Client, button: str, form: dict[str, str], **given: str) -> Any:
    """Open the form of a button, fill it in, and send it."""
    shown = await client.get(f"/console/act/{button}", params=given)
    found = re.search(r'name="csrf" value="([^"]+)"', shown.text)
    assert found, shown.text
    return await client.post(f"/console/act/{button}", params=given, data={"csrf": found[1], **form})


async def newest_run(conn: Any) -> tuple[Any, ...]:
    statement = "SELECT catalog, dry_run, reason, job_id FROM holdfast.maintenance_runs ORDER BY job_id DESC LIMIT 1"
    return (await rows(conn, statement))[0]


def listed(text: str) -> list[str]:
    return re.findall(r'">sales-eu\.([\w-]+)</a>', text)


async def test_tables_have_their_health_in_words_their_last_run_and_the_running_action(scene: Scene, ops: Client) -> None:
    text = (await ops.get("/console/tables")).text

    assert listed(text) == ["customers", "events", "new", "page-views"]
    for said in ("100 good", "35 poor", "55 fair", "unknown</span>", "small files, snapshots", "10.5 kB", "rewrite data files"):
        assert said in text, said
    assert "0.24 USD per month of storage" in text
    assert 'class="muted">estimate</span>' in text


async def test_the_filter_of_tables_is_in_the_address(scene: Scene, ops: Client) -> None:
    async def found(**query: Any) -> list[str]:
        return listed((await ops.get("/console/tables", params=query)).text)

    assert await found(health_below=50) == ["events"]
    assert await found(search="page") == ["page-views"]
    assert await found(catalog="elsewhere") == []
    assert await found(database="sales-eu", health_below=80) == ["events", "page-views"]
    assert (await ops.get("/console/tables", params={"health_below": "low"})).status_code == 422


async def test_pages_of_tables_do_not_overlap_and_do_not_skip(ops: Client, conn: Any) -> None:
    names = [f"t{place:03}" for place in range(120)]
    await cache.see(conn, [replace(TABLE, name=name) for name in names])

    seen: list[str] = []
    address = "/console/tables?search=t"
    while address:
        text = (await ops.get(address)).text
        seen += listed(text)
        following = re.search(r'href="([^"]+)" rel="next"', text)
        address = following[1].replace("&amp;", "&") if following else ""

    assert seen == names


async def test_a_table_shows_the_parts_of_its_health_its_plan_and_its_last_run(scene: Scene, ops: Client) -> None:
    text = (await ops.get(PAGE)).text

    for said in ("55 of 100, fair", "1,000 of 1,000 data files are below", "rewrite_data_files: 1,000 data files → about 1"):
        assert said in text, said
    assert "data files 1,000 → <b>4</b>" in text
    assert "deleted bytes 12.9 GB" in text
    assert "slow dashboards" in text
    assert "actions=rewrite_data_files%2C+expire_snapshots" in text  # the form of Maintain has the actions of the plan
    assert "No maintenance has the table" in text
    assert "0.24 USD per month of storage" in text


async def test_a_table_names_the_job_that_has_its_lock(scene: Scene, ops: Client, conn: Any) -> None:
    job = await value(conn, "SELECT job_id FROM holdfast.maintenance_runs WHERE name = 'events'")

    text = (await ops.get("/console/tables/sales-eu/events")).text

    assert re.search(rf"The table is held by job {job} \(rewrite_data_files, for \d+ [sm], worker ingest-1c2b\)", text)
    assert "Do a dry run first" in text


@pytest.mark.more
async def test_a_table_is_planned_and_then_maintained_with_a_reason_by_the_api(scene: Scene, ops: Client, conn: Any) -> None:
    planned = await send(ops, "table.plan", {"actions": "rewrite_manifests, rewrite_data_files"}, **BUTTON)
    plan = await newest_run(conn)
    without = await send(ops, "table.maintain", {"actions": "rewrite_data_files"}, **BUTTON)
    made = await send(ops, "table.maintain", {"actions": "rewrite_data_files", "reason": "too many files"}, **BUTTON)
    run = await newest_run(conn)
    refused = await send(ops, "table.maintain", {"actions": "rewrite_data_files", "reason": "again"}, **BUTTON)

    assert (planned.status_code, plan[:3]) == (303, ("default", True, None))
    assert await value(conn, "SELECT count(*) FROM holdfast.maintenance_actions WHERE job_id = %s", plan[3]) == 2
    assert without.status_code == 422
    assert (made.status_code, run[:3]) == (303, ("default", False, "too many files"))
    assert (await newest_run(conn))[3] == run[3], "the second one is refused"
    assert f"Is held by job {run[3]}".lower() in (await ops.get(refused.headers["Location"])).text.lower()
    who = "SELECT actor, object, reason FROM holdfast.audit WHERE action = 'tables.maintain' ORDER BY id DESC LIMIT 1"
    assert (await rows(conn, who))[0] == ("token:ops", f"maintenance-run/{run[3]}", "too many files")


@pytest.mark.more
async def test_a_mistake_in_an_action_or_a_catalog_is_named(scene: Scene, ops: Client, conn: Any) -> None:
    before = await newest_run(conn)
    action = await send(ops, "table.plan", {"actions": "defragment"}, **BUTTON)
    said_of_action = (await ops.get(action.headers["Location"])).text
    catalog = await send(ops, "table.plan", {"actions": "rewrite_data_files"}, **{**BUTTON, "catalog": "elsewhere"})
    said_of_catalog = (await ops.get("/console/tables")).text

    assert "refused" in said_of_action
    assert catalog.status_code == 303
    assert "refused" in said_of_catalog
    assert await newest_run(conn) == before


@pytest.mark.more
async def test_a_viewer_sees_no_buttons(scene: Scene, as_role: AsRole) -> None:
    viewer = await as_role("viewer")

    for path in (PAGE, "/console/tables", "/console/table-policies", "/console/table-policies/nightly-sales"):
        answer = await viewer.get(path)
        assert answer.status_code == 200, path
        assert "/console/act/" not in answer.text, path
    assert (await viewer.get("/console/act/table.maintain", params=BUTTON)).status_code == 403


async def test_a_plan_counts_until_the_table_is_maintained_and_only_without_parameters(scene: Scene, conn: Any) -> None:
    dry, real = await read.history(conn, TABLE, Prices(), limit=10)

    assert plan_of([dry, real]) == dry
    assert plan_of([real, dry]) is None
    assert plan_of([replace(real, finished_at=None, state="running"), dry]) is None
    assert plan_of([replace(dry, finished_at=None, state="pending"), dry]) == dry
    assert plan_of([replace(dry, state="failed"), real]) is None
    (other,) = parse_actions([{"action": "expire_snapshots", "older_than": "30d"}])
    changed = [replace(one, parameters=other.as_json()) if one.action == other.name else one for one in dry.actions]
    assert plan_of([replace(dry, actions=changed), real]) is None


def test_the_form_suggests_what_improves_the_health() -> None:
    assert suggested(health_of(replace(INPUTS, snapshots_over_5_days=60)).parts) == "rewrite_data_files, expire_snapshots"
    assert suggested(health_of(HEALTHY).parts) == "rewrite_data_files"


async def test_policies_show_their_next_runs_and_the_tables_of_the_next_one(scene: Scene, ops: Client) -> None:
    every = (await ops.get("/console/table-policies")).text
    one = (await ops.get("/console/table-policies/nightly-sales")).text
    off = (await ops.get("/console/table-policies/repair-all")).text

    assert re.search(r"nightly-sales.*?enabled.*?in \d+[hms].*?repair-all.*?disabled", every, re.DOTALL)
    assert len(re.findall(r"\d{4}-\d\d-\d\d 02:00</td>", one)) == 5
    assert "2 of 4 that match" in one
    assert "its health is 100, not below 70" in one
    assert "None: the policy is disabled." in off
    assert (await ops.get("/console/table-policies/nobody")).status_code == 404


async def test_a_policy_is_deleted_by_its_button(scene: Scene, ops: Client, conn: Any) -> None:
    assert (await send(ops, "table_policy.delete", {}, name="repair-all")).status_code == 303
    assert await rows(conn, "SELECT name FROM holdfast.maintenance_policies") == [("nightly-sales",)]


@pytest.mark.more
async def test_text_of_others_stays_text(scene: Scene, as_role: AsRole, conn: Any) -> None:
    admin = await as_role("admin")
    evil = replace(TABLE, name=EVIL)
    await cache.note_measured(conn, evil, INPUTS)
    await cache.note_failed(conn, evil, EVIL)
    policy = {"description": EVIL, "match": {"table": EVIL}, "when": {"health_below": 70}, "actions": ["rewrite_data_files"]}
    assert (await admin.put("/api/maintenance-policies/evil", json=policy)).status_code == 200
    made = await send(admin, "table.maintain", {"actions": "rewrite_data_files", "reason": EVIL}, **{**BUTTON, "table": EVIL})
    listing = (await admin.get("/console/tables", params={"search": EVIL})).text
    own = re.search(r'href="(/console/tables/sales-eu/%3C[^"]+)"', listing)
    assert own

    pages = [listing, (await admin.get(own[1].replace("&amp;", "&"))).text, (await admin.get(made.headers["Location"])).text]
    pages += [(await admin.get(f"/console/table-policies{end}")).text for end in ("", "/evil")]

    assert (await newest_run(conn))[2] == EVIL
    for text in pages:
        assert "<img src=x" not in text
    assert pages[1].count("&lt;img src=x onerror=") >= 4


async def test_an_unknown_table_is_refused(scene: Scene, ops: Client) -> None:
    answer = await ops.get("/console/tables/sales-eu/nothing")

    assert answer.status_code == 404
    assert "here is no table default.sales-eu.nothing" in answer.text
