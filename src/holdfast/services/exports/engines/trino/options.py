"""Where a Trino is and how it may be used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.errors import UsageError
from holdfast.services.exports.engines.port import CLIENT_TAG, SOURCE

if TYPE_CHECKING:
    from holdfast.settings import Settings

MiB = 1 << 20
ENCODINGS = ("json+zstd", "json+lz4", "json")


@dataclass(frozen=True, slots=True)
class TrinoOptions:
    """Everything that is fixed for one Trino. Secrets are never shown."""

    url: str
    user: str
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    role_required: bool = True
    role_catalog: str = "system"  # whose role the query's role is
    client_tags: tuple[str, ...] = (CLIENT_TAG,)
    source: str = SOURCE
    encodings: tuple[str, ...] = ENCODINGS  # of spooled results, best first; none: plain pages
    segment_origins: tuple[str, ...] = ()  # object stores that segments may be fetched from
    compress: bool = False  # ask for gzip; worth it only on a slow line
    unload_function: str = "system.unload"
    ctas_schema: str | None = None  # catalog.schema whose tables CTAS writes
    ctas_location: str = "location"  # Iceberg's property; Hive says external_location

    connect_seconds: float = 5.0
    read_seconds: float = 30.0
    look_patience_seconds: float = 10.0  # how long one look tries again before the worker does something else
    stream_patience_seconds: float = 120.0  # less than query.client.timeout (5 min), after which Trino lets a query go
    max_body_bytes: int = 64 * MiB
    memory_bytes: int = 64 * MiB  # of a result that is on its way
    fetchers: int = 4  # segments fetched at once
    decoders: int = 2

    def __post_init__(self) -> None:
        if self.password and self.token:
            raise UsageError("give Trino a password or a token, not both")
        if "@" in self.url.partition("://")[2].partition("/")[0]:
            raise UsageError("put no user or password into the address of Trino; there are settings for them")

    @classmethod
    def from_settings(cls, given: Settings) -> TrinoOptions:
        """What the environment says."""
        if not given.trino_url or not given.trino_user:
            raise UsageError("no Trino is configured; set HOLDFAST_TRINO_URL and HOLDFAST_TRINO_USER")
        return cls(
            url=given.trino_url,
            user=given.trino_user,
            password=given.trino_password.get_secret_value() if given.trino_password else None,
            token=given.trino_token.get_secret_value() if given.trino_token else None,
            ca_file=str(given.trino_ca_file) if given.trino_ca_file else None,
            role_required=given.trino_role_required,
            role_catalog=given.trino_role_catalog,
            client_tags=words(given.trino_client_tags),
            source=given.trino_source,
            encodings=words(given.trino_encodings),
            segment_origins=words(given.trino_segment_origins),
            unload_function=given.trino_unload_function,
            ctas_schema=given.trino_ctas_schema,
            ctas_location=given.trino_ctas_location,
            read_seconds=given.trino_request_timeout_seconds,
        )


def words(listed: str) -> tuple[str, ...]:
    """The parts of a comma separated setting."""
    return tuple(word for word in (part.strip() for part in listed.split(",")) if word)
