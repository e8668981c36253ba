"""Connect to an API over HTTP: its address, the token, and one attribute per noun."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from holdfast import catalog
from holdfast.addresses import without_api_path
from holdfast.client.kinds import Kinds
from holdfast.client.pipelines import Pipelines
from holdfast.errors import UsageError
from holdfast.toolkit.client import credentials
from holdfast.toolkit.client.api import Api
from holdfast.toolkit.client.environment import client_settings
from holdfast.toolkit.client.jobs import Jobs


class Connection:
    """An API. The kernel's nouns are `jobs`, `pipelines` and `kinds`; each service adds its own, loaded on first use."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.jobs = Jobs(api)
        self.pipelines = Pipelines(api)
        self.kinds = Kinds(api)

    def __getattr__(self, name: str) -> Any:
        """The namespace of a service."""
        for service, namespace in catalog.namespaces():
            if namespace.name == name:
                found = service.load(namespace.target)(self.api)
                setattr(self, name, found)
                return found
        raise AttributeError(f"there is no {name!r} in the API; there are: {', '.join(self._nouns())}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._nouns()]

    @staticmethod
    def _nouns() -> list[str]:
        return ["jobs", "pipelines", "kinds", *(namespace.name for _, namespace in catalog.namespaces())]

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the HTTP connections."""
        self.api.close()

    def __repr__(self) -> str:
        return f"<Holdfast API at {self.api.url}>"


def connect(url: str | None = None, token: str | None = None, *, timeout: float = 30.0) -> Connection:
    """Connect to an API: `url`, else HOLDFAST_API_URL, else the address of `holdfast auth login`.

    Without a token: HOLDFAST_TOKEN, or the saved token of that login, which is sent only to the address of the login. For a
    database use `holdfast.connect(...)` instead.
    """
    settings = client_settings()
    saved = credentials.load(settings)
    found = url or settings.api_url or (saved.api_url if saved else None)
    if found is None:
        raise UsageError("no API is configured: call connect('http://…'), set HOLDFAST_API_URL, or run `holdfast auth login`")
    address = api_url_of(found)
    sent = token or credentials.token_for(address, settings, saved)
    return Connection(Api(address, sent, timeout=timeout, plain_http=settings.plain_http))


def api_url_of(url: str) -> str:
    """The address of an API without a trailing `/api`; the address of a database is refused. Pure."""
    if url.startswith(("postgres://", "postgresql://")):
        raise UsageError(
            "holdfast.client.connect takes the address of an HTTP API (http://…); for a database use "
            "`holdfast.connect('postgresql://…')`"
        )
    return without_api_path(url)
