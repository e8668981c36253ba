"""What the tests of the command line speak of: a run of a command and its result, and an API that is served."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from holdfast.api.plane import ApiOptions

GENEROUS = ApiOptions(version="test", per_minute=1_000_000, burst=1_000_000)


class Result(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Result]


class Served(NamedTuple):
    """A running API and an admin's token."""

    url: str
    token: str
