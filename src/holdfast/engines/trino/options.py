"""Options of a Trino: its address, credentials, limits and timeouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.engines.settings import EngineSettings

MiB = 1 << 20
CLIENT_TAG = "holdfast"
SOURCE = "holdfast"
ENCODINGS = ("json+zstd", "json+lz4", "json")


@dataclass(frozen=True, slots=True)
class TrinoOptions:
    """The options of one Trino. Secrets are not in its repr."""

    url: str
    user: str
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    role_required: bool = True
    role_catalog: str = "system"  # the catalog of the roles of queries
    client_tags: tuple[str, ...] = (CLIENT_TAG,)
    source: str = SOURCE
    encodings: tuple[str, ...] = ENCODINGS  # of spooled results, preferred first; none: no spooling
    segment_origins: tuple[str, ...] = ()  # object stores that segments may be fetched from
    compress: bool = False  # ask for gzip; only useful on a slow network
    unload_function: str = "system.unload"
    ctas_schema: str | None = None  # catalog.schema in which CTAS creates tables
    ctas_location: str = "location"  # the table property: `location` for Iceberg, `external_location` for Hive

    connect_seconds: float = 5.0
    read_seconds: float = 30.0
    poll_retry_seconds: float = 10.0  # how long one poll is retried before it fails
    stream_retry_seconds: float = 120.0  # less than query.client.timeout (5 min), after which Trino drops a query
    max_body_bytes: int = 64 * MiB
    memory_bytes: int = 64 * MiB  # of a result that is being read
    fetchers: int = 4  # concurrent downloads of segments
    decoders: int = 2

    def __post_init__(self) -> None:
        if self.password and self.token:
            raise UsageError("Trino has both a password and a token; use one of them")
        if "@" in self.url.partition("://")[2].partition("/")[0]:
            raise UsageError("the address of Trino has a user or password; use HOLDFAST_TRINO_USER and HOLDFAST_TRINO_PASSWORD")

    @classmethod
    def from_settings(cls, given: EngineSettings) -> TrinoOptions:
        """The options that the settings describe."""
        if not given.trino_url or not given.trino_user:
            raise UsageError("Trino is not configured; set HOLDFAST_TRINO_URL and HOLDFAST_TRINO_USER")
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
    """The items of a comma-separated setting."""
    return tuple(word for word in (part.strip() for part in listed.split(",")) if word)
