"""What a worker imports to run ingestion."""

from __future__ import annotations

from typing import Any

from holdfast.services.ingestion.jobs.aggregation import aggregation
from holdfast.services.ingestion.jobs.api_ingest import api_ingest
from holdfast.services.ingestion.jobs.csv_ingest import csv_ingest
from holdfast.services.ingestion.jobs.emission_recalc import emission_recalc
from holdfast.services.ingestion.jobs.factor_ingest import factor_ingest
from holdfast.services.ingestion.jobs.module_emission_recalc import module_emission_recalc
from holdfast.services.ingestion.jobs.reference_ingest import reference_ingest, unit_sync
from holdfast.services.ingestion.service import SERVICE
from holdfast.services.registration import declared_kinds
from holdfast.worker.kinds import Job

KINDS: list[Job[..., Any]] = declared_kinds(
    SERVICE,
    [
        csv_ingest,
        api_ingest,
        factor_ingest,
        unit_sync,
        reference_ingest,
        emission_recalc,
        module_emission_recalc,
        aggregation,
    ],
)
