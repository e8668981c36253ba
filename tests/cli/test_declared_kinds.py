"""What a kind declares holds for jobs from the command line, over HTTP and from the client, as for jobs from Python."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from running import Run, Served

from factories import publish_kinds
from holdfast import Context, Lock, job
from holdfast.client import Api, Connection, Invalid
from holdfast.jobs.client import connect
from holdfast.jobs.declare import from_json
from holdfast.toolkit.cli.exit_codes import Exit
from holdfast.worker.kinds import Job
from holdfast.worker.loop import Worker
from holdfast.worker.options import WorkerOptions
from workers import beside, until

OF_A_JOB = "SELECT to_jsonb(j) - ARRAY['id', 'created_at', 'created_xid', 'trace', 'owner'] FROM holdfast.jobs j ORDER BY id"
OWNERS = "SELECT split_part(owner, ':', 1) FROM holdfast.jobs ORDER BY id"
WANTS = "SELECT job_id, key, most, priority FROM holdfast.lock_wants ORDER BY job_id, key"
STATES = "SELECT state, waiting_for FROM holdfast.jobs ORDER BY id"


@job(
    "declared.everything",
    version=2,
    queue="q",
    priority=3,
    max_attempts=7,
    max_crashes=5,
    max_runtime=timedelta(minutes=3),
    locks=["table:{table}", Lock("pool", most=2)],
)
async def everything(table: str, rows: int = 1) -> None: ...


@job("declared.keys", unique=lambda n: f"n:{n}", locks=lambda n: [Lock(f"n:{n}")])
async def keys(n: int) -> None: ...


@job("declared.private", public=False)
async def private() -> None: ...


def published(database: str, *kinds: Job[..., Any]) -> None:
    publish_kinds(database, *(from_json(kind.published) for kind in kinds))


def read(database: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database, autocommit=True) as conn:
        return conn.execute(statement.encode()).fetchall()


def test_two_jobs_from_the_command_line_with_one_exclusive_lock_never_run_at_once(command: Run, database: str) -> None:
    said: list[str] = []
    may_end = asyncio.Event()

    @job("declared.exclusive", locks=["table:{table}"])
    async def exclusive(ctx: Context, table: str) -> None:
        said.append("begin")
        await may_end.wait()
        said.append("end")

    async def step() -> None:
        worker = Worker(database, [exclusive], WorkerOptions(concurrency=2))
        async with beside(worker):
            await until(lambda: has_state(("running", None), ("blocked", "lock")))
            await until(has_begun)
            assert said == ["begin"]
            may_end.set()
            await until(lambda: has_state(("completed", None), ("completed", None)))

    async def has_begun() -> bool:  # the row is running before the handler is called
        return bool(said)

    async def has_state(*wanted: tuple[str, str | None]) -> bool:
        found = await asyncio.to_thread(read, database, STATES)
        assert [state for state, _ in found].count("running") <= 1, "both run at once"
        return sorted(map(str, found)) == sorted(map(str, wanted))

    published(database, exclusive)
    for _ in range(2):
        assert command("job", "enqueue", "declared.exclusive", "-p", "table=orders").code == Exit.OK

    asyncio.run(step())

    assert said == ["begin", "end", "begin", "end"]


def test_python_http_client_and_command_line_make_the_same_row(
    direct: Run, over_http: Run, served: Served, database: str
) -> None:
    published(database, everything)

    async def from_python() -> None:
        async with connect(database) as client:
            await everything.enqueue(table="orders", rows=2)
            await client.enqueue("declared.everything", {"table": "orders", "rows": 2})

    asyncio.run(from_python())
    for command in (direct, over_http):
        assert command("job", "enqueue", "declared.everything", "-p", "table=orders", "-p", "rows:=2").code == Exit.OK
    with Connection(Api(served.url, served.token)) as hf:
        hf.jobs.enqueue("declared.everything", {"table": "orders", "rows": 2})

    made = [row[0] for row in read(database, OF_A_JOB)]
    assert len(made) == 5
    for row in made[1:]:
        assert row == made[0]
    assert [owner for (owner,) in read(database, OWNERS)] == [None, None, "cli", "token", "token"], (
        "who made it is all that differs"
    )
    assert (made[0]["queue"], made[0]["priority"], made[0]["max_attempts"], made[0]["kind_version"]) == ("q", 3, 7, 2)
    wants = read(database, WANTS)
    assert len(wants) == 10
    assert {want[1:] for want in wants} == {("table:orders", 1, 3), ("pool", 2, 3)}


def test_a_key_that_a_function_makes_is_given_by_hand_or_refused(command: Run, database: str) -> None:
    published(database, keys)
    asked = ("job", "enqueue", "declared.keys", "-p", "n:=1")

    for missing in (asked, (*asked, "--lock", "n:1"), (*asked, "--unique-key", "n:1")):
        refused = command(*missing)
        assert refused.code != Exit.OK
        assert "as a Python function" in refused.err
    assert read(database, STATES) == []

    assert command(*asked, "--lock", "n:1", "--unique-key", "n:1").code == Exit.OK
    assert [want[1] for want in read(database, WANTS)] == ["n:1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("declared.everythin",), "did you mean declared.everything"),
        (("declared.everything",), "table is missing: expected string"),
        (("declared.everything", "-p", "table=t", "-p", "rows=many"), 'rows cannot be "many": Input should be a valid integer'),
        (("declared.everything", "-p", "table=t", "-p", "colour=red"), "colour is not an argument of declared.everything"),
        (("declared.private",), "is declared with public=False"),
    ],
)
def test_a_request_that_does_not_fit_its_kind_is_refused_with_the_reason(
    command: Run, database: str, words: tuple[str, ...], said: str
) -> None:
    published(database, everything, private)

    refused = command("job", "enqueue", *words)

    assert refused.code != Exit.OK
    assert said in refused.err
    assert read(database, STATES) == []


def test_an_unknown_kind_can_be_allowed(command: Run, database: str) -> None:
    assert command("job", "enqueue", "nobody.knows", "--allow-unknown").code == Exit.OK
    assert read(database, STATES) == [("pending", None)]


def test_kinds_are_listed_and_shown(command: Run, served: Served, database: str) -> None:
    published(database, everything, keys)

    listed = {one["kind"]: one for one in json.loads(command("kind", "list", "-o", "json").out)}
    shown = json.loads(command("kind", "show", "declared.everything", "-o", "json").out)
    card = command("kind", "show", "declared.keys")
    missing = command("kind", "show", "nothing")

    assert (listed["declared.everything"]["version"], listed["declared.everything"]["public"]) == (2, True)
    assert shown["declaration"] == everything.published
    assert "a function in the worker" in card.out
    assert "no worker has published the kind nothing" in missing.err
    with Connection(Api(served.url, served.token)) as hf:
        assert hf.kinds.get("declared.everything").declaration == everything.published
        assert "declared.keys" in [one.kind for one in hf.kinds.list()]
        with pytest.raises(Invalid, match="did you mean"):
            hf.jobs.enqueue("declared.everythin", {})
