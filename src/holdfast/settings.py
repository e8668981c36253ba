"""Every setting, with its default and what it means. The only reader of the environment.

`HOLDFAST_<NAME>` sets it; the names that the documents use are accepted too where they differ.
"""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from pathlib import Path

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What can be set from outside."""

    model_config = SettingsConfigDict(env_prefix="HOLDFAST_", frozen=True, extra="ignore")

    database_url: str | None = Field(default=None, description="A Postgres (15 or newer) to use instead of the embedded one.")
    data_dir: Path = Field(default=Path(".holdfast"), description="Where the embedded Postgres keeps its data.")
    port: int = Field(default=54329, description="Port of the embedded Postgres; another is taken, and said, when it is busy.")

    beat: timedelta = Field(default=timedelta(seconds=5), description="How often a worker renews its lease.")
    lease: timedelta = Field(default=timedelta(seconds=30), description="How long a silent worker keeps its jobs.")
    poll: timedelta = Field(
        default=timedelta(seconds=10), description="How often an idle worker looks for work without having been told."
    )
    stale_job_timeout: timedelta = Field(
        default=timedelta(minutes=30),
        description="How long after its claim a silent job may be recovered by hand.",
    )
    run_background_poller: bool = Field(
        default=True,
        validation_alias=AliasChoices("HOLDFAST_RUN_BACKGROUND_POLLER", "RUN_BACKGROUND_POLLER"),
        description="Whether the safety poller runs beside the web routes.",
    )
    hostname: str | None = Field(
        default=None,
        validation_alias=AliasChoices("HOLDFAST_HOSTNAME", "HOSTNAME"),
        description="The display name of this process; in Kubernetes the pod's name.",
    )
    retention: timedelta = Field(default=timedelta(days=30), description="How long ended jobs are kept.")
    payload_limit: int = Field(default=1_000_000, description="The largest payload in bytes, as JSON.")


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process, read once."""
    return Settings()
