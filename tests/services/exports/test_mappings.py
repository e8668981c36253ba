"""Mappings over HTTP: every mistake at once, versions that never change, and who may do what."""

from __future__ import annotations

from typing import Any

import httpx2
import psycopg
import pytest

from export_factories import ACCOUNT, CUSTOMER, OWNS, TablesEngine, exports, mapping, wrong
from factories import value
from holdfast.engines.port import EngineTimeout, Query
from holdfast.services.exports.setup import Exports

Client = httpx2.AsyncClient


async def make(client: Client, **changes: Any) -> dict[str, Any]:
    answer = await client.post("/api/mappings", json=mapping(**changes))
    assert answer.status_code == 201, answer.text
    data: dict[str, Any] = answer.json()["data"]
    return data


async def test_a_mapping_is_made_with_its_first_version_and_belongs_to_whoever_made_it(analyst: Client) -> None:
    made = await make(analyst)
    shown = (await analyst.get(f"/api/mappings/{made['id']}")).json()["data"]

    assert (shown["owner"], shown["version"], shown["engine"]) == ("token:analyst", 1, "duckdb")
    assert (shown["nodes"], shown["edges"]) == ([CUSTOMER, ACCOUNT], [OWNS])
    assert shown["change_description"] is None


async def test_every_mistake_is_named_at_once_with_its_place_and_its_remedy(analyst: Client, conn: Any) -> None:
    answer = await analyst.post(
        "/api/mappings",
        json=mapping(
            nodes=[
                {**CUSTOMER, "label": "1st", "primary_key": {"name": "id", "type": "DOUBLE"}},
                {**ACCOUNT, "label": "Match", "properties": [{"name": "NUMBER", "type": "STRING"}]},
                {**ACCOUNT, "label": "match", "properties": [{"name": "_system_x", "type": "MONEY"}]},
            ],
            edges=[{**OWNS, "type": "owns", "from_node": "Nobody", "to_key": "customer_id"}],
        ),
    )

    found = wrong(answer)
    assert set(found) == {
        "/nodes/0/label",
        "/nodes/0/primary_key/type",
        "/nodes/1/label",
        "/nodes/1/properties/0/name",
        "/nodes/2/label",
        "/nodes/2/properties/0/name",
        "/nodes/2/properties/0/type",
        "/edges/0/type",
        "/edges/0/from_node",
        "/edges/0/to_node",
        "/edges/0/to_key",
    }
    assert "use one of: STRING, INT64, DATE, UUID" in found["/nodes/0/primary_key/type"]
    assert answer.json()["code"] == "VALIDATION_FAILED"
    assert await value(conn, "SELECT count(*) FROM holdfast.mappings") == 0


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT 1; SELECT 2", "exactly one statement"),
        ("DELETE FROM customer", "must be a SELECT"),
        ("WITH gone AS (DELETE FROM customer RETURNING *) SELECT * FROM gone", "may only read"),
        ("SELECT * INTO copy FROM customer", "remove INTO"),
        ("SELECT * FROM customer FOR UPDATE", "may only read"),
        ("SELECT * FROM read_csv('/etc/passwd')", "reads a file"),
        ("SELECT (SELECT content FROM read_text('/etc/passwd'))", "reads a file"),
        ("SELECT * FROM '/etc/passwd.csv'", "reads a file"),
        ("SELECT getenv('HOME') AS id", "does more than compute"),
        ("SELECT * FROM query('DROP TABLE customer')", "is not allowed in FROM"),
        ("SELECT id FROM customer WHERE id = ?", "placeholder"),
        ("COPY customer TO '/tmp/x'", "must be a SELECT"),
        ("ATTACH '/tmp/x'", "must be a SELECT"),
        ("SELECT FROM WHERE", "cannot be parsed"),
    ],
)
async def test_sql_is_exactly_one_select_over_tables(analyst: Client, engine: TablesEngine, sql: str, says: str) -> None:
    found = wrong(await analyst.post("/api/mappings", json=mapping(nodes=[{**CUSTOMER, "sql": sql}, ACCOUNT])))

    assert list(found) == ["/nodes/0/sql"]
    assert says in found["/nodes/0/sql"]
    assert sql not in [query.sql for query in engine.asked], "the engine is not asked about what is no SELECT"


async def test_a_node_and_an_edge_do_not_share_a_name(analyst: Client) -> None:
    nodes = [CUSTOMER, {**ACCOUNT, "label": "OWNS"}]

    found = wrong(await analyst.post("/api/mappings", json=mapping(nodes=nodes, edges=[{**OWNS, "to_node": "OWNS"}])))

    assert found == {"/edges/0/type": "'OWNS' is the label of a node already; rename one of them"}


async def test_rules_parser_and_engine_speak_at_once_in_the_order_of_the_mapping(
    analyst: Client, engine: TablesEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrongs = mapping(
        nodes=[
            {**CUSTOMER, "sql": "SELECT id, name FROM customer"},
            {**ACCOUNT, "primary_key": {"name": "number", "type": "MONEY"}, "sql": "SELECT 1; SELECT 2"},
            {**ACCOUNT, "label": "Twice", "sql": "SELECT 1; SELECT 2"},
        ],
        edges=[{**OWNS, "sql": "SELECT customer_id, account_number FROM owns"}, {**OWNS, "type": "HAS", "from_node": "Client"}],
    )

    assert list(wrong(await analyst.post("/api/mappings", json=wrongs))) == [
        "/nodes/0/sql#age",
        "/nodes/1/primary_key/type",
        "/nodes/2/sql",
        "/edges/0/sql#since",
        "/edges/1/from_node",
    ]

    async def silent(query: Query) -> Any:
        raise EngineTimeout("no answer came")

    monkeypatch.setattr(engine, "describe", silent)
    assert list(wrong(await analyst.post("/api/mappings", json=wrongs))) == [
        "/nodes/1/primary_key/type",
        "/nodes/2/sql",
        "/edges/1/from_node",
    ], "what is known is said, whether or not the engine answers"


async def test_the_engine_is_asked_for_columns_and_types_before_anything_is_stored(analyst: Client, conn: Any) -> None:
    answer = await analyst.post(
        "/api/mappings",
        json=mapping(
            nodes=[
                {**CUSTOMER, "sql": "SELECT name, id, age, 1 AS more FROM customer"},
                {**ACCOUNT, "sql": "SELECT number, balance FROM account"},
                {**ACCOUNT, "label": "Lost", "sql": "SELECT number, balance FROM nowhere"},
            ]
        ),
    )

    found = wrong(answer)
    assert set(found) == {
        "/nodes/0/sql#id",
        "/nodes/0/sql#name",
        "/nodes/0/sql#more",
        "/nodes/1/sql#balance",
        "/nodes/2/sql",
    }
    assert "make it column 1" in found["/nodes/0/sql#id"]
    assert "CAST(balance AS DOUBLE)" in found["/nodes/1/sql#balance"]
    assert "nowhere" in found["/nodes/2/sql"]
    assert await value(conn, "SELECT count(*) FROM holdfast.mappings") == 0


async def test_a_check_says_the_same_and_stores_nothing(analyst: Client, conn: Any) -> None:
    good = await analyst.post("/api/mappings/check", json=mapping())
    bad = await analyst.post("/api/mappings/check", json=mapping(edges=[{**OWNS, "sql": "SELECT 1"}]))

    assert (good.status_code, good.json()["data"]["valid"]) == (200, True)
    assert set(wrong(bad)) == {
        "/edges/0/sql#customer_id",
        "/edges/0/sql#account_number",
        "/edges/0/sql#since",
        "/edges/0/sql#1",
    }
    assert await value(conn, "SELECT count(*) FROM holdfast.mappings") == 0


async def test_only_definitions_that_differ_make_a_version_and_a_missing_list_stays_an_empty_one_removes(
    analyst: Client,
) -> None:
    made = await make(analyst)
    here = f"/api/mappings/{made['id']}"

    renamed = (await analyst.put(here, json={"change_description": "a better name", "name": "banking"})).json()["data"]
    same = (await analyst.put(here, json={"change_description": "nothing new", "nodes": [CUSTOMER, ACCOUNT]})).json()["data"]
    assert (renamed["name"], renamed["version"], same["version"]) == ("banking", 1, 1)

    without = (await analyst.put(here, json={"change_description": "no edges", "edges": []})).json()["data"]
    assert (without["version"], without["nodes"], without["edges"]) == (2, [CUSTOMER, ACCOUNT], [])
    assert [one["version"] for one in (await analyst.get(f"{here}/versions")).json()["data"]] == [2, 1]
    assert (await analyst.get(f"{here}/versions/1")).json()["data"]["edges"] == [OWNS], "the first is what it was"
    assert (await analyst.put(here, json={"edges": []})).status_code == 422, "a change says why"


async def test_a_change_is_refused_when_somebody_else_was_first(analyst: Client, ops: Client) -> None:
    made = await make(analyst)
    here = f"/api/mappings/{made['id']}"
    tag = (await analyst.get(here)).headers["ETag"]
    assert (await ops.put(here, json={"change_description": "first", "edges": []})).status_code == 200

    late = await analyst.put(here, json={"change_description": "late", "name": "mine"}, headers={"If-Match": tag})

    assert (late.status_code, late.json()["code"]) == (412, "CHANGED_MEANWHILE")


async def test_two_versions_are_compared_by_nodes_edges_and_their_parts(analyst: Client) -> None:
    made = await make(analyst)
    here = f"/api/mappings/{made['id']}"
    older = {**CUSTOMER, "sql": "SELECT id, name, age FROM customer WHERE age > 3"}
    await analyst.put(here, json={"change_description": "only the old ones", "nodes": [older, ACCOUNT], "edges": []})

    found = (await analyst.get(f"{here}/versions/1/diff/2")).json()["data"]

    assert found["summary"]["nodes_modified"] == 1
    assert found["summary"]["edges_removed"] == 1
    (node,) = found["nodes"]
    assert (node["label"], node["change"], node["fields_changed"]) == ("Customer", "modified", ["sql"])
    assert (node["from"]["sql"], node["to"]["sql"]) == (CUSTOMER["sql"], older["sql"])
    assert (await analyst.get(f"{here}/versions/1/diff/1")).status_code == 422


async def test_a_copy_belongs_to_whoever_made_it_and_begins_with_one_version(analyst: Client, as_role: Any) -> None:
    made = await make(analyst)
    other = await as_role("analyst", "bob")

    copied = (await other.post(f"/api/mappings/{made['id']}/copy", json={"name": "mine"})).json()["data"]

    assert (copied["owner"], copied["version"], copied["nodes"]) == ("token:bob", 1, made["nodes"])
    assert (await other.delete(f"/api/mappings/{copied['id']}")).status_code == 200
    assert (await other.delete(f"/api/mappings/{made['id']}")).status_code == 403, "what is another's stays"
    assert (await analyst.post(f"/api/mappings/{made['id']}/copy", json={"name": "bank"})).json()["code"] == "ALREADY_EXISTS"


async def test_how_long_it_lives_is_a_duration(analyst: Client, viewer: Client) -> None:
    made = await make(analyst)
    here = f"/api/mappings/{made['id']}/lifecycle"

    set_ = await analyst.put(here, json={"ttl": "P7D", "inactivity_timeout": "PT12H"})

    assert (set_.json()["data"]["ttl"], set_.json()["data"]["inactivity_timeout"]) == ("P7D", "PT12H")
    assert (await analyst.put(here, json={"ttl": "a week"})).status_code == 422
    assert (await viewer.put(here, json={"ttl": "P1D"})).status_code == 403


async def test_lists_are_searched_and_come_in_pages(analyst: Client, viewer: Client) -> None:
    for number in range(3):
        await make(analyst, name=f"bank {number}", description="accounts" if number else "people")

    first = (await viewer.get("/api/mappings", params={"limit": 2})).json()
    rest = await viewer.get("/api/mappings", params={"limit": 2, "cursor": first["page"]["next_cursor"]})

    assert [one["name"] for one in first["data"] + rest.json()["data"]] == ["bank 2", "bank 1", "bank 0"]
    found = (await viewer.get("/api/mappings", params={"search": "PEOPLE"})).json()["data"]
    assert [one["name"] for one in found] == ["bank 0"]


async def test_a_version_never_changes_even_for_somebody_with_psql(analyst: Client, conn: Any) -> None:
    made = await make(analyst)

    with pytest.raises(psycopg.errors.CheckViolation, match="make a new one"):
        await conn.execute("UPDATE holdfast.mapping_versions SET edges = '[]' WHERE mapping_id = %s", [made["id"]])


async def test_an_engine_that_does_not_answer_is_503_and_nothing_is_stored(
    analyst: Client, engine: TablesEngine, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asleep(query: Any) -> Any:
        raise EngineTimeout("the warehouse sleeps")

    monkeypatch.setattr(engine, "describe", asleep)
    answer = await analyst.post("/api/mappings", json=mapping())

    assert (answer.status_code, answer.json()["code"]) == (503, "ENGINE_UNAVAILABLE")
    assert await value(conn, "SELECT count(*) FROM holdfast.mappings") == 0


class TestWithAnEngineThatNeedsARole:
    @pytest.fixture
    def here(self, engine: TablesEngine) -> Exports:
        return exports(engine, need_role=["duckdb"])

    async def test_it_is_refused_at_the_door_without_one_and_asked_with_it(self, analyst: Client, engine: TablesEngine) -> None:
        """W-10, Q-03."""
        without = await analyst.post("/api/mappings", json=mapping())
        assert (without.status_code, without.json()["code"]) == (422, "MISSING_USE_CASE")
        assert without.json()["detail"] == "Missing use case ID (X-Use-Case-Id header required)"

        with_one = await analyst.post("/api/mappings", json=mapping(), headers={"X-Use-Case-Id": "risk_42"})
        assert with_one.status_code == 201
        assert {query.role for query in engine.asked} == {"risk_42"}
