"""The description of ingestion: everything that the programs, the command line and the client learn of it."""

from __future__ import annotations

from typing import Final

from holdfast.services.contract import Command, Kind, Namespace, Page, Service, Topic
from holdfast.services.ingestion import names, policy, problems
from holdfast.services.ingestion.scope import JOB_TYPES, PREFIX
from holdfast.services.registration import register

SERVICE: Final = register(
    Service(
        name="ingestion",
        purpose="Ingests CSV, XLSX and Parquet files and paged APIs, and recalculates emissions from entries and factors.",
        routes="api",
        actions=policy.ACTIONS,
        problems=problems.PROBLEMS,
        pages=(
            Page("ingestion", "Ingestion", "ingestion.read", "pages.overview:show", "Ingestion"),
            Page("ingestion/upload", "Upload", "ingestion.upload", "pages.upload:show", takes="pages.upload:take"),
            Page("ingestion/{ingestion_id}", "Ingestion job", "ingestion.read", "pages.run:show"),
        ),
        console_actions="pages.actions:ACTIONS",
        topics=(Topic("ingestion", "topics:read"),),
        kinds=tuple(Kind(f"{PREFIX}{job_type}") for job_type in JOB_TYPES),
        kinds_module="kinds",
        loops=("ingestion_staging",),
        loops_module="loops",
        settings="settings:IngestionSettings",
        events=names.EVENTS,
        metrics=names.METRICS,
        plane_metrics=names.PLANE_METRICS,
        crash_points=names.CRASH_POINTS,
        commands=(Command("ingest", "cli", "Ingestion: upload files, follow them, list bad rows, recalculate."),),
        client=(Namespace("ingestion", "client:Ingestions"),),
        checks="checks",
        tables=(
            *("data_models", "data_model_versions", "data_entry_types", "data_entries", "data_entry_emissions", "factors"),
            *("emission_scopes", "emission_stats", "reference_values", "ingestion_files", "ingestion_years"),
            *("ingestion_cursors", "ingestion_errors", "ingestion_job_types", "ingestion_states", "ingestions"),
        ),
        migrations="migrations",
        demo="demo",
        extras={"ingestion": "openpyxl"},
    )
)
