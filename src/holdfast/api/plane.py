"""What every request may need: the pool, the options, who asks. Handed around on the app, never global."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import psycopg
from fastapi import Request
from prometheus_client.metrics_core import Metric
from psycopg_pool import AsyncConnectionPool

from holdfast.api.policy import Role, allows, only_own
from holdfast.jobs.read import Count

if TYPE_CHECKING:
    from holdfast.api.metrics import Gauges
    from holdfast.api.oidc import Oidc
    from holdfast.api.periodic import Loops
    from holdfast.api.sse import Hub


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """How the control plane behaves; `apps/api.py` makes it from the settings."""

    version: str = "0"
    per_minute: int = 600  # requests of one person; machines that run jobs get twenty times as many
    burst: int = 120
    largest_body: int = 1_048_576
    most_streams: int = 1000
    streams_each: int = 50  # of one principal
    poll: timedelta = timedelta(seconds=1)  # of the streams, when no hint comes
    ping: timedelta = timedelta(seconds=15)
    docs_open: bool = False
    metrics_open: bool = False
    gateway_secret: str | None = field(default=None, repr=False)
    gateway_roles: dict[str, Role] = field(default_factory=dict)
    origins: frozenset[str] = frozenset()  # beside our own


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: a person or a machine, how we know, and what it may do."""

    actor: str  # such as token:ada or oidc:4711
    method: str
    role: Role | None
    scopes: frozenset[str] | None = None
    permissions: frozenset[str] = frozenset()
    token_id: str | None = None
    expires_at: float | None = None  # of a provider's token, in seconds since 1970

    def may(self, action: str) -> bool:
        """Whether the policy lets it, be it only to its own."""
        return allows(action, self.role, scopes=self.scopes, permissions=self.permissions)

    def only_own(self, action: str) -> bool:
        return only_own(action, self.role, self.permissions)


NOBODY = Principal("nobody", "none", None)


class Service(Protocol):
    """What a service keeps open for its routes, and what the control plane asks of it."""

    open_kinds: ClassVar[frozenset[str]]  # of its kinds, those that a request may enqueue before any worker has run

    async def admit(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Refuse a job of one of its kinds that could only fail."""

    async def measure(self, conn: psycopg.AsyncConnection[Any]) -> list[Metric]:
        """Its families for `/metrics`, from the database; each has its line in PLANE_METRICS."""

    async def inventory(self, conn: psycopg.AsyncConnection[Any]) -> dict[str, dict[str, Count]]:
        """Its part of `/api/ops/state`: how many of each thing there are in each status."""

    def share(self) -> None:
        """Let the loops of this event loop use what is open here."""

    async def close(self) -> None: ...


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
    services: Mapping[str, Service] = field(default_factory=dict)


def plane_of(request: Request) -> Plane:
    plane: Plane = request.app.state.plane
    return plane


def caller_of(request: Request) -> Principal:
    """Who asks, as the guard of the route has found out."""
    caller: Principal = request.state.caller
    return caller
