"""The console beside the API of one process, at `/console`. Called by: `apps/api.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.api.plane import Plane
from holdfast.console.app import Parts, attach, make_console


class ServedConsole:
    """The console as `make_app` mounts it."""

    path = "/console"

    def __init__(self, parts: Parts, links: Mapping[str, str] | None = None) -> None:
        self.app = make_console(parts, links=links)

    def attach(self, plane: Plane, api: Any) -> None:
        """Connect it to the plane, when the API starts."""
        attach(self.app, plane, api)
