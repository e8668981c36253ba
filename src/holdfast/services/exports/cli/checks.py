"""What `holdfast doctor` checks for exports, on the machine where it runs: whether the engine and the object store respond."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import httpx2

from holdfast.services.exports.settings import ExportsSettings
from holdfast.toolkit.cli.finding import Finding, Level, ok


def checks(settings: ExportsSettings) -> Iterator[Finding]:
    """One finding for each server that is configured."""
    if settings.trino_url is not None:
        yield _reached("engine", settings.trino_url, f"{settings.trino_url.rstrip('/')}/v1/info", settings)
    if settings.s3_endpoint is not None:
        yield _reached("object store", settings.s3_endpoint, settings.s3_endpoint, settings)


def _reached(check: str, address: str, url: str, settings: ExportsSettings) -> Finding:
    error = _connection_error(url, settings)
    if error is None:
        return ok(check, f"{address} responds")
    return Finding(check, Level.ERROR, f"{address} does not respond: {error}", "start it, or fix its address; exports wait")


def _connection_error(url: str, settings: ExportsSettings) -> str | None:
    """Why there is no response, of any status. No credentials are sent."""
    authority: Any = True if settings.trino_ca_file is None else ssl.create_default_context(cafile=str(settings.trino_ca_file))
    try:
        httpx2.get(url, timeout=5, follow_redirects=False, verify=authority)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return str(error) or type(error).__name__
    return None
