"""A decorated function is the job, its client and its own test target.

    @job("invoice.render", max_attempts=5)
    async def render(ctx: Context, invoice_id: int) -> None: ...

    await render.enqueue(invoice_id=7)                    # checked by the type checker and again at run time
    await render.using(tx=session).enqueue(invoice_id=7)  # options such as the transaction go to using()
    await render(ctx, invoice_id=7)                       # still the function

A kind is known to workers once its module was imported; `registered()` is the list.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, Unpack, overload

import pydantic
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict

from holdfast.errors import PayloadInvalid, UnknownKind, UsageError
from holdfast.jobs.current import current_client
from holdfast.jobs.declare import Declaration, as_json, lock_templates, new_job
from holdfast.jobs.effects import Cleaner
from holdfast.jobs.enqueue import enqueue, enqueue_many, enqueue_payloads, enqueue_sync
from holdfast.jobs.given import (
    a_count,
    a_memory,
    a_name,
    a_niceness,
    a_priority,
    a_queue,
    a_span,
    listed,
    mappings,
    one_of,
    wrong,
)
from holdfast.jobs.key_template import key_template
from holdfast.jobs.model import Enqueued, Json, Lock, NewJob
from holdfast.jobs.outcome import DEFAULT_POLICY, RetryPolicy
from holdfast.jobs.payload import to_json_many
from holdfast.worker.context import Context, SyncContext
from holdfast.worker.periodic import schedule_of
from holdfast.worker.signature import (
    argument_checker,
    argument_schema,
    first_problem,
    from_arguments,
    is_same_function,
    refuse_no_handler,
    refuse_wrong_place,
    split_signature,
    unknown_arguments,
)

P = ParamSpec("P")
R = TypeVar("R")


class Options(TypedDict, total=False):
    """The options of a job beside the arguments of its function: the keywords of `Job.using`."""

    tx: Any
    run_after: datetime | timedelta | None
    priority: int
    queue: str
    idempotency_key: str | None
    unique_key: str | None
    unique_while: Literal["waiting", "live"]
    slot_key: str | None
    locks: Sequence[Lock]
    after: Sequence[int]
    if_parent_fails: Literal["cancel", "run"]
    pipeline_id: str | None
    max_attempts: int
    max_crashes: int
    max_runtime: timedelta | None
    step: str | None


OPTIONS = frozenset(Options.__annotations__)
AT_A_TIME = 500
FOLLOWS = ("locks", "slot", "unique")  # from the arguments of a job
PLAIN = frozenset({str, int, float, bool, type(None)})  # what JSON has, as it is


@dataclass(frozen=True, slots=True)
class Policy:
    """How jobs of a kind are run, unless an enqueue says otherwise."""

    queue: str = "default"
    priority: int = 0
    max_attempts: int = 3
    max_crashes: int = 3
    max_runtime: timedelta | None = None
    version: int = 1
    retry: RetryPolicy = DEFAULT_POLICY
    run_in: Literal["loop", "thread", "process"] | None = None  # default: async functions in the loop, plain ones in a thread
    max_memory: str | int | None = None  # with run_in="process": what its process may allocate, as "512MiB" or in bytes
    nice: int = 0  # with run_in="process": from 0 to 19, by how much its process yields the CPU to others
    on_shutdown: Literal["release", "fail"] = "release"  # what becomes of a job that is not done when its worker must end
    extra: str | None = None  # extra of the distribution that the handler needs; a worker without it does not take the kind
    public: bool = True  # False: the HTTP API and the command line may not enqueue it, only Python code may
    # Templates such as "invoice:{invoice_id}", or functions of the job's arguments, which only Python code can call.
    locks: Sequence[Lock | str] | Callable[..., Sequence[Lock]] | None = None
    slot: str | Callable[..., str] | None = None
    unique: str | Callable[..., str] | None = None
    # A periodic job: workers enqueue it at each due time with `args` or its defaults; `due_at` gets the time.
    cron: str | None = None  # minute hour day month weekday
    every: timedelta | None = None  # instead of `cron`
    timezone: str | None = None  # of `cron`; default UTC
    catch_up: Literal["skip", "last", "all"] | None = None  # due times that passed while no worker ran; default: the last one
    args: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        # Checked at decoration, not when the first job needs it.
        a_queue(self.queue)
        a_priority(self.priority)
        for name in ("max_attempts", "max_crashes", "version"):
            a_count(name, getattr(self, name))
        if self.max_runtime is not None:
            a_span("max_runtime", self.max_runtime)
        for name, default, check in (("max_memory", None, a_memory), ("nice", 0, a_niceness)):
            if (given := getattr(self, name)) != default:
                check(name, given)
                if self.run_in != "process":
                    raise UsageError(f"{name} is for a process of its own; add run_in='process'")
        if not isinstance(self.retry, RetryPolicy):
            raise wrong(
                "retry", self.retry, "it is a RetryPolicy; use max_attempts=… for how often, retry=RetryPolicy(…) for when"
            )
        one_of("on_shutdown", self.on_shutdown, "release", "fail")
        if self.public not in (True, False):
            raise wrong("public", self.public, "it is True or False")
        for name in FOLLOWS:
            _refuse_no_key(name, getattr(self, name))


def _refuse_no_key(name: str, said: object) -> None:
    if said is None or callable(said):
        return
    if name == "locks":
        for one in listed(name, said, "Lock('invoice:{invoice_id}')"):
            if not isinstance(one, Lock | str):
                raise wrong(name, said, "each item must be a Lock; use locks=[Lock('invoice:{invoice_id}')]")
    elif not isinstance(said, str) or not said:
        raise wrong(name, said, f"must be a template or a function; use {name}='invoice:{{invoice_id}}'")


class Job(Generic[P, R]):
    """A kind of job: a function with a name, a policy and a way to enqueue it."""

    def __init__(self, kind: str, function: Callable[..., R], policy: Policy) -> None:
        self.kind = kind
        self.function = function
        self.policy = policy
        self.is_async = inspect.iscoroutinefunction(function)
        refuse_wrong_place(kind, function, policy.run_in, is_async=self.is_async)
        self.context_name, self._signature = split_signature(kind, function)
        self._names = frozenset(self._signature.parameters)
        self._required = frozenset(n for n, p in self._signature.parameters.items() if p.default is p.empty)
        self._arguments = argument_checker(kind, function, self._signature)
        self.__doc__, self.__name__ = function.__doc__, getattr(function, "__name__", kind)
        self.declared = self._declare()
        self._tx: Any = None
        self._options: dict[str, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """The function itself, as if it had never been decorated."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.kind}>"

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """The job for these arguments, not yet enqueued: for pipelines, `Done(then=…)` and bulk."""
        return self._new(args, kwargs)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Enqueue a job with these arguments; options such as the transaction go to `using`."""
        new = self._new(args, kwargs)
        return await (enqueue(self._tx, new) if self._tx is not None else current_client().enqueue(new))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """`enqueue` for code without an event loop; it needs a transaction: `render.using(tx=conn).enqueue_sync(...)`."""
        if self._tx is None:
            raise UsageError(
                f"{self.kind}: enqueue_sync needs a transaction; use {self.__name__}.using(tx=conn).enqueue_sync(…)"
            )
        return enqueue_sync(self._tx, self._new(args, kwargs))

    async def enqueue_many(self, arguments: Iterable[Mapping[str, Any]]) -> Sequence[Enqueued]:
        """Enqueue one job for each of these sets of arguments, all in one transaction: the bulk call for one kind."""
        tx = self._tx
        given = mappings("arguments", arguments, "{'invoice_id': 7}")
        if not given:
            return []
        like = self._new((), given[0])
        if self.declared.is_keyed or not like.is_plain:
            jobs = [self._new((), one) for one in given]
            return await (enqueue_many(tx, jobs) if tx is not None else current_client().enqueue_many(jobs))
        if tx is not None:  # all payloads are checked before the first write: an error must not abort the caller's transaction
            return await enqueue_payloads(tx, like, list(self._texts(given)), len(given))
        return await current_client().enqueue_payloads(like, self._texts(given), len(given))

    def using(self, **options: Unpack[Options]) -> Job[P, R]:
        """The same kind with options for its jobs: `render.using(tx=session, priority=5).enqueue(invoice_id=7)`."""
        unknown = set(options) - OPTIONS
        if unknown:
            raise UsageError(f"{self.kind}: no option {', '.join(sorted(unknown))}; there are: {', '.join(sorted(OPTIONS))}")
        given: dict[str, Any] = dict(options)
        made: Job[P, R] = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._tx = given.pop("tx", self._tx)
        made._options = self._options | given
        return made

    @cached_property
    def published(self) -> dict[str, Json]:
        """What workers publish of this kind: everything that can be said as data."""
        policy = self.policy
        about = {
            "doc": inspect.getdoc(self.function) or None,
            "run_in": policy.run_in or ("loop" if self.is_async else "thread"),
            "on_shutdown": policy.on_shutdown,
            "backoff": to_jsonable_python(policy.retry.backoff, fallback=str),
        }
        return as_json(replace(self.declared, arguments=self._schema, about=about))

    @cached_property
    def _schema(self) -> dict[str, Any]:
        return argument_schema(self._arguments, self._signature)

    def _declare(self) -> Declaration:
        """How jobs of this kind are made. The schema is made for templates and for workers: enqueue does not need it."""
        policy = self.policy
        locks, slot, unique = policy.locks, policy.slot, policy.unique
        try:
            return Declaration(
                self.kind,
                version=policy.version,
                queue=policy.queue,
                priority=policy.priority,
                max_attempts=policy.max_attempts,
                max_crashes=policy.max_crashes,
                max_runtime=policy.max_runtime,
                public=policy.public,
                locks=self._computed("locks", locks)
                if locks is None or callable(locks)
                else lock_templates(locks, self._schema),
                slot=key_template(slot, self._schema) if isinstance(slot, str) else self._computed("slot", slot),
                unique=key_template(unique, self._schema) if isinstance(unique, str) else self._computed("unique", unique),
                periodic=schedule_of(policy, self._names, lambda given: self._payload(self._bind((), given)), self.arguments),
            )
        except UsageError as error:
            raise UsageError(f"{self.kind}: {error}") from None

    def _computed(self, option: str, rule: Callable[..., Any] | None) -> Callable[..., Any] | None:
        return None if rule is None else from_arguments(option, rule, self._signature)

    def arguments(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments for the function from a stored payload, with their types; `PayloadInvalid` if they do not fit."""
        if self._arguments is None:
            return {}
        try:
            return self._arguments.validate_python(payload)
        except pydantic.ValidationError as error:
            problem = f"{first_problem(error)}; was the function changed after the job was enqueued?"
            raise PayloadInvalid(f"the payload does not fit {self.kind}: {problem}") from None

    def _new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        given = kwargs if not args and self._fits(kwargs) else self._bind(args, kwargs)
        return new_job(self.declared, self._payload(given), given, self._options)

    def _payload(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments as JSON, validated against the function's annotations at enqueue, not in the worker."""
        if self._arguments is not None:
            try:
                self._arguments.validate_python(given)
            except pydantic.ValidationError as error:
                raise UsageError(f"{self.kind}{self._signature}: {first_problem(error)}") from None
        if PLAIN.issuperset(map(type, given.values())):
            return given
        try:
            return to_jsonable_python(given)  # type: ignore[no-any-return]
        except PydanticSerializationError as error:
            raise PayloadInvalid(f"an argument of {self.kind} cannot be stored as JSON: {error}") from None

    def _texts(self, given: Sequence[dict[str, Any]]) -> Iterator[str]:
        """The payloads of many as JSON, some at a time: the database takes in the last ones meanwhile."""
        for start in range(0, len(given), AT_A_TIME):
            some = given[start : start + AT_A_TIME]
            yield from to_json_many([self._payload(one if self._fits(one) else self._bind((), one)) for one in some])

    def _fits(self, kwargs: dict[str, Any]) -> bool:
        """Whether these keywords are right at a glance; if not, `_bind` says what is wrong with them."""
        return kwargs.keys() <= self._names and self._required <= kwargs.keys()

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        unknown = sorted(kwargs.keys() - self._names)
        if unknown:
            raise UsageError(f"{self.kind}{self._signature}: {unknown_arguments(self.__name__, unknown, self._names, OPTIONS)}")
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise UsageError(f"{self.kind}{self._signature}: {error}") from None


# ---------------------------------------------------------------------------------------------------------------------
# The registry
# ---------------------------------------------------------------------------------------------------------------------

_kinds: dict[str, Job[..., Any]] = {}
_cleaners: dict[str, Cleaner] = {}


class _Decorator:
    """What `job(...)` returns: a function with its context first, or without one, becomes a kind."""

    def __init__(self, kind: str, policy: Policy) -> None:
        self._kind, self._policy = kind, policy

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Awaitable[R]]) -> Job[P, Awaitable[R]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[SyncContext, P], R]) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Job[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Job[..., Any]:
        refuse_no_handler(self._kind, function)
        existing = _kinds.get(self._kind)
        if existing is not None and not is_same_function(existing.function, function):
            other = f"{existing.function.__module__}.{existing.function.__qualname__}"
            raise UsageError(
                f"the kind {self._kind!r} is registered already, by {other}; choose another name for {function.__qualname__}"
            )
        made: Job[..., Any] = Job(self._kind, function, self._policy)
        _kinds[self._kind] = made
        return made


def job(kind: str = "", **policy: Any) -> _Decorator:
    """Make a function a kind of job. The keywords are the fields of `Policy`."""
    if callable(kind):
        raise UsageError(f"@job needs the name of the kind; use @job({getattr(kind, '__name__', 'invoice.render')!r})")
    a_name("kind", kind, "must be the name of a kind of 1 to 200 characters; use @job('invoice.render')")
    known = {field.name for field in fields(Policy)}
    unknown = set(policy) - known
    if unknown:
        raise UsageError(f"{kind}: no setting {', '.join(sorted(unknown))}; there are: {', '.join(sorted(known))}")
    try:
        return _Decorator(kind, Policy(**policy))
    except UsageError as error:
        raise UsageError(f"{kind}: {error}") from None


def registered() -> dict[str, Job[..., Any]]:
    """Every kind that this process knows."""
    return dict(_kinds)


def kind_of(name: str) -> Job[..., Any]:
    """The kind with this name, or an error that names the ones there are."""
    found = _kinds.get(name)
    if found is None:
        raise UnknownKind(name, list(_kinds))
    return found


def a_list_of_kinds(given: object) -> list[Job[..., Any]]:
    """What a worker runs: decorated functions, not their names."""
    kinds = listed("kinds", given, "render")
    for one in kinds:
        if not isinstance(one, Job):
            fix = "pass the function" if isinstance(one, str) else "decorate it with @job(…)"
            raise wrong("kinds", one, f"each item must be a function decorated with @job; {fix}")
    return list(kinds)


def cleaner(effect_kind: str) -> Callable[[Cleaner], Cleaner]:
    """Register the function that removes effects of this kind; it returns True once the effect is removed."""

    def register(function: Cleaner) -> Cleaner:
        _cleaners[effect_kind] = function
        return function

    return register


def cleaners() -> dict[str, Cleaner]:
    """Every cleaner that this process knows."""
    return dict(_cleaners)
