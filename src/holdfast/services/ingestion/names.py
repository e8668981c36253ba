"""Every event, metric and crash point of ingestion, with one line each. Pure data."""

from __future__ import annotations

from typing import Final

EVENTS: Final[dict[str, str]] = {
    "ingestion_rows_judged": "The rows of a file were validated; says how many are good and bad, and the result.",
    "ingestion_staging_dropped": "Staging tables of attempts that do not run any more were dropped.",
    "ingestion_staging_not_dropped": "A staging table could not be dropped; the next pass of the loop tries again.",
}

METRICS: Final[dict[str, str]] = {
    "ingestion_rows_total": "Rows that this process has validated, by outcome (good, bad).",
    "ingestion_web_request_duration_seconds": "Duration of requests of an application that runs ingestion beside its routes "
    "(`WebLatency`), by route and status.",
    "ingestion_uploaded_bytes_total": "Bytes of files that were uploaded through this process.",
}

# Counted in the database.
PLANE_METRICS: Final[dict[str, str]] = {
    "ingestion_jobs": "The newest 10,000 ingestion jobs, by job_type and result (or state, if not finished); a gauge.",
    "ingestion_peak_memory_bytes": "Most memory of a process that has read a file, among the newest 10,000 ingestion jobs.",
    "ingestion_recalculations_due": "Data entry types and years whose emissions do not include every change.",
    "ingestion_aggregations_due": "Data entry types and years whose statistics do not include every change.",
    "ingestion_statistics_lag_seconds": "Age of the oldest change that the statistics do not include; 0 if there is none.",
}

CRASH_POINTS: Final[dict[str, str]] = {
    "ingest.staged": "The rows of a file are in staging tables; nothing is validated.",
    "ingest.validated": "The bad rows are listed; nothing is loaded.",
    "ingest.in_tx_loaded": "Within the transaction that ends the job: the rows are loaded, nothing is committed.",
    "recalc.in_tx_updated": "Within the transaction that ends the job: emissions are updated, nothing is committed.",
    "aggregation.in_tx_summed": "Within the transaction that ends the job: statistics are written, nothing is committed.",
}
