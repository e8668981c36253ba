"""What `holdfast doctor` checks for ingestion: whether its packages are installed, and whether uploads can be stored."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.distribution import install_hint
from holdfast.errors import HoldfastError
from holdfast.extras import missing_modules
from holdfast.services.ingestion.settings import IngestionSettings
from holdfast.services.ingestion.setup import ingestion_from
from holdfast.stores.opening import open_store
from holdfast.stores.paths import location_of
from holdfast.toolkit.cli.finding import Finding, Level


def checks(settings: IngestionSettings) -> Iterator[Finding]:
    """What is wrong. Nothing is yielded if nothing is."""
    missing = missing_modules("ingestion")
    if missing:
        yield Finding("ingestion", Level.INFO, f"not installed: {', '.join(missing)}", install_hint("ingestion"))
        return
    here = ingestion_from(settings)
    try:
        open_store(location_of(here.root), here.stores)
    except HoldfastError as error:
        fix = "set HOLDFAST_INGESTION_TO to a folder or bucket that may be written"
        yield Finding("ingestion", Level.ERROR, str(error), fix)
