"""One SELECT to Parquet files, without a mapping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.client.api import Api
from holdfast.client.jobs import Jobs

KIND = "export.run"


class Exports:
    """`hf.exports`."""

    def __init__(self, api: Api, jobs: Jobs) -> None:
        self._api, self._jobs = api, jobs

    def run(
        self,
        sql: str,
        to: str,
        *,
        engine: str = "duckdb",
        role: str | None = None,
        timeout: float | None = 900,
        show: bool = True,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Write the result and wait for it: what it came to, with its files, rows and bytes. `JobFailed` if it failed.

        `to` is a folder of the worker's machine, s3://… or gs://…; options: catalog, schema, max_seconds.
        """
        asked = {"sql": sql, "to": to, "engine": engine, "role": role, **options}
        job = self._jobs.enqueue(KIND, {name: value for name, value in asked.items() if value is not None})
        ended = self._jobs.wait(job["id"], timeout=timeout, show=show, on_progress=on_progress)
        result: dict[str, Any] = ended["result"]
        return result
