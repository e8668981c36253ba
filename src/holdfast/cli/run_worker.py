"""Run a worker with the options of `holdfast worker run`. Called by: `worker.py`."""

from __future__ import annotations

from rich.console import Console

from holdfast import catalog
from holdfast.apps.database import database
from holdfast.apps.telemetry import begin_telemetry
from holdfast.apps.worker import executor_config, keep
from holdfast.cli.program_settings import program_settings
from holdfast.database.revision import require_current, wanted
from holdfast.errors import UsageError
from holdfast.toolkit.cli.verb import LogFormat
from holdfast.worker.keeper.messages import Mode


def run(
    modules: list[str] | None,
    *,
    dsn: str | None,
    kinds: list[str] | None,
    queue: list[str] | None,
    concurrency: int,
    executors: int,
    once: bool,
    drain: bool,
    http: str | None,
    log_format: LogFormat | None,
) -> int:
    """Run jobs until the worker is stopped. Returns the exit code."""
    given = program_settings(dsn=dsn, log_format=log_format)
    begin_telemetry(given)
    if once and (drain or executors > 1):
        raise UsageError("--once runs one job in one executor; do not pass --drain or --executors with it")
    mode: Mode = "once" if once else "drain" if drain else "serve"
    only = [kind for named in kinds or () for kind in named.split(",") if kind]
    with database(given, Console(stderr=True)) as address:
        require_current(address)
        config = executor_config(
            given, address, modules or catalog.kind_modules(),
            kinds=only, queues=queue or ("default",), concurrency=concurrency, mode=mode,
        )  # fmt: skip
        return keep(
            config,
            executors=executors,
            http=http or given.worker_http,
            wanted_revision=wanted(),
            crash_at=given.crash_keeper_at,
        )
