"""The console pages of graphs: Cypher on a real graph server as table, JSON, drawing and file; lists; buttons with a reason.

The pool of the app has one connection: a page that kept it while it asks the API would wait for itself.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from api_factories import GENEROUS
from export_factories import TablesEngine, exports
from factories import publish_kinds, rows, state_of, value
from graph_factories import finish_exports, get, new_instance, running_instance, until_status, worker
from holdfast import catalog
from holdfast.api.app import make_app
from holdfast.api.auth import create_token
from holdfast.api.policy import Role
from holdfast.api.sessions import SESSION, session_of_token
from holdfast.apps.loops import ScheduledLoops
from holdfast.console.served import ServedConsole
from holdfast.database.pool import pool
from holdfast.services.graphs.pages import algorithms, query
from holdfast.services.graphs.pages.algorithm_form import fields_of, key_of, request_of
from holdfast.services.graphs.pages.network import MOST_NODES, collect, draw
from holdfast.services.graphs.runtimes.local.runtime import LocalRuntime
from holdfast.services.graphs.server.algorithms.catalog import ALGORITHMS
from holdfast.services.graphs.setup import Graphs
from workers import until

Client = httpx2.AsyncClient
OWNS = "MATCH (c:Customer)-[o:OWNS]->(a:Account) WHERE c.id IN [7, 8] RETURN c, o, a ORDER BY c.id"
SCRIPT = "<script>alert('x')</script>"


@pytest.fixture
async def app(database: str, here: Graphs, tmp_path: Path) -> AsyncIterator[FastAPI]:
    publish_kinds(database)
    made = make_app(
        pool(database, most=1),
        GENEROUS,
        loops=ScheduledLoops(),
        nouns=catalog.nouns(),
        services={"exports": exports(TablesEngine(), root=str(tmp_path / "snapshots")), "graphs": here},
        console=ServedConsole(catalog.console_parts(), {}),
    )
    async with made.router.lifespan_context(made):
        yield made


@pytest.fixture
async def browser(app: FastAPI, conn: Any) -> AsyncIterator[Client]:
    """A client of `ops` that is signed in by cookie, as browsers are."""
    view, _ = await create_token(conn, "ops", Role.OPS, by="test")
    cookies = {SESSION: session_of_token(app.state.plane.cursor_key, view.id)}
    transport = httpx2.ASGITransport(app, raise_app_exceptions=True)
    async with Client(transport=transport, base_url="http://plane", cookies=cookies) as made:
        yield made


async def _has_ended(conn: Any, job_id: int) -> bool:
    return await state_of(conn, job_id) == "completed"


class TestQueries:
    @pytest.fixture
    async def runtime(self, tmp_path: Path) -> Any:
        """The local runtime as it is installed: it starts `holdfast graph-server`."""
        pytest.importorskip("ladybug")
        made = LocalRuntime(tmp_path / "graphs")
        yield made
        for instance_id in made.folders.instances():
            assert await made.remove(instance_id)
        await made.close()

    @pytest.mark.more
    async def test_a_result_is_a_table_json_a_drawing_and_a_file_for_its_owner_and_refused_to_others(
        self, analyst: Client, as_role: Any, conn: Any, database: str, mapping_id: int
    ) -> None:
        async with worker(database):
            made = (await analyst.post("/api/instances", json={"name": "bank", "mapping_id": mapping_id})).json()["data"]
            await finish_exports(conn, made["snapshot_id"])
            await until_status(conn, made["id"], "running")
            await self._run(analyst, f"/console/graphs/{made['id']}/algorithms", conn)
        await self._refused_runs(analyst, await as_role("viewer"), f"/console/graphs/{made['id']}/algorithms", conn)
        page = f"/console/graphs/{made['id']}/query"

        await self._forms(analyst, page)
        await self._expansion(analyst, page)
        await self._files(analyst, page)
        await self._refusals(analyst, page)
        await self._foreign(await as_role("analyst", "someone else"), await as_role("viewer"), page, conn)
        shown = (await analyst.get(f"/console/graphs/{made['id']}")).text
        assert all(said in shown for said in ("healthy", "Progress of OWNS", "graph_loaded", ">started<"))

    async def _send(self, analyst: Client, page: str, algorithm: str, **fields: str) -> httpx2.Response:
        """Fill in the form of an algorithm and send it."""
        form = (await analyst.get(page, params={"algorithm": algorithm})).text
        (csrf,) = set(re.findall(r'name="csrf" value="(\w+)"', form.split('class="confirm"')[1]))
        return await analyst.post(
            page, data={"csrf": csrf, "algorithm": algorithm, **fields}, headers={"Origin": "http://plane"}
        )

    async def _run(self, analyst: Client, page: str, conn: Any) -> None:
        """The job is followed by the page without a script, and its first rows are shown when it has ended."""
        sent = await self._send(analyst, page, "degree", direction="out", node_labels="Customer, Account", edge_types="OWNS")
        address = sent.headers["Location"]
        job_id = int(address.rpartition("run=")[2])
        started = (await analyst.get(address)).text
        await until(lambda: _has_ended(conn, job_id))
        done = (await analyst.get(address)).text

        asked = await value(conn, "SELECT payload FROM holdfast.jobs WHERE id = %s", job_id)
        assert (asked["algorithm"], asked["asked"]["parameters"]) == ("degree", {"direction": "out"})
        assert asked["asked"]["node_labels"] == ["Customer", "Account"]
        assert f"degree was started as job {job_id}" in started
        assert "<option selected>out</option>" in done, "the form keeps its values"
        shown = re.findall(r'<td class="wrap">(\w+)</td><td class="num">(\w+)</td><td class="num">([\d.]+)</td>', done)
        assert len(shown) == algorithms.TOP_ROWS
        assert shown[0][0] == "Customer", "the highest first"
        assert f'run={job_id}">degree' in done, "and in the list of runs"
        assert " data-live" not in done.split('<section class="card" id="run"')[1].split(">")[0]
        fresh = (await analyst.get(address, headers={"X-Fragment": "1"})).text
        await conn.execute("UPDATE holdfast.jobs SET finished_at = now() - interval '2 minutes' WHERE id = %s", [job_id])
        old = (await analyst.get(address, headers={"X-Fragment": "1"})).text
        assert [one.count('class="num">Customer') + one.count('<td class="wrap">Customer') > 0 for one in (fresh, old)] == [
            True,
            False,
        ]
        assert (await analyst.get(page, params={"run": asked["instance_id"] + 10_000})).status_code == 404
        await conn.execute("UPDATE holdfast.jobs SET payload = payload || '{\"instance_id\": 0}' WHERE id = %s", [job_id])
        assert (await analyst.get(address)).status_code == 404, "a run on another graph"

    async def _refused_runs(self, analyst: Client, viewer: Client, page: str, conn: Any) -> None:
        """No worker runs now: the job of the first run waits, and holds the graph."""
        for fields, said in (({"damping": "a lot"}, "must be a number from 0 to 1"), ({"node_labels": "Nobody"}, "Nobody")):
            refused = await self._send(analyst, page, "pagerank", **fields)
            text = (await analyst.get(refused.headers["Location"])).text.split('class="confirm"')[1]
            assert said in unescape(re.findall(r'class="note refused" role="alert">(.*?)</div>', text, re.DOTALL)[0])
            assert all(f'value="{one}"' in text for one in fields.values())
        first = await self._send(analyst, page, "wcc")
        job_id = int(first.headers["Location"].rpartition("run=")[2])
        second = await self._send(analyst, page, "scc")
        text = (await analyst.get(second.headers["Location"])).text.split('class="confirm"')[1]
        assert f"Job {job_id} (wcc) of token:analyst runs on graph instance" in text
        waiting = (await analyst.get(first.headers["Location"])).text.split('id="run" data-live')[1]
        assert "The job waits for a worker." in waiting
        assert f"/console/act/job.cancel?job_id={job_id}" in waiting
        foreign = await analyst.post(page, data={"algorithm": "wcc"}, headers={"Origin": "http://plane"})
        by_viewer = await viewer.post(page, data={"algorithm": "wcc"}, headers={"Origin": "http://plane"})
        assert (foreign.status_code, by_viewer.status_code, (await viewer.get(page)).status_code) == (403, 403, 403)
        assert (await analyst.get(page, params={"algorithm": "magic"})).status_code == 422
        other = await conn.execute("INSERT INTO holdfast.jobs (kind, queue) VALUES ('other', 'default') RETURNING id")
        assert (await analyst.get(page, params={"run": (await other.fetchone())[0]})).status_code == 404

    async def _forms(self, analyst: Client, page: str) -> None:
        text = "RETURN 1 AS n, 9007199254740993 AS big, NULL AS nothing, $$ AS text".replace("$$", f'"{SCRIPT}"')
        table = (await analyst.get(page, params={"q": text})).text
        as_json = (await analyst.get(page, params={"q": text, "as": "json"})).text
        capped = (await analyst.get(page, params={"q": "UNWIND range(1, 500) AS n RETURN n"})).text

        for answer in (table, as_json):
            assert SCRIPT not in answer
            assert "&lt;script&gt;alert(" in answer
            assert "9007199254740993" in answer
        assert '<span class="none">null</span>' in table
        assert json.loads(unescape(re.findall(r"<pre[^>]*>(.*?)</pre>", as_json, re.DOTALL)[0]))[0]["text"] == SCRIPT
        assert capped.count("<tr><td") == query.SHOWN_ROWS
        assert "200 rows, cut off: there are more" in capped

    async def _expansion(self, analyst: Client, page: str) -> None:
        """A click on a node adds its neighbours; a second click removes them."""
        drawn = (await analyst.get(page, params={"q": OWNS, "as": "graph"})).text
        assert drawn.count("<circle") == 4
        assert drawn.count('marker-end="url(#arrow)"') == 2
        assert "customer 7" in drawn
        links = {
            unescape(text): unescape(href)
            for href, text in re.findall(r'<a href="([^"]+)"><g class="tone.*?<text[^>]*>(.*?)</text>', drawn, re.DOTALL)
        }
        opened = (await analyst.get(links["a8"])).text

        assert opened.count("<circle") > 4  # the other owners of account a8
        assert opened.count('<circle class="open"') == 1
        (close,) = re.findall(r'<a href="([^"]+)"><g class="tone \w+"><title>[^<]*</title><circle class="open"', opened)
        assert "expand" not in close

    async def _files(self, analyst: Client, page: str) -> None:
        as_csv = await analyst.get(page, params={"q": OWNS, "file": "csv"})
        as_json = await analyst.get(page, params={"q": OWNS, "file": "json"})

        assert as_csv.headers["Content-Disposition"].endswith('.csv"')
        assert as_csv.headers["Content-Type"].startswith("text/csv")
        lines = list(csv.reader(io.StringIO(as_csv.text)))
        assert (lines[0], len(lines)) == (["c", "o", "a"], 3)
        assert json.loads(lines[1][0])["name"] == "customer 7"
        assert [row["c"]["id"] for row in as_json.json()] == [7, 8]

    async def _refusals(self, analyst: Client, page: str) -> None:
        """Next to the form, with the statement still in it."""
        for text, said in (
            ("MATCH (n:Nobody) RETURN n", "Nobody"),
            ("MATCH (n) DETACH DELETE n", "Change the mapping"),
            ("RETURN '" + "x" * 4_000 + "'", "4,009 characters"),
        ):
            answer = await analyst.get(page, params={"q": text})
            assert answer.status_code == 200
            refusal = unescape(re.findall(r'id="refusal"[^>]*>(.*?)</p>', answer.text, re.DOTALL)[0])
            assert said in refusal, refusal
            assert text in unescape(answer.text)
        as_file = await analyst.get(page, params={"q": "MATCH (n:Nobody) RETURN n", "file": "csv"})
        assert 'id="refusal"' in as_file.text
        linked = await analyst.get(page, params={"q": "RETURN 'linked' AS x"}, headers={"Sec-Fetch-Site": "cross-site"})
        assert "came from another site" in linked.text
        assert 'id="result"' not in linked.text
        wrong = await analyst.get(page, params={"q": OWNS, "as": "graph", "expand": "0:1) OR true"})
        assert wrong.status_code == 422

    async def _foreign(self, stranger: Client, viewer: Client, page: str, conn: Any) -> None:
        for more in ({}, {"file": "csv"}, {"as": "graph", "expand": "0:1"}):
            answer = await stranger.get(page, params={"q": OWNS, **more})
            assert answer.status_code == 200
            assert "customer 7" not in answer.text
            assert "only to its own objects" in answer.text
        denied = "SELECT count(*) FROM holdfast.audit WHERE outcome = 'denied' AND actor = 'token:someone else'"
        assert await value(conn, denied) == 3
        assert (await viewer.get(page, params={"q": OWNS})).status_code == 403
        graph = (await viewer.get(page.removesuffix("/query"))).text
        assert "may not read logs" in graph
        assert "/console/act/" not in graph


async def test_a_query_of_a_graph_that_does_not_run_is_refused_next_to_the_form(
    analyst: Client, conn: Any, mapping_id: int
) -> None:
    instance_id = await new_instance(conn, mapping_id=mapping_id, name=SCRIPT, description=SCRIPT)

    page = (await analyst.get(f"/console/graphs/{instance_id}/query", params={"q": "RETURN 1"})).text
    graph = (await analyst.get(f"/console/graphs/{instance_id}")).text
    listed = (await analyst.get("/console/graphs", params={"search": "<script", "owner": "token:analyst"})).text

    assert "is waiting_for_snapshot. Wait until its status is running" in page
    assert "The snapshot is being exported: 0 %" in graph
    for text in (page, graph, listed):
        assert SCRIPT not in text
        assert "&lt;script&gt;" in text
    assert (await analyst.get("/console/graphs/999999/query")).status_code == 404


async def test_the_filter_of_the_list_is_in_the_address(analyst: Client, conn: Any, mapping_id: int) -> None:
    for name, owner in (("bank one", "token:analyst"), ("bank two", "token:other"), ("shop", "token:analyst")):
        await new_instance(conn, mapping_id=mapping_id, name=name, owner=owner)

    async def names(**given: str) -> list[str]:
        text = (await analyst.get("/console/graphs", params=given)).text
        return re.findall(r'href="/console/graphs/\d+">([^<]+)</a>', text)

    assert await names() == ["shop", "bank two", "bank one"]
    assert await names(search="bank") == ["bank two", "bank one"]
    assert await names(search="bank", owner="token:analyst", status="waiting_for_snapshot") == ["bank one"]
    assert await names(status="failed") == []
    assert (await analyst.get("/console/graphs", params={"status": "broken"})).status_code == 422


@pytest.mark.more
async def test_buttons_extend_suspend_resume_and_delete_with_a_reason_in_the_audit_log(
    browser: Client, conn: Any, database: str, mapping_id: int
) -> None:
    """The page of a deleted graph is gone, so its button leads to the list."""
    instance_id = await running_instance(conn, database, mapping_id, ttl="PT1H")
    page = f"/console/graphs/{instance_id}"

    async def press(name: str, **fields: str) -> httpx2.Response:
        (href,) = re.findall(rf'href="([^"]+/act/{name}\?[^"]+)"', (await browser.get(page)).text)
        asked = await browser.get(unescape(href))
        (token,) = set(re.findall(r'name="csrf" value="(\w+)"', asked.text))
        form = {"csrf": token, "reason": f"{name} for a test", **fields}
        return await browser.post(unescape(href), data=form, headers={"Origin": "http://plane"})

    async with worker(database):
        assert (await press("graph.extend", by="PT2H")).headers["Location"] == page
        assert (await get(conn, instance_id)).ttl == "PT3H"
        await press("graph.suspend")
        await until_status(conn, instance_id, "suspended")
        await press("graph.resume")
        await until_status(conn, instance_id, "running")
        deleted = await press("graph.delete")
        await until_status(conn, instance_id, None)

    assert deleted.headers["Location"] == "/console/graphs"
    audited = await rows(
        conn, "SELECT reason FROM holdfast.audit WHERE action = 'instances.change' AND outcome = 'done' ORDER BY id"
    )
    assert [reason for (reason,) in audited] == [
        f"graph.{name} for a test" for name in ("extend", "suspend", "resume", "delete")
    ]


def test_the_form_of_an_algorithm_makes_its_request() -> None:
    path, between = ALGORITHMS["shortest_path"], ALGORITHMS["betweenness"]
    given = {"source.label": "Person", "source.key": " 7 ", "target.label": "", "directed": "no", "weight": "amount"}

    assert request_of(path, given) == {
        "weight": "amount",
        "parameters": {"source": {"label": "Person", "key": 7}, "directed": False},
    }
    assert request_of(between, {"samples": "many", "seed": "3", "edge_types": "KNOWS, ,OWNS,"}) == {
        "edge_types": ["KNOWS", "OWNS"],
        "parameters": {"samples": "many", "seed": 3},
    }
    assert request_of(ALGORITHMS["wcc"], {"csrf": "x"}) == {}
    assert [key_of(text) for text in ("7", "-7", '"7"', "a7", "'", "٣")] == [7, -7, "7", "a7", "'", "٣"]
    for one in ALGORITHMS.values():
        names = [field.name for field in fields_of(one)]
        assert len(names) == len(set(names))
        assert request_of(one, {field.name: field.default for field in fields_of(one)}).get("parameters", {}) == {
            name: parameter.default for name, parameter in one.parameters.items() if parameter.default is not None
        }


def node(number: int, label: str = "Person", **properties: Any) -> dict[str, Any]:
    return {"_ID": {"table": 0, "offset": number}, "_LABEL": label, **properties}


def edge(number: int, start: int, end: int) -> dict[str, Any]:
    ends = {"_SRC": {"table": 0, "offset": start}, "_DST": {"table": 0, "offset": end}}
    return {"_ID": {"table": 9, "offset": number}, "_LABEL": "KNOWS", **ends}


def test_a_drawing_has_every_node_and_edge_once_within_its_size_and_is_the_same_each_time() -> None:
    path = {"_NODES": [node(1, name="Ada"), node(2)], "_RELS": [edge(1, 1, 2)]}
    rows = [[path, 5], [[node(1), node(3)], edge(2, 2, 1)], [edge(3, 3, 3), edge(4, 3, 77)]]

    drawn = draw(collect(rows))

    assert drawn == draw(collect(rows))
    assert drawn is not None
    assert [dot.key for dot in drawn.dots] == ["0:1", "0:2", "0:3", "0:77"]
    assert (len(drawn.lines), len({line.path for line in drawn.lines})) == (4, 4)
    assert [(label, count) for label, _, count in drawn.legend] == [("Person", 3), ("not in the result", 1)]
    assert drawn.dots[0].text == "Ada"
    assert all(0 < dot.x < drawn.width and 0 < dot.y < drawn.height for dot in drawn.dots)
    assert len({(dot.x, dot.y) for dot in drawn.dots}) == 4
    assert draw(collect([[1, "x", {"a": [None]}]])) is None


def test_a_drawing_has_a_limit_and_says_how_many_nodes_it_leaves_out() -> None:
    many = [[node(number)] for number in range(MOST_NODES + 40)]

    drawn = draw(collect([*many, [edge(1, 0, MOST_NODES + 1)]]))

    assert drawn is not None
    assert (len(drawn.dots), drawn.hidden, drawn.lines) == (MOST_NODES, 40, [])


def test_a_click_on_an_eleventh_node_closes_the_oldest() -> None:
    ten = [f"0:{number}" for number in range(10)]

    assert query.toggled(ten, "0:99") == [*ten[1:], "0:99"]
    assert query.toggled(["0:1", "0:2"], "0:1") == ["0:2"]
