"""The environment variables of a graph server. The runtime that starts it sets them."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr

from holdfast.errors import InvalidSetting
from holdfast.stores.settings import StoreSettings


class GraphServerSettings(StoreSettings):
    """What one graph server is told."""

    graph_plan: Path | None = Field(default=None, description="File with the load plan, as JSON.")
    graph_plan_url: str | None = Field(
        default=None, description="Address of the load plan, read with the secret as bearer token; used without a file."
    )
    graph_secret: SecretStr | None = Field(
        default=None, description="Bearer token that every request needs, except /health and /ready."
    )
    graph_host: str = Field(default="127.0.0.1", description="Address to listen on.")
    graph_port: int = Field(default=0, ge=0, le=65535, description="Port to listen on; 0: a free one.")
    graph_port_file: Path | None = Field(default=None, description="File that gets the port once the server listens.")
    graph_pod_name: str | None = Field(default=None, description="Name of the pod, for reports; without it the process id.")
    graph_data_dir: Path = Field(default=Path(".holdfast-graph"), description="Folder of the database and of downloaded files.")
    graph_memory_mb: int = Field(default=2048, ge=256, description="Memory limit of the instance; 40 % become the buffer pool.")
    graph_callback_url: str | None = Field(
        default=None, description="Address for status, progress and activity, sent with the secret as bearer token."
    )
    graph_sessions: int = Field(default=8, ge=1, le=256, description="How many queries run at once; others wait.")
    graph_waiting_queries: int = Field(default=1000, ge=0, description="How many queries may wait; others get 503.")
    graph_query_seconds: float = Field(default=60.0, gt=0, description="Default timeout of a query.")
    graph_query_longest_seconds: float = Field(default=1800.0, gt=0, description="Longest timeout that a query may ask for.")
    graph_rows: int = Field(default=100_000, ge=1, description="Default row limit of a query.")
    graph_most_rows: int = Field(default=10_000_000, ge=1, description="Highest row limit that a query may ask for.")
    graph_report_seconds: float = Field(default=5.0, gt=0, description="Interval of reports to the callback address.")

    @property
    def secret(self) -> str:
        """The bearer token; `InvalidSetting` if there is none."""
        if self.graph_secret is None or not self.graph_secret.get_secret_value():
            raise InvalidSetting("HOLDFAST_GRAPH_SECRET is not set; every request to a graph server needs this token")
        return self.graph_secret.get_secret_value()

    @property
    def buffer_pool(self) -> int:
        """Bytes of the engine's buffer pool. The rest is for results in Arrow, algorithms and the process itself."""
        return max(64, self.graph_memory_mb * 2 // 5) * 1024 * 1024
