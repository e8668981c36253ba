"""The state that requests need: the pool, the options, the caller. It is passed on the app and is never global."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg

from holdfast.api.policy import Role, allows, only_own

if TYPE_CHECKING:  # the command line loads neither a web framework nor a metrics library
    from fastapi import Request
    from prometheus_client.metrics_core import Metric
    from psycopg_pool import AsyncConnectionPool

    from holdfast.api.metrics import Gauges
    from holdfast.api.oidc import Oidc
    from holdfast.api.periodic import Loops
    from holdfast.api.sse import Hub
    from holdfast.jobs.views.read import Count


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """The options of the control plane; `apps/api.py` builds them from the settings."""

    version: str = "0"
    per_minute: int = 600  # requests of one person; workers may send twenty times as many
    burst: int = 120
    largest_body: int = 1_048_576
    most_streams: int = 1000
    streams_each: int = 50  # of one principal
    poll: timedelta = timedelta(seconds=1)  # interval of the streams without a notification
    ping: timedelta = timedelta(seconds=15)
    docs_open: bool = False
    metrics_open: bool = False
    gateway_secret: str | None = field(default=None, repr=False)
    gateway_roles: dict[str, Role] = field(default_factory=dict)
    origins: frozenset[str] = frozenset()  # allowed in addition to our own


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller: a person or a machine, how it was authenticated, and its permissions."""

    actor: str  # such as token:ada or oidc:4711
    method: str
    role: Role | None
    scopes: frozenset[str] | None = None
    permissions: frozenset[str] = frozenset()
    token_id: str | None = None
    expires_at: float | None = None  # of a provider's token, in seconds since 1970
    session_id: str | None = None  # of a browser's session, which its user can end

    def may(self, action: str) -> bool:
        """Whether the policy allows the action, perhaps only for its own objects."""
        return allows(action, self.role, scopes=self.scopes, permissions=self.permissions)

    def only_own(self, action: str) -> bool:
        return only_own(action, self.role, self.permissions)


NOBODY = Principal("nobody", "none", None)


class Resources:
    """The open resources of a service, with the hooks that the control plane calls. By default there are none."""

    async def admit(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Raise an error for a job of one of its public kinds that can only fail."""

    async def measure(self, conn: psycopg.AsyncConnection[Any]) -> list[Metric]:
        """Its metrics that come from the database, for `/metrics`. Their names are in `plane_metrics` of the service."""
        return []

    async def inventory(self, conn: psycopg.AsyncConnection[Any]) -> dict[str, dict[str, Count]]:
        """Its part of `/api/ops/state`: how many of each thing there are in each status."""
        return {}

    def share(self) -> None:
        """Let the loops of this event loop use the same resources."""

    async def close(self) -> None:
        """Close everything. Called when the API stops."""


class LazyResources(Mapping[str, Resources]):
    """The resources of services by name, each opened when it is first used."""

    def __init__(self, openers: Mapping[str, Callable[[], Resources]]) -> None:
        self._openers = openers
        self.opened: dict[str, Resources] = {}

    def __getitem__(self, name: str) -> Resources:
        if name not in self.opened:
            self.opened[name] = self._openers[name]()
        return self.opened[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._openers)

    def __len__(self) -> int:
        return len(self._openers)


def opened(services: Mapping[str, Resources]) -> Iterable[Resources]:
    """Those that are open, and have to be closed."""
    return (services.opened if isinstance(services, LazyResources) else services).values()


@dataclass(slots=True)
class Plane:
    """The control plane of one process."""

    pool: AsyncConnectionPool[Any]
    options: ApiOptions
    cursor_key: bytes = field(repr=False)
    hub: Hub
    gauges: Gauges
    loops: Loops
    oidc: Oidc | None = None
    wanted_revision: str | None = None
    services: Mapping[str, Resources] = field(default_factory=dict)


def plane_of(request: Request) -> Plane:
    plane: Plane = request.app.state.plane
    return plane


def caller_of(request: Request) -> Principal:
    """The caller, as the guard of the route has authenticated it."""
    caller: Principal = request.state.caller
    return caller
