"""The fence of the commits that this thread makes. Called by: `commit.py`, and the catalog in our Postgres (`fence_sql.py`).

It imports no SQLAlchemy, which tables in other catalogs do not need.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pyiceberg.exceptions import ValidationException

from holdfast.services.maintenance.engines.interface import Fence

_fence: ContextVar[Fence | None] = ContextVar("holdfast_table_fence", default=None)


class Fenced(ValidationException):
    """The attempt does not hold its job any more, so the catalog refused its commit."""


class UnfencedWrite(ValidationException):
    """A write without a fence. Maintenance never writes so."""


class ChecksFence:
    """A catalog that checks the fence in the transaction of each commit."""


@contextmanager
def fenced(fence: Fence) -> Iterator[None]:
    """Commits of this thread inside the block are made for this attempt."""
    token = _fence.set(fence)
    try:
        yield
    finally:
        _fence.reset(token)


def current_fence() -> Fence:
    """The fence of this thread's commits; `UnfencedWrite` if there is none."""
    fence = _fence.get()
    if fence is None:
        raise UnfencedWrite("the maintenance catalog was written without a fence; use `fenced(…)`")
    return fence
