"""Limit the memory of a handler in its child process, with a clear error when it needs more. Called by: `child.py`.

The limit is RLIMIT_DATA: Linux counts what a process has allocated, and refuses the next allocation. Measured with Python 3.11
and DuckDB 1.x: under 512 MiB a query that needs more ended with an error at 460 MiB resident; RLIMIT_AS also counts the
address space of mapped libraries and ended the same query at 130 MiB. An allocation that native code cannot do without
ends the process, which `parent.py` reports as a crash.
"""

from __future__ import annotations

import copy
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.jobs.given import size_text
from holdfast.worker.kinds import Job

OUT_OF_MEMORY = frozenset({"MemoryError", "OutOfMemoryException"})  # Python's and Arrow's; DuckDB's


class MemoryExceeded(MemoryError):
    """A handler needed more memory than `max_memory` allows."""


def with_memory_limit(kind: Job[..., Any], most: int) -> Job[..., Any]:
    """The same kind with a function that may allocate at most so many bytes. The end of the attempt is written without the
    limit."""
    limited, function = copy.copy(kind), kind.function

    async def limited_async(**arguments: Any) -> Any:
        with limit(most):
            return await function(**arguments)

    def limited_sync(**arguments: Any) -> Any:
        with limit(most):
            return function(**arguments)

    limited.function = limited_async if kind.is_async else limited_sync
    return limited


@contextmanager
def limit(most: int) -> Iterator[None]:
    """Inside the block this process may allocate at most so many bytes in total; `MemoryExceeded` if it needs more."""
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    lowest = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (lowest, hard))
    try:
        yield
    except Exception as error:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))  # first: raising the error needs memory
        if not is_out_of_memory(error):
            raise
        raise MemoryExceeded(
            f"it needed more than max_memory={size_text(most)}; raise max_memory, or process less at a time"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


def is_out_of_memory(error: BaseException) -> bool:
    """By the type of the error, never by its message."""
    return any(cls.__name__ in OUT_OF_MEMORY for cls in type(error).__mro__)
