"""Actions: what is confirmed, what is refused, and that nothing happens without a form of this console and this session."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from tests.console.conftest import AsRole, Client

from factories import add, end, everything, hold, job, rows, silence, state_of, value
from holdfast.jobs.bulk import BulkAction, Tally, run_batch
from holdfast.jobs.outcome import Done, Fail

BROWSER = {"Sec-Fetch-Site": "same-origin", "Origin": "http://plane"}


async def fields_of(client: Client, address: str) -> dict[str, str]:
    """The hidden fields of the form at this address."""
    answer = await client.get(address)
    assert answer.status_code == 200, answer.text
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', answer.text.split('class="confirm"')[1])
    return {name: unescape(text) for name, text in found}


async def send(client: Client, address: str, *, to: str | None = None, **fields: str) -> Any:
    hidden = await fields_of(client, address)
    return await client.post(to or address, data={**hidden, **fields}, headers=BROWSER)


async def failed_job(conn: Any, **fields: Any) -> int:
    claim = await hold(conn, max_attempts=1, **fields)
    await end(conn, claim, Fail("it broke"))
    return int(claim.id)


async def test_an_action_says_what_happens_takes_a_reason_and_is_audited(ops: Client, conn: Any) -> None:
    job_id = await failed_job(conn)
    address = f"/console/act/job.retry?job_id={job_id}&back={quote('/console/jobs?f=state:failed')}"

    asked = await ops.get(address)
    answer = await send(ops, address, reason="the table is back")

    assert f"Job {job_id} goes back to the queue" in asked.text
    assert (answer.status_code, answer.headers["Location"]) == (303, "/console/jobs?f=state:failed")
    assert await state_of(conn, job_id) == "pending"
    audited = await rows(conn, "SELECT actor, action, object, reason FROM holdfast.audit")
    assert audited == [("token:ops", "jobs.retry", f"job/{job_id}", "the table is back")]
    assert "was put back into the queue" in (await ops.get("/console/jobs")).text
    again = await ops.get("/console/jobs", headers={"X-Fragment": "1"})
    assert "was put back into the queue" in again.text  # it stays while live regions of this page are read again
    assert "was put back into the queue" not in (await ops.get("/console/", headers={"X-Fragment": "1"})).text  # of another tab
    assert "was put back into the queue" not in (await ops.get("/console/jobs")).text  # only on one page


async def test_a_refusal_changes_nothing_and_is_shown_next_to_its_row(ops: Client, conn: Any) -> None:
    claim = await hold(conn)
    before = await everything(conn)

    answer = await send(ops, f"/console/act/job.recover?job_id={claim.id}&back=/console/jobs", reason="it looks stuck")
    page = (await ops.get(answer.headers["Location"])).text

    assert await everything(conn) == before
    row = page.split(f'id="job-{claim.id}"')[1]
    assert re.search(r'</tr>\s*<tr class="refused"><td colspan="\d+">✕ ', row)
    assert "lease" in row.split('<tr class="refused">')[1].split("</tr>")[0]


async def test_without_a_reason_nothing_happens(ops: Client, conn: Any) -> None:
    job_id = await failed_job(conn)

    answer = await send(ops, f"/console/act/job.retry?job_id={job_id}", reason="  ")

    assert answer.status_code == 422
    assert "A reason is required" in answer.text
    assert await state_of(conn, job_id) == "failed"


@pytest.mark.parametrize(
    ("headers", "csrf"),
    [
        (BROWSER, "0" * 40),
        (BROWSER, ""),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://plane"}, None),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://plane"}, None),
        ({"Origin": "https://elsewhere.example"}, None),
    ],
)
async def test_a_form_of_another_site_or_session_is_refused(ops: Client, conn: Any, headers: Any, csrf: str | None) -> None:
    """The guard has three walls: the token of the form, Sec-Fetch-Site, and Origin. Each alone refuses."""
    job_id = await failed_job(conn)
    address = f"/console/act/job.retry?job_id={job_id}"
    hidden = await fields_of(ops, address)

    answer = await ops.post(
        address, data={**hidden, **({} if csrf is None else {"csrf": csrf}), "reason": "x"}, headers=headers
    )

    assert answer.status_code == 403
    assert await state_of(conn, job_id) == "failed"


async def test_a_form_of_one_session_does_not_work_in_another(ops: Client, as_role: AsRole, conn: Any) -> None:
    job_id = await failed_job(conn)
    address = f"/console/act/job.retry?job_id={job_id}"
    hidden = await fields_of(await as_role("ops", "bob"), address)

    answer = await ops.post(address, data={**hidden, "reason": "x"}, headers=BROWSER)

    assert answer.status_code == 403
    assert await state_of(conn, job_id) == "failed"


async def test_a_role_without_the_permission_gets_neither_the_page_nor_the_action(as_role: AsRole, conn: Any) -> None:
    job_id = await failed_job(conn)

    for role in ("viewer", "worker", "autoscaler"):
        client = await as_role(role)
        asked = await client.get(f"/console/act/job.retry?job_id={job_id}")
        sent = await client.post(f"/console/act/job.retry?job_id={job_id}", data={"reason": "x"}, headers=BROWSER)
        assert (asked.status_code, sent.status_code) == (403, 403), role
    assert await state_of(conn, job_id) == "failed"
    denied = await rows(conn, "SELECT DISTINCT actor, action FROM holdfast.audit WHERE outcome = 'denied' ORDER BY actor")
    assert denied == [(f"token:{role}", "jobs.retry") for role in ("autoscaler", "viewer", "worker")]


async def test_an_analyst_acts_on_its_own_jobs_only_as_the_api_decides(as_role: AsRole, conn: Any, app: FastAPI) -> None:
    analyst = await as_role("analyst")
    foreign = await add(conn)
    own = await add(conn)
    await conn.execute("UPDATE holdfast.jobs SET owner = 'token:analyst' WHERE id = %s", [own])

    for job_id in (foreign, own):
        await send(analyst, f"/console/act/job.cancel?job_id={job_id}&back=/console/jobs", reason="not needed")

    assert (await state_of(conn, foreign), await state_of(conn, own)) == ("pending", "cancelled")
    denied = await rows(conn, "SELECT action, object FROM holdfast.audit WHERE outcome = 'denied'")
    assert denied == [("jobs.cancel", f"job/{foreign}")]


@pytest.mark.parametrize(
    "back", ["https://elsewhere.example/", "//elsewhere.example", "/api/jobs", "/console\\@elsewhere.example"]
)
async def test_an_action_leads_back_to_this_console_only(ops: Client, conn: Any, back: str) -> None:
    job_id = await failed_job(conn)

    answer = await send(ops, f"/console/act/job.retry?job_id={job_id}&back={quote(back, safe='')}", reason="x")

    assert answer.headers["Location"] == f"/console/jobs/{job_id}"


async def test_stale_jobs_are_recovered_and_the_old_attempt_is_fenced(ops: Client, conn: Any) -> None:
    claim = await hold(conn)
    await silence(conn, claim)

    await send(ops, f"/console/act/job.recover?job_id={claim.id}", reason="the node is gone")

    assert (await job(conn, claim.id)).state == "pending"
    assert (await job(conn, claim.id)).attempt_id != claim.attempt_id


# ---------------------------------------------------------------------------------------------------------------------
# Many jobs
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_bulk_action_shows_its_dry_run_and_applies_to_the_filter_that_the_page_shows(ops: Client, conn: Any) -> None:
    mine = [await failed_job(conn, kind="exports.run") for _ in range(3)]
    await failed_job(conn, kind="other")
    address = "/console/bulk?action=retry&f=state:failed kind:exports.run"

    asked = (await ops.get(address)).text
    answer = await send(ops, address, to="/console/bulk", reason="the table is back")

    assert "<b>3</b> jobs match" in asked
    assert "state:failed kind:exports.run" in asked
    assert all(f"/console/jobs/{one}" in asked for one in mine)
    assert answer.status_code == 303
    payload = await value(conn, "SELECT payload FROM holdfast.jobs WHERE kind = 'holdfast.bulk'")
    assert payload["filter"] == {"state": "failed", "kind": "exports.run"}
    assert (payload["matched"], payload["reason"], payload["actor"]) == (3, "the table is back", "token:ops")
    progress = (await ops.get(answer.headers["Location"])).text
    assert "Started: retry for 3 jobs" in progress


async def test_a_selection_is_a_filter_that_the_page_shows_and_only_its_jobs_change(ops: Client, conn: Any) -> None:
    chosen = [await failed_job(conn, kind="exports.run"), await failed_job(conn, kind="csv.ingest")]
    other, waits = await failed_job(conn, kind="exports.run"), await add(conn)
    page = (await ops.get("/console/jobs")).text
    assert page.count('type="checkbox" name="job"') == 4
    query = "&".join(["action=retry", *(f"job={one}" for one in (*chosen, waits))])

    asked = (await ops.get(f"/console/bulk?{query}")).text
    answer = await send(ops, f"/console/bulk?{query}", to="/console/bulk", reason="chosen by hand")

    assert "Of 3 selected jobs, <b>2</b> jobs match" in asked
    assert f"id:{chosen[0]},{chosen[1]},{waits}" in asked
    assert re.search(r"exports\.run</td><td class=\"num\">1<", asked)
    assert f"/console/jobs/{other}" not in asked
    assert answer.status_code == 303
    payload = await value(conn, "SELECT payload FROM holdfast.jobs WHERE kind = 'holdfast.bulk'")
    tally = Tally()
    await run_batch(conn, BulkAction("retry"), payload["filter"], tally, newest=payload["newest"], actor="a", reason="r")
    assert [await state_of(conn, one) for one in (*chosen, other, waits)] == ["pending", "pending", "failed", "pending"]
    assert tally.done == 2


@pytest.mark.parametrize("ids", ["0", "-1", "x", "7,", "7,,9", "9" * 19, ",".join(["7"] * 501)])
async def test_a_selection_that_is_not_made_of_ids_is_refused(ops: Client, ids: str) -> None:
    answer = await ops.get("/console/bulk", params={"action": "retry", "f": f"id:{ids}"})
    over_http = await ops.post(
        "/api/jobs/bulk", json={"action": "retry", "filter": f"ids:{ids}", "reason": "x"}, headers=BROWSER
    )

    assert (answer.status_code, over_http.status_code) == (422, 422)
    assert "numbers of jobs with commas" in answer.text


async def test_the_job_of_a_bulk_action_shows_what_it_changed_and_what_it_could_not(ops: Client, conn: Any) -> None:
    failures = [{"job_id": 7, "why": "job 7 is running"}]
    claim = await hold(
        conn,
        "holdfast.bulk",
        payload={"action": "retry", "filter": {"ids": [7, 9]}, "matched": 2, "newest": 9, "actor": "a", "reason": "r"},
    )
    await end(conn, claim, Done({"done": 1, "failed": 1, "failures": failures}))

    text = (await ops.get(f"/console/jobs/{claim.id}")).text.partition('id="operation"')[2]

    assert "ids:7,9" in text
    assert "<dt>Changed</dt><dd>1</dd>" in text
    assert "job 7 is running" in text


async def test_a_bulk_action_is_refused_if_more_jobs_match_than_the_page_showed(ops: Client, conn: Any) -> None:
    await failed_job(conn)
    hidden = await fields_of(ops, "/console/bulk?action=retry&f=state:failed")
    await failed_job(conn)

    answer = await ops.post("/console/bulk", data={**hidden, "reason": "x"}, headers=BROWSER)

    assert answer.status_code == 409
    assert "2 jobs match now, 1 were expected" in answer.text
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE kind = 'holdfast.bulk'") == 0


async def test_many_jobs_must_be_confirmed_by_typing_their_number(ops: Client, conn: Any) -> None:
    await conn.execute("INSERT INTO holdfast.jobs (kind, queue) SELECT 'k', 'default' FROM generate_series(1, 150)")
    address = "/console/bulk?action=cancel&f=state:pending"

    untyped = await send(ops, address, to="/console/bulk", reason="x", typed="15")
    typed = await send(ops, address, to="/console/bulk", reason="x", typed="150")

    assert (untyped.status_code, typed.status_code) == (422, 303)
    assert "Type 150 to confirm" in untyped.text


async def test_a_bulk_action_needs_a_filter_and_refuses_a_search(ops: Client, conn: Any) -> None:
    await failed_job(conn)

    for text in ("", "broke"):
        answer = await ops.get("/console/bulk", params={"action": "retry", "f": text})
        assert answer.status_code == 422, text
        assert "filter" in answer.text
