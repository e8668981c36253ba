"""A decorated function is the job, its client and its own test target.

    @job("invoice.render", max_attempts=5)
    async def render(ctx: Context, invoice_id: int) -> None: ...

    await render.enqueue(invoice_id=7, tx=session)      # checked by the type checker and again at run time
    await render(ctx, invoice_id=7)                     # still the function

A kind is known to workers once its module was imported; `registered()` is the list.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

import pydantic
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict

from holdfast.errors import PayloadInvalid, UnknownKind, UsageError
from holdfast.jobs.client import current_client
from holdfast.jobs.declare import Declaration, as_json, lock_templates, new_job
from holdfast.jobs.effects import Cleaner
from holdfast.jobs.enqueue import enqueue, enqueue_many, enqueue_payloads, enqueue_sync
from holdfast.jobs.given import (
    a_count,
    a_memory,
    a_name,
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
from holdfast.worker.signature import (
    argument_checker,
    argument_schema,
    first_problem,
    is_same_place,
    refuse_wrong_place,
    split_signature,
)

P = ParamSpec("P")
R = TypeVar("R")


class Options(TypedDict, total=False):
    """What can be said at enqueue beside the arguments of the function. The type checker's plugin reads this list."""

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
    on_shutdown: Literal["release", "fail"] = "release"  # what becomes of a job that is not done when its worker must end
    public: bool = True  # False: the HTTP API and the command line may not enqueue it, only Python code may
    # Templates such as "invoice:{invoice_id}", or functions of the job's arguments, which only Python code can call.
    locks: Sequence[Lock | str] | Callable[..., Sequence[Lock]] | None = None
    slot: str | Callable[..., str] | None = None
    unique: str | Callable[..., str] | None = None

    def __post_init__(self) -> None:
        # Said where it is decorated, and not by the first job that needs it, perhaps at night.
        a_queue(self.queue)
        a_priority(self.priority)
        for name in ("max_attempts", "max_crashes", "version"):
            a_count(name, getattr(self, name))
        if self.max_runtime is not None:
            a_span("max_runtime", self.max_runtime)
        if self.max_memory is not None:
            a_memory("max_memory", self.max_memory)
            if self.run_in != "process":
                raise UsageError("max_memory limits a process of its own; add run_in='process'")
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
                raise wrong(name, said, "each of them is a Lock; use locks=[Lock('invoice:{invoice_id}')]")
    elif not isinstance(said, str) or not said:
        raise wrong(name, said, f"it is a template or a function; use {name}='invoice:{{invoice_id}}'")


class Job(Generic[P, R]):
    """A kind of job: a function with a name, a policy and a way to enqueue it."""

    def __init__(self, kind: str, function: Callable[..., R], policy: Policy) -> None:
        self.kind = kind
        self.function = function
        self.policy = policy
        self.is_async = inspect.iscoroutinefunction(function)
        refuse_wrong_place(kind, function, policy.run_in, is_async=self.is_async)
        self.context_name, self._signature = split_signature(kind, function, OPTIONS)
        self._names = frozenset(self._signature.parameters)
        self._required = frozenset(n for n, p in self._signature.parameters.items() if p.default is p.empty)
        self._arguments = argument_checker(kind, function, self._signature)
        self.declared = self._declare()
        self.__doc__, self.__name__ = function.__doc__, getattr(function, "__name__", kind)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """The function itself, as if it had never been decorated."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.kind}>"

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """The job that these arguments make, not yet enqueued: for pipelines, `Done(then=…)` and bulk."""
        return self._new(args, dict(kwargs), {})

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Enqueue with these arguments; every key of `Options` may stand among them, above all `tx`."""
        tx, options = self._take_options(kwargs)
        new = self._new(args, dict(kwargs), options)
        return await (enqueue(tx, new) if tx is not None else current_client().enqueue(new))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """`enqueue` for code without an event loop; `tx` is needed."""
        tx, options = self._take_options(kwargs)
        if tx is None:
            raise UsageError(f"{self.kind}.enqueue_sync needs tx=<connection or session>")
        return enqueue_sync(tx, self._new(args, dict(kwargs), options))

    async def enqueue_many(self, arguments: Iterable[Mapping[str, Any]], *, tx: Any = None) -> Sequence[Enqueued]:
        """Enqueue one job for each of these sets of arguments, all in one transaction: the bulk call for one kind."""
        given = mappings("arguments", arguments, "{'invoice_id': 7}")
        if not given:
            return []
        like = self._new((), given[0], {})
        if self.declared.is_keyed or not like.is_plain:
            jobs = [self._new((), one, {}) for one in given]
            return await (enqueue_many(tx, jobs) if tx is not None else current_client().enqueue_many(jobs))
        if tx is not None:  # made before the first is written: a mistake in one must not spoil the caller's transaction
            return await enqueue_payloads(tx, like, list(self._texts(given)), len(given))
        return await current_client().enqueue_payloads(like, self._texts(given), len(given))

    def using(self, **options: Any) -> Job[P, R]:
        """The same kind with other options for what is made from it: `render.using(priority=5).new(invoice_id=7)`."""
        unknown = set(options) - OPTIONS
        if unknown:
            raise UsageError(f"no option {', '.join(sorted(unknown))}; there are: {', '.join(sorted(OPTIONS))}")
        return _WithOptions(self, options)

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
                locks=locks if locks is None or callable(locks) else lock_templates(locks, self._schema),
                slot=key_template(slot, self._schema) if isinstance(slot, str) else slot,
                unique=key_template(unique, self._schema) if isinstance(unique, str) else unique,
            )
        except UsageError as error:
            raise UsageError(f"{self.kind}: {error}") from None

    def _take_options(self, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Part the options from the arguments: the transaction, and the rest."""
        options = {name: kwargs.pop(name) for name in list(kwargs) if name in OPTIONS}
        return options.pop("tx", None), options

    def arguments(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments for the function from a stored payload, with their types; `PayloadInvalid` if they do not fit."""
        if self._arguments is None:
            return {}
        try:
            return self._arguments.validate_python(payload)
        except pydantic.ValidationError as error:
            problem = f"{first_problem(error)}; was the function changed after the job was enqueued?"
            raise PayloadInvalid(f"the payload does not fit {self.kind}: {problem}") from None

    def _new(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]) -> NewJob:
        given = kwargs if not args and self._fits(kwargs) else self._bind(args, kwargs)
        return new_job(self.declared, self._payload(given), given, options)

    def _payload(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments as JSON, if they are what the function says it takes: the mistake is found here and not at night."""
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
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise UsageError(f"{self.kind}{self._signature}: {error}") from None


class _WithOptions(Job[P, R]):
    """A kind with options already said."""

    def __init__(self, base: Job[P, R], options: dict[str, Any]) -> None:
        self.__dict__.update(base.__dict__)
        self._options = {**getattr(base, "_options", {}), **options}

    def _new(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]) -> NewJob:
        said = {name: value for name, value in self._options.items() if name != "tx"}
        return super()._new(args, kwargs, {**said, **options})

    def _take_options(self, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        tx, options = super()._take_options(kwargs)
        return self._options.get("tx") if tx is None else tx, options


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
        existing = _kinds.get(self._kind)
        if existing is not None and not is_same_place(existing.function, function):
            raise UsageError(f"{self._kind} is registered already, by {existing.function.__module__}; choose another name")
        made: Job[..., Any] = Job(self._kind, function, self._policy)
        _kinds[self._kind] = made
        return made


def job(kind: str, **policy: Any) -> _Decorator:
    """Make a function a kind of job. The keywords are the fields of `Policy`."""
    if callable(kind):
        raise UsageError(f"@job needs the name of the kind; use @job({getattr(kind, '__name__', 'invoice.render')!r})")
    a_name("kind", kind, "a job needs a kind of 1 to 200 characters; use @job('invoice.render')")
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


def cleaner(effect_kind: str) -> Callable[[Cleaner], Cleaner]:
    """Register the function that removes effects of this kind; it returns True once the thing is gone."""

    def register(function: Cleaner) -> Cleaner:
        _cleaners[effect_kind] = function
        return function

    return register


def cleaners() -> dict[str, Cleaner]:
    """Every cleaner that this process knows."""
    return dict(_cleaners)
