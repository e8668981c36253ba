"""Invalid decorations and calls of a kind, and their messages."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import Context, Lock, SyncContext, job
from holdfast.errors import PayloadInvalid, UnknownKind, UsageError
from holdfast.worker.kinds import Job, kind_of


@dataclass
class Address:
    city: str


class Shop:
    def open(self) -> None: ...

    @staticmethod
    def close() -> None: ...


def numbers() -> Iterator[int]:
    yield 1


async def later_numbers() -> AsyncIterator[int]:
    yield 1


def with_context_last(number: int, ctx: Context) -> None: ...


def with_async_context(ctx: Context) -> None: ...


def first(ctx: SyncContext) -> None: ...


def second(ctx: SyncContext) -> None: ...


@pytest.fixture
def render() -> Job[..., Any]:
    @job("test.render", max_attempts=5)
    async def render(ctx: Context, invoice_id: int, colour: str = "red") -> None: ...

    return render


def test_decorated_function_stays_callable():
    @job("test.double")
    def double(number: int) -> int:
        return 2 * number

    assert double(21) == 42


def test_arguments_become_the_payload_and_options_the_rest(render: Job[..., Any]):
    new = render.new(7, colour="blue")

    assert (new.kind, new.payload, new.max_attempts) == ("test.render", {"invoice_id": 7, "colour": "blue"}, 5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "missing a required argument: 'invoice_id'"),
        (
            {"invoice": 7},
            "no argument 'invoice'; the arguments are: colour, invoice_id; options of render.using(…) are: after,",
        ),
        ({"invoice_id": 7, "size": 3}, "no argument 'size'"),
        ({"invoice_id": 7, "priority": 3}, "priority is an option and no argument; use render.using(priority=…)"),
        ({"invoice_id": "seven"}, "invoice_id: Input should be a valid integer"),
    ],
)
def test_invalid_call_is_refused_before_anything_is_stored(render: Job[..., Any], arguments: dict[str, Any], said: str):
    with pytest.raises(UsageError, match="test.render") as refused:
        render.new(**arguments)

    assert said in str(refused.value)


def test_typed_arguments_round_trip_through_json():
    @job("test.rich")
    async def rich(who: UUID, when: date, where: Address) -> None: ...

    who = uuid4()
    new = rich.new(who=who, when=date(2026, 1, 2), where=Address("Bern"))

    assert new.payload == {"who": str(who), "when": "2026-01-02", "where": {"city": "Bern"}}
    assert rich.arguments(new.payload) == {"who": who, "when": date(2026, 1, 2), "where": Address("Bern")}


def test_value_that_is_not_json_is_named():
    @job("test.anything")
    async def anything(value: Any) -> None: ...

    with pytest.raises(PayloadInvalid, match="an argument of test.anything cannot be stored as JSON"):
        anything.new(value=object())


def test_payload_of_another_version_is_refused_with_the_likely_cause(render: Job[..., Any]):
    with pytest.raises(PayloadInvalid, match="was the function changed after the job was enqueued"):
        render.arguments({"invoice": 7})


def test_options_can_be_set_in_steps(render: Job[..., Any]):
    new = render.using(priority=3).using(queue="slow", run_after=timedelta(hours=1)).new(invoice_id=7)

    assert (new.priority, new.queue, new.run_after) == (3, "slow", timedelta(hours=1))


def test_locks_slot_and_unique_key_can_be_computed_from_arguments():
    @job(
        "test.tied",
        locks=lambda table: [Lock(table)],
        slot=lambda table: f"slot {table}",
        unique=lambda table: f"unique {table}",
    )
    async def tied(table: str) -> None: ...

    new = tied.new(table="t")

    assert (new.locks, new.slot_key, new.unique_key) == ((Lock("t"),), "slot t", "unique t")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: job("test.wrong", retries=3), "no setting retries"),
        (lambda: job("test.wrong")(lambda *args: None), "cannot be stored"),
        (lambda: job("test.wrong")(Shop.open), "Shop.open is a method, and a worker has no object to call it on; move the"),
        (lambda: job("test.wrong")(vars(Shop)["close"]), "Shop.close is a staticmethod; move the function out of the class"),
        (lambda: job("test.wrong")(Shop), "a handler is a function, not <class"),
        (lambda: job("test.wrong")(partial(sorted, [])), "a handler is a function, not functools.partial"),
        (lambda: job("test.wrong")(numbers), "numbers is a generator, because it uses `yield`; return the result instead"),
        (lambda: job("test.wrong")(later_numbers), "later_numbers is a generator, because it uses `yield`"),
        (
            lambda: job("test.wrong")(lambda ctx: None),
            "the parameter ctx needs its type to be recognised as the context; write",
        ),
        (lambda: job("test.wrong")(with_context_last), "the context has to be the first parameter, not 'ctx' in place 2"),
        (
            lambda: job("test.wrong")(with_async_context),
            "a plain function takes a SyncContext; annotate it as ctx: SyncContext",
        ),
        (lambda: job("test.wrong", slot=lambda b: b)(lambda a: None), "the function for slot takes b; its parameters have to"),
        (lambda: job("test.wrong", locks=lambda b: [])(lambda: None), "the function for locks takes b; its parameters have to"),
        (lambda: job("test.wrong", retry=3), "retry cannot be 3: it is a RetryPolicy; use max_attempts=… for how often"),
        (lambda: job("test.wrong", on_shutdown="failed"), "on_shutdown cannot be 'failed': must be 'release' or 'fail'"),
        (lambda: job("test.wrong", queue=""), "queue cannot be '': the name of a queue must have 1 to 200 characters"),
        (lambda: job("test.wrong", priority="high"), "priority cannot be 'high': must be a whole number between"),
        (lambda: job("test.wrong", max_attempts="3"), "max_attempts cannot be '3': must be a whole number, 1 or more"),
        (lambda: job("test.wrong", max_crashes=0), "max_crashes cannot be 0: must be a whole number, 1 or more"),
        (lambda: job("test.wrong", version="2"), "version cannot be '2': must be a whole number, 1 or more"),
        (lambda: job("test.wrong", max_runtime=60), "max_runtime cannot be 60: must be a timedelta; use timedelta(seconds=60)"),
        (lambda: job("test.wrong", locks=Lock("a")), "must be a list; use locks=[Lock('invoice:{invoice_id}')]"),
        (lambda: job("test.wrong", locks=[3]), "each item must be a Lock"),
        (lambda: job("test.wrong", slot=""), "slot cannot be '': must be a template or a function; use slot="),
        (lambda: job("test.wrong", unique=True), "unique cannot be True: must be a template or a function"),
        (lambda: job("test.wrong", public="no"), "public cannot be 'no': it is True or False"),
        (lambda: job("test.wrong", unique="{b}")(lambda a: None), "'{b}' names b, but the function takes a"),
        (lambda: job("test.wrong", slot="{a.b}")(lambda a: None), "may contain only names of arguments"),
        (lambda: job("test.wrong", slot="{a:03}")(lambda a: None), "may contain only names of arguments"),
        (lambda: job("test.wrong", slot="{a")(lambda a: None), "is invalid: expected '}'"),
        (lambda: job("test.wrong", run_in="fork")(lambda: None), "run_in is 'loop', 'thread' or 'process', not 'fork'"),
    ],
)
def test_invalid_decoration_names_the_fix(wrong: Any, said: str):
    with pytest.raises(UsageError, match="test.wrong") as refused:
        wrong()

    assert said in str(refused.value)


def test_two_functions_of_one_module_cannot_share_a_kind():
    job("test.shared")(first)
    job("test.shared")(first)  # the module was loaded again

    with pytest.raises(
        UsageError, match=r"'test.shared' is registered already, by .*test_kinds\.first; choose another name for second"
    ):
        job("test.shared")(second)

    assert kind_of("test.shared").function is first


def test_a_key_function_takes_only_the_arguments_it_names_with_their_defaults():
    @job("test.named", slot=lambda table, size: f"{table} {size}", unique=lambda table: table, locks=lambda: [Lock("all")])
    async def named(table: str, size: int = 3, colour: str = "red") -> None: ...

    new = named.new(table="t")

    assert (new.slot_key, new.unique_key, new.locks, new.payload) == ("t 3", "t", (Lock("all"),), {"table": "t"})


def test_an_argument_may_have_the_name_of_an_option():
    @job("test.options")
    async def urgent(priority: str, queue: str) -> None: ...

    new = urgent.using(priority=-3).new(priority="high", queue="ticket")

    assert (new.priority, new.queue, new.payload) == (-3, "default", {"priority": "high", "queue": "ticket"})


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("", "kind cannot be '': must be the name of a kind of 1 to 200 characters; use @job('invoice.render')"),
        (5, "kind cannot be 5: must be the name of a kind"),
        ("k" * 201, "must be the name of a kind of 1 to 200 characters"),
    ],
)
def test_empty_kind_name_is_refused(kind: Any, said: str):
    with pytest.raises(UsageError, match=re.escape(said)):
        job(kind)


def test_decorator_without_a_kind_is_refused():
    with pytest.raises(UsageError, match=re.escape("use @job('invoice.render')")):
        job()


def test_uncalled_decorator_is_refused():
    async def render(invoice_id: int) -> None: ...

    with pytest.raises(UsageError, match=re.escape("@job needs the name of the kind; use @job('render')")):
        job(render)  # type: ignore[arg-type]


def test_single_lock_outside_a_list_is_refused():
    @job("test.lone_lock", locks=lambda table: Lock(f"table:{table}"))
    async def tied(table: str) -> None: ...

    with pytest.raises(UsageError, match=re.escape("must be a list; use locks=[Lock('…')]")):
        tied.new(table="t")


def test_unknown_kind_error_lists_the_known_ones(render: Job[..., Any]):
    with pytest.raises(UnknownKind, match="no handler for invoice.rendr; registered: .*test.render.*; was the module imported"):
        kind_of("invoice.rendr")


def test_unknown_option_error_lists_the_known_ones(render: Job[..., Any]):
    with pytest.raises(UsageError, match="no option prio; there are: after, "):
        render.using(prio=1)


def test_script_that_is_imported_twice_registers_its_kinds_twice():
    """`uvicorn.run("main:app")` from main.py: once as `__main__`, once under its name."""

    def render() -> None: ...

    first = job("test.read_twice")(render)
    render.__module__ = "__main__"
    assert job("test.read_twice")(render).kind == first.kind

    elsewhere = eval(compile("lambda: None", "another.py", "eval"))
    elsewhere.__module__ = "another"
    with pytest.raises(UsageError, match="registered already"):
        job("test.read_twice")(elsewhere)
