"""What `holdfast doctor` checks for maintenance, on the machine where it runs: the packages, and whether catalogs respond."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import httpx2

from holdfast.distribution import install_hint
from holdfast.extras import missing_modules
from holdfast.services.maintenance.engines.catalogs import EMBEDDED
from holdfast.services.maintenance.opening import properties_of
from holdfast.services.maintenance.settings import MaintenanceSettings
from holdfast.toolkit.cli.finding import Finding, Level, ok


def checks(settings: MaintenanceSettings) -> Iterator[Finding]:
    """One finding for the packages, and one for each catalog that has an address."""
    catalogs = properties_of(settings)
    missing = missing_modules("maintenance")
    if missing and settings.iceberg_catalogs:
        said = f"catalogs are configured, and these packages are missing: {', '.join(missing)}"
        yield Finding("table maintenance", Level.ERROR, said, install_hint("maintenance"))
    for name, properties in catalogs.items():
        if properties.get("type") != EMBEDDED and properties.get("uri", "").startswith(("http://", "https://")):
            yield _reached(name, properties)


def _reached(name: str, properties: Mapping[str, str]) -> Finding:
    """Whether a REST catalog responds, with any status. No credentials are sent."""
    address = properties["uri"]
    try:
        httpx2.get(f"{address.rstrip('/')}/v1/config", timeout=5, follow_redirects=False)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        said = f"{address} does not respond: {str(error) or type(error).__name__}"
        return Finding(f"catalog {name}", Level.ERROR, said, "start it, or fix its uri in HOLDFAST_ICEBERG_CATALOGS")
    return ok(f"catalog {name}", f"{address} responds")
