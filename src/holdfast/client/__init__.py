"""Holdfast over HTTP, for notebooks and scripts: `from holdfast.client import connect`.

    hf = connect()
    job = hf.jobs.enqueue("invoice.render", {"number": 7})
    job.wait()

Plain blocking calls on the same API as the command line, with the token of `holdfast auth login`. `wait` shows a progress bar
in a terminal and a card in a notebook. To use a database without an API, see `holdfast.connect`.
"""

from holdfast.client.connection import Connection, connect
from holdfast.client.kinds import Kind
from holdfast.client.pipelines import Pipeline
from holdfast.toolkit.client.api import Api
from holdfast.toolkit.client.jobs import Job
from holdfast.toolkit.client.problems import (
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    JobFailed,
    NotAuthenticated,
    NotFound,
    RateLimited,
    Unavailable,
)

__all__ = [
    "Api",
    "ApiError",
    "Conflict",
    "Connection",
    "Forbidden",
    "Invalid",
    "Job",
    "JobFailed",
    "Kind",
    "NotAuthenticated",
    "NotFound",
    "Pipeline",
    "RateLimited",
    "Unavailable",
    "connect",
]
