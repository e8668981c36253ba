"""Parameters that the routes of ingestion share."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request
from pydantic import Field

from holdfast.api.plane import plane_of
from holdfast.services.ingestion.setup import Ingestion

Year = Annotated[int, Field(ge=1900, le=2200)]
Name = Annotated[str, Field(min_length=1, max_length=50, pattern=r"^[a-z0-9_]+$")]


def ingestion_of(request: Request) -> Ingestion:
    """What ingestion keeps open in this process."""
    return cast("Ingestion", plane_of(request).services["ingestion"])


Here = Annotated[Ingestion, Depends(ingestion_of)]
