"""Reads of the API, answered from the database without the web framework. Called by: `direct.py`.

Importing FastAPI takes half a second; the queries take milliseconds. Each read calls the same query as the API's route of that
path. A refusal of the kernel, such as an unknown job, becomes the same problem as in the API. Whatever a read does not know (a
parameter, a value that is not valid) raises `NotHandled`, and the caller repeats the request with the API in memory, which has
the exact refusal. `tests/cli/test_transports_agree.py` compares both.

A module of reads is imported when one of its paths is read.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module

from holdfast.cli.reads.values import NotHandled
from holdfast.toolkit.cli.transport import Answer

Read = Callable[..., Awaitable[Answer]]
READS: Mapping[str, str] = {  # the module and the function of each path
    r"/api/jobs": "jobs.listed",
    r"/api/jobs/(\d+)": "jobs.one",
    r"/api/jobs/(\d+)/explain": "jobs.explanation",
    r"/api/jobs/(\d+)/history": "jobs.history",
    r"/api/jobs/(\d+)/logs": "logs.lines",
    r"/api/failures": "groups.failures",
    r"/api/failures/([0-9a-f]{16})": "groups.failure",
    r"/api/pipelines": "groups.pipelines",
    r"/api/pipelines/([^/]+)": "groups.pipeline",
    r"/api/locks": "groups.locks",
    r"/api/workers": "workers.listed",
    r"/api/workers/([^/]+)": "workers.one",
    r"/api/(?:job-)?kinds": "workers.kinds",
    r"/api/periodic": "system.loops",
    r"/api/ops/drain": "system.drain",
    r"/api/doctor": "system.facts",
}


def find(path: str) -> tuple[Read, list[str]] | None:
    """The read of this path, and the variable parts of the path; None: there is none."""
    for pattern, place in READS.items():
        if match := re.fullmatch(pattern, path):
            module, _, name = place.partition(".")
            read: Read = getattr(import_module(f"{__name__}.{module}"), name)
            return read, list(match.groups())
    return None


__all__ = ["NotHandled", "Read", "find"]
