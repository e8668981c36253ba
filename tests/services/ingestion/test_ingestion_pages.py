"""The console pages of ingestion, on jobs that really ran: what they show, and the upload without a script."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from ingestion_factories import FACTORS, FLIGHTS, UNITS, YEAR, Back, Client, entries_of

from factories import value
from holdfast.api.policy import Role
from holdfast.services.ingestion.pages.upload_form import LARGEST

INJECTION = "<script>alert(1)</script>"
BAD = FLIGHTS + f'T4,U1,2024-01-01,"{INJECTION}",10,\n' + "T5,U1,2024-01-01,economy,-4,\n"
UPLOAD = "/console/ingestion/upload"


async def csrf(client: Client) -> str:
    found = re.search(r'name="csrf" value="(\w+)"', (await client.get(UPLOAD)).text.partition("multipart")[2])
    assert found is not None
    return found[1]


async def send(client: Client, content: str | None = FLIGHTS, name: str = "rows.csv", **fields: str) -> Any:
    """Send the form as a browser does: the fields first, then the file."""
    given = {"csrf": await csrf(client), "what": "entries", "type": "travel/flights", "year": str(YEAR), "mode": "append"}
    files = {"file": (name if content is not None else "", (content or "").encode())}
    return await client.post(UPLOAD, data=given | fields, files=files)


async def refusal(client: Client, answer: Any) -> str:
    """What the form says after a refusal."""
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"].startswith(f"{UPLOAD}?")
    text = (await client.get(answer.headers["location"])).text.partition("<form")[2]
    assert "note refused" in text
    return html.unescape(re.search(r'class="note refused">(.*?)</div>', text, re.DOTALL)[1])  # type: ignore[index]


async def test_a_job_shows_its_counts_dialect_bad_rows_and_pipeline_and_its_text_stays_text(back: Back, viewer: Client) -> None:
    """Every value is of a file: markup in it is shown as it is."""
    await back.provision()
    await back.factors()
    run = await back.ingest(BAD.replace(",", ";"), mode="upsert")

    text = (await viewer.get(f"/console/ingestion/{run.job_id}")).text
    overview = (await viewer.get("/console/ingestion")).text

    assert run.result == "WARNING"
    assert "<script>alert" not in text + overview
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    for said in ("semicolon", "utf-8", "emission_recalc", "aggregation", "WARNING", "distance", "-4", "travel / flights"):
        assert said in text, said
    assert re.search(r"Bad rows</dt><dd>2<", text)
    assert f"/console/ingestion/{run.job_id}" in overview
    assert "up to date" in overview
    assert "Statistics include every change" in overview
    download = re.search(r'href="([^"]+/bad-rows)" download', text)
    assert download is not None
    assert INJECTION in (await viewer.get(download[1])).text


async def test_what_is_due_and_stale_is_on_the_overview(back: Back, viewer: Client, conn: Any) -> None:
    await back.provision()
    await back.factors()
    await back.ingest(FLIGHTS)
    await conn.execute(
        "UPDATE holdfast.emission_scopes SET changes = changes + 1, changed_at = changed_at - interval '2 hours'"
    )
    waiting = await back.dispatch(FLIGHTS, mode="replace")

    text = (await viewer.get("/console/ingestion")).text

    assert re.search(r'id="scopes".*> due</span>.*travel / flights', text, re.DOTALL)
    assert re.search(r'id="stale".*last aggregation too old</span>.*travel / flights', text, re.DOTALL)
    assert re.search(rf'id="active".*/console/pipelines/{waiting.pipeline_id}', text, re.DOTALL)
    assert "NOT STARTED" in text


async def test_pages_of_jobs_do_not_overlap_and_a_result_is_a_filter(back: Back, viewer: Client, conn: Any) -> None:
    await conn.execute(
        """INSERT INTO holdfast.ingestions (job_id, job_type, job_state, result)
           SELECT i, 'unit_sync', CASE WHEN i % 2 = 0 THEN 'completed' ELSE 'failed' END,
                  CASE WHEN i % 2 = 0 THEN 'SUCCESS' ELSE 'ERROR' END FROM generate_series(1, 70) i"""
    )

    seen: list[int] = []
    address = "/console/ingestion"
    while address:
        text = (await viewer.get(address)).text
        seen += [int(found) for found in re.findall(r'<a href="/console/ingestion/(\d+)"', text)]
        following = re.search(r'href="([^"]+)" rel="next"', text)
        address = html.unescape(following[1]) if following else ""
    errors = (await viewer.get("/console/ingestion?result=ERROR")).text
    wrong = await viewer.get("/console/ingestion?result=BROKEN")

    assert seen == list(range(70, 0, -1))
    assert not re.search(r'/console/ingestion/\d*[02468]"', errors)
    assert wrong.status_code == 422


# ---------------------------------------------------------------------------------------------------------------------
# Upload
# ---------------------------------------------------------------------------------------------------------------------


async def test_units_factors_and_entries_are_uploaded_without_a_script(back: Back, analyst: Client, conn: Any) -> None:
    """The form leads to the page of the job, which is the caller's."""
    for content, what in ((UNITS, "units"), (FACTORS, "factors"), (FLIGHTS, "entries")):
        answer = await send(analyst, content, what=what)
        assert answer.status_code == 303, answer.text
        assert "The file was uploaded" in (await analyst.get(answer.headers["location"])).text
        await back.harness.drain()

    text = (await analyst.get(answer.headers["location"])).text
    assert "SUCCESS" in text
    assert "rows.csv" in text
    assert len(await entries_of(conn)) == 3
    actors = await value(conn, "SELECT array_agg(DISTINCT actor) FROM holdfast.audit WHERE action LIKE 'ingestion.%'")
    assert actors == ["token:analyst"] or actors == ["analyst"], actors


async def test_a_dry_run_loads_nothing(back: Back, analyst: Client, conn: Any) -> None:
    await back.provision()

    answer = await send(analyst, dry_run="1")
    await back.harness.drain()

    assert "dry run" in (await analyst.get(answer.headers["location"])).text
    assert await entries_of(conn) == []


async def test_a_refused_job_keeps_the_file_and_the_form(back: Back, analyst: Client, conn: Any) -> None:
    """After the fix, the form is sent again without the file."""
    answer = await send(analyst, year="2031", mode="upsert")
    said = await refusal(analyst, answer)
    form = (await analyst.get(answer.headers["location"])).text
    file_id = re.search(r'name="file_id" value="(\d+)"', form)

    assert "2031" in said
    assert "units" in said
    assert '<option value="upsert" selected>' in form
    assert file_id is not None
    await back.provision(year=2031)
    again = await send(analyst, None, year="2031", mode="upsert", file_id=file_id[1])
    assert re.fullmatch(r"/console/ingestion/\d+", again.headers["location"])
    assert await value(conn, "SELECT count(*) FROM holdfast.ingestion_files WHERE uploaded_by <> 'test'") == 1


@pytest.mark.parametrize(
    ("content", "fields", "says"),
    [
        (None, {}, "Choose a file."),
        (FLIGHTS, {"year": "soon"}, "The year must be a number"),
        (FLIGHTS, {"what": "poems"}, "Choose what the file has"),
        (FLIGHTS, {"type": "flights"}, "Choose a data entry type"),
        (FLIGHTS, {"type": "travel/boats"}, "has no data entry type 'boats'"),
        (FLIGHTS, {"year": "1800"}, "year"),
        (FLIGHTS, {"mode": INJECTION}, "mode"),
        (None, {"file_id": "999999"}, "999999"),
    ],
)
async def test_a_mistake_is_named_next_to_the_form(
    back: Back, analyst: Client, content: str | None, fields: dict[str, str], says: str
) -> None:
    assert says in await refusal(analyst, await send(analyst, content, **fields))


async def test_a_file_that_is_too_large_is_refused_next_to_the_form(
    analyst: Client, app: FastAPI, back: Back, tmp_path: Path
) -> None:
    app.state.plane.services["ingestion"].largest_upload = 1000

    said = await refusal(analyst, await send(analyst, "x" * 1001))

    assert "the file has more than 1,000 bytes" in said.lower()
    assert [path for path in (tmp_path / "uploads").rglob("*") if path.is_file()] == []


async def test_only_the_form_of_this_session_is_accepted(back: Back, analyst: Client, as_role: Any, conn: Any) -> None:
    other = await csrf(await as_role("analyst", "mallory"))
    fields = {"what": "units", "year": "2024"}
    part = b"--b\r\nContent-Disposition: form-data; name="
    late = part + b'"file"; filename="f"\r\n\r\nx\r\n' + part + b'"csrf"\r\n\r\n%s\r\n--b--\r\n'
    multipart = {"Content-Type": "multipart/form-data; boundary=b"}

    answers = [
        await analyst.post(UPLOAD, data=fields, files={"file": ("f", b"x")}),
        await analyst.post(UPLOAD, data=fields | {"csrf": other}, files={"file": ("f", b"x")}),
        await analyst.post(UPLOAD, content=late % (await csrf(analyst)).encode(), headers=multipart),
        await analyst.post(UPLOAD, data=fields | {"csrf": await csrf(analyst)}),
        await analyst.post(UPLOAD, content=b"garbage", headers=multipart),
        await analyst.post(UPLOAD, content=late, headers={"Content-Type": "multipart/mixed; boundary=b"}),
        await analyst.post(UPLOAD, data={"a": "x" * (2 * LARGEST), "csrf": await csrf(analyst)}, files={"file": ("f", b"x")}),
        await analyst.post(UPLOAD, data=fields, files={"file": ("f", b"x")}, headers={"Origin": "https://elsewhere.example"}),
    ]

    assert [one.status_code for one in answers] == [403, 403, 403, 400, 400, 400, 413, 403]
    assert await value(conn, "SELECT count(*) FROM holdfast.ingestion_files") == 0


async def test_each_role_sees_its_pages_and_only_makers_upload(back: Back, as_role: Any) -> None:
    await back.provision()
    run = await back.dispatch(FLIGHTS)
    for role in Role:
        client = await as_role(role)
        reads = role in (Role.VIEWER, Role.ANALYST, Role.OPS, Role.ADMIN)
        makes = reads and role is not Role.VIEWER
        for path in ("ingestion", f"ingestion/{run.job_id}"):
            assert (await client.get(f"/console/{path}")).status_code == (200 if reads else 403), (role, path)
        assert (await client.get(UPLOAD)).status_code == (200 if makes else 403), role
        if reads:
            text = (await client.get("/console/ingestion")).text
            assert ("Upload a file" in text) is makes
            assert ("/console/act/ingestion.recalculate" in text) is makes
        else:
            assert (await client.post(UPLOAD, files={"file": ("f", b"x")})).status_code == 403


async def test_a_recalculation_is_started_by_its_button(back: Back, analyst: Client, conn: Any) -> None:
    action = "/console/act/ingestion.recalculate"
    token = re.search(r'name="csrf" value="(\w+)"', (await analyst.get(action)).text.partition('class="confirm"')[2])
    assert token is not None

    answer = await analyst.post(action, data={"csrf": token[1], "year": "2024", "module": "travel"})

    assert answer.status_code == 303, answer.text
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE kind LIKE 'ingestion.%recalc'") >= 1


async def test_without_a_data_model_the_form_says_how_to_create_it(analyst: Client) -> None:
    assert "holdfast ingest model apply" in (await analyst.get(UPLOAD)).text
