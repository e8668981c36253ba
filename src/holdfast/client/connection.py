"""The way in: where the API is, who asks, and the things that can be asked for."""

from __future__ import annotations

from types import TracebackType

from holdfast.client import credentials
from holdfast.client.api import Api
from holdfast.client.exports import Exports
from holdfast.client.jobs import Jobs
from holdfast.client.kinds import Kinds
from holdfast.client.mappings import Mappings
from holdfast.client.schema import Schema
from holdfast.client.snapshots import Snapshots
from holdfast.errors import UsageError
from holdfast.settings import Settings


class Connection:
    """Everything that the API offers, one attribute per noun."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.jobs = Jobs(api)
        self.kinds = Kinds(api)
        self.mappings = Mappings(api)
        self.snapshots = Snapshots(api)
        self.exports = Exports(api, self.jobs)
        self.schema = Schema(api)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give back the connection."""
        self.api.close()

    def __repr__(self) -> str:
        return f"<Holdfast at {self.api.url}>"


def connect(url: str | None = None, token: str | None = None, *, timeout: float = 30.0) -> Connection:
    """Connect to a control plane: the one that is named, else HOLDFAST_API_URL, else the one of `holdfast auth login`.

    Without a token: HOLDFAST_TOKEN, or what the login left, which goes to the address of that login alone.
    """
    settings = Settings()
    saved = credentials.load(settings)
    found = url or settings.api_url or (saved.api_url if saved else None)
    if found is None:
        raise UsageError(
            "no control plane is known: connect('http://…'), or set HOLDFAST_API_URL, or run `holdfast auth login`"
        )
    sent = token or credentials.token_for(found, settings, saved)
    return Connection(Api(found, sent, timeout=timeout, plain_http=settings.plain_http))
