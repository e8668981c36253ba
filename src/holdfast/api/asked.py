"""What an action needs to know of its request: one of the web framework, or one that the command line makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Asked(Protocol):
    """A request. `state` has the request id and the body; `url` has the path and the query."""

    @property
    def method(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def url(self) -> Any: ...
    @property
    def state(self) -> Any: ...
    @property
    def client(self) -> Any: ...
