"""Whether a file is loaded in spite of its bad rows, and what its result is. Pure.

The result follows the documents: no row loaded is ERROR, no row left out is SUCCESS, anything else is WARNING.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from holdfast.services.ingestion.staging.errors import RowError
from holdfast.services.ingestion.staging.validate import Counts

LONGEST_MESSAGE = 200  # characters of the first error within the message


class Result(StrEnum):
    """The result of a finished job, in the words of the documents."""

    SUCCESS = "SUCCESS"
    WARNING = "WARNING"
    ERROR = "ERROR"


class ErrorPolicy(BaseModel):
    """How many bad rows a file may have. Without a limit, the good rows are loaded whatever their number."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_errors: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None  # 0: all or nothing
    max_error_percent: Annotated[float, Field(ge=0, le=100)] | None = None

    def refuses(self, counts: Counts) -> str | None:
        """Why a file with so many bad rows is not loaded; None if it is."""
        if self.max_errors is not None and counts.bad > self.max_errors:
            return f"{counts.bad:,} bad rows are more than max_errors={self.max_errors:,}"
        percent = 100 * counts.bad / counts.read if counts.read else 0.0
        if self.max_error_percent is not None and percent > self.max_error_percent:
            return f"{percent:.2f} % bad rows are more than max_error_percent={self.max_error_percent:g}"
        return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result, and the sentence that says it."""

    result: Result
    message: str


def judge(counts: Counts, policy: ErrorPolicy, first: RowError | None, *, dry_run: bool = False) -> Verdict:
    """The result of a file with these rows."""
    because = "" if first is None else f"; first error: {str(first)[:LONGEST_MESSAGE]}"
    refused = policy.refuses(counts)
    if refused is not None:
        return Verdict(Result.ERROR, f"nothing loaded: {refused}{because}")
    if counts.good == 0:
        what = "the file has no rows" if counts.read == 0 else f"all {counts.read:,} rows are bad"
        return Verdict(Result.ERROR, f"nothing loaded: {what}{because}")
    done = "would be loaded" if dry_run else "loaded"
    if counts.bad == 0:
        return Verdict(Result.SUCCESS, f"{counts.good:,} rows {done}")
    return Verdict(Result.WARNING, f"{counts.good:,} of {counts.read:,} rows {done}, {counts.bad:,} skipped{because}")
