"""The client that `kind.enqueue(…)` and `Pipeline.enqueue()` use without a transaction.

`holdfast.connect(url)` and workers set it for their tasks and threads; the web application's worker sets the process's default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.jobs.client import Client

_current: ContextVar[Callable[[], Client] | None] = ContextVar("holdfast_client", default=None)
_default: Client | None = None  # requests of a web application are tasks that inherit nothing from the task that started it


def make_current(client: Callable[[], Client]) -> None:
    """Set the client of this task, and of the tasks and threads that it starts.

    A function: a worker without a database raises an error that says what to do instead.
    """
    _current.set(client)


@contextmanager
def made_current(client: Callable[[], Client]) -> Iterator[None]:
    """Set the client for a `with` block."""
    token = _current.set(client)
    try:
        yield
    finally:
        _current.reset(token)


def make_default(client: Client | None) -> Client | None:
    """Set the client for code outside of `holdfast.connect()`, in the whole process. Returns the previous one."""
    global _default
    before, _default = _default, client
    return before


def current_client() -> Client:
    """The client of the surrounding `holdfast.connect()` or worker, otherwise the default of this process."""
    give = _current.get()
    client = _default if give is None else give()
    if client is None:
        raise UsageError(
            "no database to enqueue into; pass tx=<connection or session>, or wrap the code in holdfast.connect(url)"
        )
    return client
