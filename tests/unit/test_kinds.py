"""What a decorated function refuses, and how it says so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import Context, Lock, job
from holdfast.errors import PayloadInvalid, UnknownKind, UsageError
from holdfast.worker.kinds import Job, kind_of


@dataclass
class Address:
    city: str


@pytest.fixture
def render() -> Job[..., Any]:
    @job("test.render", max_attempts=5)
    async def render(ctx: Context, invoice_id: int, colour: str = "red") -> None: ...

    return render


def test_the_function_is_still_the_function():
    @job("test.double")
    def double(number: int) -> int:
        return 2 * number

    assert double(21) == 42


def test_arguments_become_the_payload_and_the_policy_the_rest(render: Job[..., Any]):
    new = render.new(7, colour="blue")

    assert (new.kind, new.payload, new.max_attempts) == ("test.render", {"invoice_id": 7, "colour": "blue"}, 5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "missing a required argument: 'invoice_id'"),
        ({"invoice": 7}, "missing a required argument"),
        ({"invoice_id": 7, "size": 3}, "got an unexpected keyword argument 'size'"),
        ({"invoice_id": "seven"}, "invoice_id: Input should be a valid integer"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_is_stored(render: Job[..., Any], arguments: dict[str, Any], said: str):
    with pytest.raises(UsageError, match="test.render") as refused:
        render.new(**arguments)

    assert said in str(refused.value)


def test_richer_types_are_stored_as_json_and_come_back_as_themselves():
    @job("test.rich")
    async def rich(who: UUID, when: date, where: Address) -> None: ...

    who = uuid4()
    new = rich.new(who=who, when=date(2026, 1, 2), where=Address("Bern"))

    assert new.payload == {"who": str(who), "when": "2026-01-02", "where": {"city": "Bern"}}
    assert rich.arguments(new.payload) == {"who": who, "when": date(2026, 1, 2), "where": Address("Bern")}


def test_a_value_that_is_not_json_is_named():
    @job("test.anything")
    async def anything(value: Any) -> None: ...

    with pytest.raises(PayloadInvalid, match="an argument of test.anything cannot be stored as JSON"):
        anything.new(value=object())


def test_a_payload_of_another_version_of_the_function_is_refused_with_the_likely_reason(render: Job[..., Any]):
    with pytest.raises(PayloadInvalid, match="was the function changed after the job was enqueued"):
        render.arguments({"invoice": 7})


def test_options_can_be_said_in_steps(render: Job[..., Any]):
    new = render.using(priority=3).using(queue="slow", run_after=timedelta(hours=1)).new(invoice_id=7)

    assert (new.priority, new.queue, new.run_after) == (3, "slow", timedelta(hours=1))


def test_locks_slot_and_unique_key_can_follow_from_the_arguments():
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
        (lambda: job("test.wrong")(lambda priority: None), "priority is a word of enqueue"),
        (lambda: job("test.wrong", retry=3), "retry cannot be 3: it is a RetryPolicy; use max_attempts=… for how often"),
        (lambda: job("test.wrong", on_shutdown="failed"), "on_shutdown cannot be 'failed': it is 'release' or 'fail'"),
        (lambda: job("test.wrong", queue=""), "queue cannot be '': a queue's name has 1 to 200 characters"),
        (lambda: job("test.wrong", priority="high"), "priority cannot be 'high': it is a whole number between"),
        (lambda: job("test.wrong", max_attempts="3"), "max_attempts cannot be '3': it is a whole number, 1 or more"),
        (lambda: job("test.wrong", max_crashes=0), "max_crashes cannot be 0: it is a whole number, 1 or more"),
        (lambda: job("test.wrong", version="2"), "version cannot be '2': it is a whole number, 1 or more"),
        (lambda: job("test.wrong", max_runtime=60), "max_runtime cannot be 60: it is a timedelta; use timedelta(seconds=60)"),
        (lambda: job("test.wrong", locks=Lock("a")), "it is a list; use locks=[Lock('invoice:{invoice_id}')]"),
        (lambda: job("test.wrong", locks=[3]), "each of them is a Lock"),
        (lambda: job("test.wrong", slot=""), "slot cannot be '': it is a template or a function; use slot="),
        (lambda: job("test.wrong", unique=True), "unique cannot be True: it is a template or a function"),
        (lambda: job("test.wrong", public="no"), "public cannot be 'no': it is True or False"),
        (lambda: job("test.wrong", unique="{b}")(lambda a: None), "'{b}' names b, and the function takes a"),
        (lambda: job("test.wrong", slot="{a.b}")(lambda a: None), "may hold names of arguments only"),
        (lambda: job("test.wrong", slot="{a:03}")(lambda a: None), "may hold names of arguments only"),
        (lambda: job("test.wrong", slot="{a")(lambda a: None), "cannot be read: expected '}'"),
        (lambda: job("test.wrong", run_in="fork")(lambda: None), "run_in is 'loop', 'thread' or 'process', not 'fork'"),
    ],
)
def test_a_wrong_decoration_names_the_fix(wrong: Any, said: str):
    with pytest.raises(UsageError, match="test.wrong") as refused:
        wrong()

    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("", "kind cannot be '': a job needs a kind of 1 to 200 characters; use @job('invoice.render')"),
        (5, "kind cannot be 5: a job needs a kind"),
        ("k" * 201, "a job needs a kind of 1 to 200 characters"),
    ],
)
def test_a_kind_without_a_name_is_refused(kind: Any, said: str):
    with pytest.raises(UsageError, match=re.escape(said)):
        job(kind)


def test_a_decorator_that_was_not_called_says_so():
    async def render(invoice_id: int) -> None: ...

    with pytest.raises(UsageError, match=re.escape("@job needs the name of the kind; use @job('render')")):
        job(render)  # type: ignore[arg-type]


def test_a_lock_that_stands_alone_is_to_stand_in_a_list():
    @job("test.lone_lock", locks=lambda table: Lock(f"table:{table}"))
    async def tied(table: str) -> None: ...

    with pytest.raises(UsageError, match=re.escape("it is a list; use locks=[Lock('…')]")):
        tied.new(table="t")


def test_an_unknown_kind_names_the_ones_there_are(render: Job[..., Any]):
    with pytest.raises(UnknownKind, match="no handler for invoice.rendr; registered: .*test.render.*; was the module imported"):
        kind_of("invoice.rendr")


def test_an_unknown_option_names_the_ones_there_are(render: Job[..., Any]):
    with pytest.raises(UsageError, match="no option prio; there are: after, "):
        render.using(prio=1)


def test_a_script_that_is_read_twice_registers_its_kinds_twice():
    """`uvicorn.run("main:app")` from main.py: once as `__main__`, once under its name."""

    def render() -> None: ...

    first = job("test.read_twice")(render)
    render.__module__ = "__main__"
    assert job("test.read_twice")(render).kind == first.kind

    elsewhere = eval(compile("lambda: None", "another.py", "eval"))
    elsewhere.__module__ = "another"
    with pytest.raises(UsageError, match="registered already"):
        job("test.read_twice")(elsewhere)
