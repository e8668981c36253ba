"""Declarations of kinds: published by workers, and applied to every job, also over HTTP."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

import jsonschema_rs
import pytest
from pydantic import BaseModel

from factories import publish_kinds, rows, start_worker
from holdfast import Context, Lock, job
from holdfast.errors import ArgumentsInvalid, KeyNotGiven, KindNotPublished, NotFound, UsageError
from holdfast.jobs.argument_schema import problems_of
from holdfast.jobs.client import connect as connect_to
from holdfast.jobs.declare import Declaration, as_json, digest_of, from_json, requested_job
from holdfast.jobs.kinds import find, prune_kinds, publish, show
from holdfast.jobs.pipelines import Pipeline
from holdfast.jobs.views.explain import explain
from holdfast.worker.kinds import Job
from holdfast.worker.loop import Worker
from holdfast.worker.options import WorkerOptions

UPPER, LOWER = "0E984725-C51C-4BF4-9960-E1C80E27ABA0", "0e984725-c51c-4bf4-9960-e1c80e27aba0"


class Region(StrEnum):
    EU = "eu"
    US = "us"


class Item(BaseModel):
    sku: str
    count: int = 1


@job(
    "declared.render",
    version=3,
    queue="q",
    priority=7,
    max_attempts=9,
    max_crashes=2,
    max_runtime=timedelta(minutes=5),
    locks=["table:{table}", Lock("region:{region}", most=4)],
    slot="slot:{table}",
    unique="{table}:{customer}",
)
async def render(
    ctx: Context, table: str, customer: UUID, region: Region = Region.EU, items: list[Item] | None = None
) -> None: ...


@job("declared.computed", unique=lambda table: f"t:{table}", slot=lambda table: f"s:{table}", locks=lambda table: [Lock(table)])
async def computed(table: str) -> None: ...


def as_published(kind: Job[..., Any]) -> Declaration:
    """As it comes back from the database."""
    return from_json(kind.published)


# ---------------------------------------------------------------------------------------------------------------------
# One implementation
# ---------------------------------------------------------------------------------------------------------------------


def test_http_request_creates_the_same_job_as_python() -> None:
    arguments = {"table": "orders", "customer": LOWER}

    asked = requested_job(as_published(render), arguments, {})

    assert asked == render.new(table="orders", customer=LOWER)
    assert (asked.queue, asked.priority, asked.max_attempts, asked.max_crashes) == ("q", 7, 9, 2)
    assert (asked.max_runtime, asked.kind_version) == (timedelta(minutes=5), 3)
    assert asked.locks == (Lock("table:orders"), Lock("region:eu", most=4))
    assert (asked.slot_key, asked.unique_key) == ("slot:orders", f"orders:{LOWER}")


def test_equal_arguments_give_one_key() -> None:
    for customer in (LOWER, UPPER, UUID(LOWER)):
        assert render.new(table="t", customer=customer).unique_key == f"t:{LOWER}"  # type: ignore[arg-type]
    assert requested_job(as_published(render), {"table": "t", "customer": UPPER}, {}).unique_key == f"t:{LOWER}"


@pytest.mark.parametrize(
    ("hint", "given", "text"),
    [
        (int, 7, "7"),
        (int, "7", "7"),
        (int, 7.0, "7"),
        (bool, True, "true"),
        (date, date(2026, 1, 2), "2026-01-02"),
        (datetime, datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (Region, Region.US, "us"),
        (str, "{x}", "{x}"),
        (Any, "as it is", "as it is"),
    ],
)
def test_key_template_formats_an_argument_in_one_way(hint: Any, given: Any, text: str) -> None:
    async def handler(a) -> None: ...  # type: ignore[no-untyped-def]

    handler.__annotations__ = {"a": hint}

    assert job(f"declared.{hint}", unique="{{{a}}}")(handler).new(a=given).unique_key == f"{{{text}}}"


@pytest.mark.parametrize("given", [None, 1.5, [1], {"a": 1}])
def test_key_template_refuses_an_argument_without_a_text_form(given: Any) -> None:
    @job("declared.anything", unique="{a}")
    async def anything(a) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(UsageError, match="a cannot be .* in a key"):
        anything.new(a=given)


def test_key_template_of_a_list_is_refused_at_declaration() -> None:
    with pytest.raises(UsageError, match=r"declared.list: the key template '\{a\}' names a, which is array"):

        @job("declared.list", slot="{a}")
        async def listed(a: list[int]) -> None: ...


def test_key_computed_by_a_function_must_be_passed() -> None:
    declared = as_published(computed)
    keys: dict[str, Any] = {"locks": (Lock("a"),), "slot_key": "s", "unique_key": "u"}

    for missing in keys:
        given = {name: value for name, value in keys.items() if name != missing}
        with pytest.raises(KeyNotGiven, match=f"give {missing} in the request, or declare .* as a template"):
            requested_job(declared, {"table": "t"}, given)
    made = requested_job(declared, {"table": "t"}, keys)

    assert (made.locks, made.slot_key, made.unique_key) == ((Lock("a"),), "s", "u")
    assert computed.new(table="t").locks == (Lock("t"),), "Python code calls the function"


def test_a_request_overrides_defaults_and_adds_locks_but_replaces_no_key() -> None:
    declared, arguments = as_published(render), {"table": "t", "customer": LOWER}
    said = {"queue": "other", "priority": 1, "max_attempts": 1, "max_crashes": 1, "max_runtime": timedelta(1)}

    made = requested_job(declared, arguments, {**said, "locks": (Lock("more"),), "run_after": timedelta(hours=1)})

    assert {name: getattr(made, name) for name in said} == said
    assert [lock.key for lock in made.locks] == ["table:t", "region:eu", "more"]
    for name in ("slot_key", "unique_key"):
        with pytest.raises(UsageError, match=f"declares its {name}.*cannot override"):
            requested_job(declared, arguments, {name: "mine"})


# ---------------------------------------------------------------------------------------------------------------------
# Arguments
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "pointer", "message"),
    [
        ({"customer": LOWER}, "/table", "table is missing: expected string"),
        ({"table": 7, "customer": LOWER}, "/table", "table cannot be 7: Input should be a valid string"),
        ({"table": "t", "customer": "x"}, "/customer", 'customer cannot be "x": Input should be a valid UUID'),
        (
            {"table": "t", "customer": LOWER, "colour": 1},
            "/colour",
            "colour is not an argument of declared.render, which takes",
        ),
        (
            {"table": "t", "customer": LOWER, "region": "mars"},
            "/region",
            "region cannot be \"mars\": Input should be 'eu' or 'us'",
        ),
        (
            {"table": "t", "customer": LOWER, "items": [{"sku": "a", "count": "b"}]},
            "/items/0/count",
            'items.0.count cannot be "b"',
        ),
    ],
)
def test_invalid_argument_is_named_with_its_value(arguments: Any, pointer: str, message: str) -> None:
    with pytest.raises(ArgumentsInvalid) as refused:
        requested_job(as_published(render), arguments, {})

    (problem,) = refused.value.problems
    assert problem.pointer == pointer
    assert problem.message.startswith(message)


@pytest.mark.parametrize(
    "value", [1, 1.5, "a", "7", True, None, [], [1], ["a"], {}, {"sku": "a"}, {"sku": 1}, LOWER, "eu", "2026-01-02"]
)
@pytest.mark.parametrize(
    "hint",
    [
        int,
        float,
        str,
        bool,
        list[int],
        dict[str, int],
        UUID,
        date,
        Region,
        Item,
        int | str,
        int | None,
        tuple[int, str],
        Any,
        set[str],
    ],
)
def test_argument_check_agrees_with_json_schema(hint: Any, value: Any) -> None:
    """By an independent implementation. Only a whole number that is written as 7.0 is refused here and an integer there."""

    async def handler(a) -> None: ...  # type: ignore[no-untyped-def]

    handler.__annotations__ = {"a": hint}
    schema = job(f"declared.{hint}")(handler).published["arguments"]
    theirs = jsonschema_rs.Draft202012Validator(schema, validate_formats=True).is_valid({"a": value})

    assert (problems_of(schema, {"a": value}, "k") == []) == theirs


def test_pattern_check_takes_linear_time_and_skips_unsupported_patterns() -> None:
    slow = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    foreign = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}

    assert problems_of(slow, {"a": "a" * 5000 + "!"}, "k")
    assert problems_of(foreign, {"a": "z"}, "k") == []


# ---------------------------------------------------------------------------------------------------------------------
# Publishing
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.more
async def test_published_declaration_outlives_its_worker(database: str, conn: Any) -> None:
    await Worker(database, [render], WorkerOptions(name="first", queues=("q",))).run(until_empty=True)

    found = await show(conn, "declared.render")

    assert found.declaration == render.published
    assert [(one.version, one.published_by, one.workers) for one in found.versions] == [(3, "first", 0)]
    assert await find(conn, "declared.render") == as_published(render)


async def test_unchanged_declarations_are_not_written_again(conn: Any) -> None:
    await publish(conn, [render.published, computed.published], worker="a")
    before = await rows(conn, "SELECT kind, xmin::text, ctid::text FROM holdfast.kinds ORDER BY kind")

    await publish(conn, [render.published, computed.published], worker="b")

    assert await rows(conn, "SELECT kind, xmin::text, ctid::text FROM holdfast.kinds ORDER BY kind") == before
    await conn.execute("UPDATE holdfast.kinds SET published_at = published_at - interval '2 days'")
    await publish(conn, [render.published], worker="c")
    assert (await show(conn, "declared.render")).versions[0].published_by == "c", "refreshed once a day"


async def test_last_declaration_of_a_version_wins_and_the_change_is_recorded(conn: Any) -> None:
    first, second = as_json(Declaration("k", queue="a")), as_json(Declaration("k", queue="b"))

    for said in (first, second):
        await publish(conn, [said], worker=said["queue"])

    (version,) = (await show(conn, "k")).versions
    assert (version.declaration["queue"], version.published_by) == ("b", "b")
    assert (version.digest, version.replaced_digest) == (digest_of(second), digest_of(first))
    assert version.replaced_at == version.published_at


async def test_concurrent_publishing_does_not_deadlock(connect: Any) -> None:
    said = [as_json(Declaration(f"k{number}")) for number in range(20)]
    conns = [await connect() for _ in range(4)]

    for queue in range(5):
        these = [one | {"queue": str(queue)} for one in said]
        await asyncio.gather(*(publish(one, these[::way], worker="w") for one, way in zip(conns, (1, -1, 1, -1), strict=True)))

    assert await rows(conns[0], "SELECT count(*) FROM holdfast.kinds") == [(20,)]


async def test_newest_live_version_is_used_during_a_rollout_and_after_a_rollback(conn: Any) -> None:
    for version in (1, 2):
        await publish(conn, [as_json(Declaration("k", version=version))], worker="w")
    old = await start_worker(conn, kinds={"k": 1})
    new = await start_worker(conn, kinds={"k": 2})
    assert (await find(conn, "k")).version == 2  # type: ignore[union-attr]

    await conn.execute("UPDATE holdfast.workers SET stopped_at = clock_timestamp() WHERE id = %s", [new])
    assert (await find(conn, "k")).version == 1, "no living worker can run 2"  # type: ignore[union-attr]

    await conn.execute("UPDATE holdfast.workers SET stopped_at = clock_timestamp() WHERE id = %s", [old])
    assert (await find(conn, "k")).version == 2, "none lives: the last published"  # type: ignore[union-attr]
    await publish(conn, [as_json(Declaration("k"))], worker="w")
    assert (await find(conn, "k")).version == 1, "scaled to zero after a roll-back"  # type: ignore[union-attr]


async def test_unused_declarations_are_removed_after_half_a_year(conn: Any) -> None:
    await publish(conn, [as_json(Declaration(kind)) for kind in ("old", "run", "new")], worker="w")
    await conn.execute("UPDATE holdfast.kinds SET published_at = published_at - interval '200 days' WHERE kind <> 'new'")
    await start_worker(conn, kinds={"run": 1})

    assert await prune_kinds(conn) == 1

    assert await rows(conn, "SELECT kind FROM holdfast.kinds ORDER BY kind") == [("new",), ("run",)]


# ---------------------------------------------------------------------------------------------------------------------
# By name, in Python
# ---------------------------------------------------------------------------------------------------------------------


async def test_python_code_enqueues_by_name_without_the_function(database: str, conn: Any) -> None:
    publish_kinds(database, as_published(render))
    async with connect_to(database) as client:
        made = await client.enqueue("declared.render", {"table": "t", "customer": LOWER}, priority=2)
        pipeline = Pipeline("by name")
        pipeline.add(await client.new("declared.render", {"table": "u", "customer": LOWER}))
        await pipeline.enqueue(conn)

    asked = await rows(conn, "SELECT queue, priority, slot_key, kind_version FROM holdfast.jobs ORDER BY id")
    assert asked == [("q", 2, "slot:t", 3), ("q", 7, "slot:u", 3)]
    assert await rows(conn, f"SELECT key FROM holdfast.lock_wants WHERE job_id = {made.id} ORDER BY 1") == [
        ("region:eu",),
        ("table:t",),
    ]


async def test_unknown_kind_error_suggests_similar_names(database: str, conn: Any) -> None:
    publish_kinds(database, as_published(render))
    async with connect_to(database) as client:
        with pytest.raises(KindNotPublished, match=r"declared.rendr; did you mean declared.render\?.*allow_unknown=True"):
            await client.enqueue("declared.rendr", {})
        made = await client.enqueue("declared.rendr", {}, allow_unknown=True)
        with pytest.raises(UsageError, match="a NewJob has its own"):
            await client.enqueue(computed.new(table="t"), {"table": "t"})

    await start_worker(conn, kinds={"declared.render": 3})
    assert "No worker has published the kind declared.rendr" in await explain(conn, made.id)
    with pytest.raises(NotFound, match="no worker has published the kind nothing"):
        await show(conn, "nothing")
