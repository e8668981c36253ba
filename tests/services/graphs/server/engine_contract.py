"""What every engine must do. `test_engine_contract.py` runs this file in a process of its own for each engine.

Two of the engines cannot be imported in one process. HOLDFAST_TEST_GRAPH_ENGINE names the engine.
"""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from graph_servers import column, edge, node, plan_of, ring, social, write
from holdfast.services.graphs.plan import LoadPlan
from holdfast.services.graphs.server.engines.port import EngineError, Interrupted, PoolFull, ReadOnlyDatabase
from holdfast.services.graphs.server.engines.select import engine_named
from holdfast.services.graphs.server.loading import LoadFailed, load
from holdfast.services.graphs.server.status import ServerStatus
from holdfast.stores.opening import StoreOptions

NAME = os.environ["HOLDFAST_TEST_GRAPH_ENGINE"]
POOL = 256 * 1024 * 1024
ENGINE = engine_named(NAME)


async def loaded(plan: dict[str, Any], folder: Path, pool: int = POOL) -> Path:
    status = ServerStatus()
    checked = LoadPlan.model_validate(plan)
    status.planned(checked)
    return await load(checked, ENGINE, folder, pool_bytes=pool, stores=StoreOptions(), status=status)


@pytest.fixture
async def people(tmp_path: Path) -> Any:
    """A small graph, open read-only."""
    database = ENGINE.open(await loaded(social(tmp_path / "files", NAME), tmp_path / "db"), pool_bytes=POOL, read_only=True)
    session = database.session()
    yield session
    session.close()
    database.close()


def values(session: Any, cypher: str, **parameters: Any) -> list[Any]:
    result = session.run(cypher, parameters)
    try:
        return [list(row.values()) for row in result.arrow(1000).to_pylist()]
    finally:
        result.close()


async def test_nodes_and_edges_are_loaded_and_found(people: Any):
    assert values(people, "MATCH (p:Person)-[:LIVES_IN]->(c:City) RETURN p.name, c.title ORDER BY p.id") == [
        ["Ada", "Bern"],
        ["Bob", "Bern"],
        ["Cy", "Basel"],
    ]
    assert values(people, "MATCH (p:Person {id: $id})-[k:KNOWS]->(o) RETURN k.weight, o.id ORDER BY o.id", id=3) == [
        [4.0, 1],
        [0.5, 4],
    ]


async def test_nodes_edges_and_paths_have_the_same_structure_in_every_engine(people: Any):
    ((person, knows, path),) = values(
        people, "MATCH (p:Person {id: 1})-[k:KNOWS]->(), q = (p)-[:KNOWS*1..1]->(:Person) RETURN p, k, q"
    )

    assert {"_ID", "_LABEL", "id", "name", "age"} == set(person)
    assert {"_ID", "_LABEL", "_SRC", "_DST", "weight"} == set(knows)
    assert {"_NODES", "_RELS"} == set(path)
    assert person["_LABEL"] == "Person"
    assert knows["_SRC"] == person["_ID"]


@pytest.mark.parametrize(
    "statement",
    ["CREATE (:Person {id: 9})", "MATCH (p:Person) SET p.age = 1.0", "MATCH (p:Person) DETACH DELETE p", "DROP TABLE KNOWS"],
)
async def test_a_database_that_is_open_read_only_refuses_writes(people: Any, statement: str):
    with pytest.raises(ReadOnlyDatabase):
        people.run(statement)

    assert values(people, "MATCH (p:Person) RETURN count(*)") == [[4]]


async def test_an_invalid_statement_is_an_error_and_the_session_goes_on(people: Any):
    for statement in ("MATCH (n:Nope) RETURN n", "not cypher", "RETURN 1/0", "MATCH (p:Person) RETURN p.nope"):
        with pytest.raises(EngineError):
            people.run(statement)

    assert values(people, "RETURN 1") == [[1]]


@pytest.fixture
async def tangle(tmp_path: Path) -> Any:
    """A graph with very many paths."""
    plan = ring(tmp_path / "files", 400, more=20, engine=NAME)
    database = ENGINE.open(await loaded(plan, tmp_path / "db"), pool_bytes=POOL, read_only=True)
    session = database.session()
    yield session
    session.close()
    database.close()


ENDLESS = "MATCH (a:N)-[:E*1..9]->(b:N) RETURN count(*)"


async def test_a_timeout_stops_the_statement(tangle: Any):
    began = time.thread_time()
    with pytest.raises(Interrupted):
        tangle.run(ENDLESS, seconds=0.1)

    assert values(tangle, "RETURN 1") == [[1]], "the session is free"
    assert time.thread_time() - began < 60


async def test_an_interrupt_from_another_thread_stops_the_statement(tangle: Any):
    ended = threading.Event()

    def interrupt() -> None:
        while not ended.wait(0.02):
            tangle.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(Interrupted):
            tangle.run(ENDLESS, seconds=600)
    finally:
        ended.set()
        thread.join()

    assert values(tangle, "RETURN 1") == [[1]]


async def test_a_statement_that_needs_more_than_the_pool_is_refused(tmp_path: Path):
    plan = ring(tmp_path / "files", 3000, engine=NAME)
    file = await loaded(plan, tmp_path / "db")
    database = ENGINE.open(file, pool_bytes=32 * 1024 * 1024, read_only=True)
    session = database.session()
    try:
        with pytest.raises(PoolFull):
            session.run("MATCH (a:N), (b:N) RETURN a.id, b.id ORDER BY a.id * b.id")
    finally:
        session.close()
        database.close()


DAY = dt.date(2024, 2, 29)
MOMENT = dt.datetime(2024, 2, 29, 12, 30, 15, 250)  # noqa: DTZ001 - graphs have no time zones
FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2)
TYPES: dict[str, tuple[Any, Any]] = {
    "STRING": (pa.array(["é", None]), ["é", None]),
    "INT64": (pa.array([2**40, None]), [2**40, None]),
    "INT32": (pa.array([-5, None], pa.int32()), [-5, None]),
    "INT16": (pa.array([-5, None], pa.int16()), [-5, None]),
    "INT8": (pa.array([-5, None], pa.int8()), [-5, None]),
    "DOUBLE": (pa.array([0.5, None]), [0.5, None]),
    "FLOAT": (pa.array([0.5, None], pa.float32()), [0.5, None]),
    "DATE": (pa.array([DAY, None]), [DAY, None]),
    "BOOL": (pa.array([True, None]), [True, None]),
    "BLOB": (pa.array([b"\x00\xff", None]), [b"\x00\xff", None]),
    "UUID": (pa.array([str(FIRST), None]), [str(FIRST), None]),
    "TIMESTAMP": (pa.array([MOMENT, None], pa.timestamp("us")), [MOMENT, None]),
    "LIST": (pa.array([[1, 2], None], pa.list_(pa.int64())), [[1, 2], None]),
    "MAP": (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())), [[("k", 1)], None]),
    "STRUCT": (pa.array([{"x": 1, "y": ["a"]}, None]), [{"x": 1, "y": ["a"]}, None]),
}


async def test_every_declared_type_is_loaded_without_a_loss(tmp_path: Path):
    """The types of mappings, with values that are null."""
    columns = {f"p_{kind.lower()}": made for kind, (made, _) in TYPES.items()}
    (tmp_path / "files").mkdir()
    file = write(tmp_path / "files" / "all.parquet", {"id": pa.array([1, 2]), **columns})
    declared = [column(f"p_{kind.lower()}", kind) for kind in TYPES]
    plan = plan_of([node("Every", column("id", "INT64"), declared, file)], engine=NAME)
    database = ENGINE.open(await loaded(plan, tmp_path / "db"), pool_bytes=POOL, read_only=True)
    session = database.session()

    found = {
        kind: [row[0] for row in values(session, f"MATCH (n:Every) RETURN n.p_{kind.lower()} ORDER BY n.id")] for kind in TYPES
    }

    session.close()
    database.close()
    assert found == {kind: expected for kind, (_, expected) in TYPES.items()}


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("STRING", pa.array(["a", "b"])),
        ("INT64", pa.array([1, 2])),
        ("DATE", pa.array([DAY, dt.date(1969, 1, 1)])),
        ("UUID", pa.array([str(FIRST), str(SECOND)])),
        ("UUID", pa.array([FIRST.bytes, SECOND.bytes], pa.uuid())),
    ],
)
async def test_edges_find_their_ends_by_keys_of_every_type(tmp_path: Path, kind: str, keys: pa.Array):
    (tmp_path / "files").mkdir()
    nodes = write(tmp_path / "files" / "n.parquet", {"key": keys})
    edges = write(tmp_path / "files" / "e.parquet", {"a": keys, "b": keys[::-1]})
    plan = plan_of([node("N", column("key", kind), [], nodes)], [edge("E", ("N", "N"), [], edges)], NAME)
    database = ENGINE.open(await loaded(plan, tmp_path / "db"), pool_bytes=POOL, read_only=True)
    session = database.session()

    found = values(session, "MATCH (a:N)-[:E]->(b:N) WHERE a.key <> b.key RETURN count(*)")

    session.close()
    database.close()
    assert found == [[2]]


async def test_an_edge_without_its_node_fails_the_load(tmp_path: Path):
    (tmp_path / "files").mkdir()
    nodes = write(tmp_path / "files" / "n.parquet", {"key": [1]})
    edges = write(tmp_path / "files" / "e.parquet", {"a": [1], "b": [99]})
    plan = plan_of([node("N", column("key", "INT64"), [], nodes)], [edge("E", ("N", "N"), [], edges)], NAME)

    with pytest.raises(LoadFailed) as failed:
        await loaded(plan, tmp_path / "db")

    assert failed.value.code == "DATA_LOAD_ERROR"
    assert "99" in str(failed.value)


async def test_a_copy_can_be_changed_while_the_original_is_read(tmp_path: Path):
    """What an algorithm does to write its result."""
    file = await loaded(social(tmp_path / "files", NAME), tmp_path / "db")
    original = ENGINE.open(file, pool_bytes=POOL, read_only=True)
    reader = original.session()
    copy = tmp_path / "db" / "graph-2"
    pq.write_table(pa.table({"key": [1, 2, 3, 4], "value": [0.1, 0.2, 0.3, 0.4]}), tmp_path / "values.parquet")

    ENGINE.copy(file, copy)
    changed = ENGINE.open(copy, pool_bytes=POOL, read_only=False)
    writer = changed.session()
    writer.run("ALTER TABLE Person ADD IF NOT EXISTS rank DOUBLE").close()
    writer.run(f"LOAD FROM '{tmp_path}/values.parquet' MATCH (n:Person) WHERE n.id = key SET n.rank = value").close()
    seen = values(reader, "MATCH (p:Person) RETURN count(*)")
    writer.close()
    changed.close()

    assert seen == [[4]]
    with closing(ENGINE.open(copy, pool_bytes=POOL, read_only=True)) as database:
        session = database.session()
        assert values(session, "MATCH (p:Person) RETURN p.rank ORDER BY p.id") == [[0.1], [0.2], [0.3], [0.4]]
        session.close()
    reader.close()
    original.close()
