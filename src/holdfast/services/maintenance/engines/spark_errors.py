"""What Spark's errors mean for another attempt. Pure. Called by: `spark_connect.py` and `spark_thrift.py`."""

from __future__ import annotations

from typing import Final

from holdfast.services.maintenance.engines.interface import EngineFailed, MaintenanceError, TableConflict, TableRefused

# Other writers committed first, and Iceberg's validation found that the two changes exclude each other.
CONFLICT: Final = ("CommitFailedException", "ValidationException", "Cannot commit", "Missing required files to delete")
# Another attempt at the same statement would fail in the same way.
LASTING: Final = (
    *("TABLE_OR_VIEW_NOT_FOUND", "NoSuchTableException", "Couldn't load table", "SCHEMA_NOT_FOUND"),
    *("PARSE_SYNTAX_ERROR", "AnalysisException", "IllegalArgumentException", "UnsupportedOperationException"),
)
LONGEST: Final = 1000  # characters of a message


def error_saying(message: str, everything: str) -> MaintenanceError:
    """The error of a statement. `everything` is what the server said, with the classes of its exceptions."""
    said = f"spark: {message[:LONGEST]}"
    if any(word in everything for word in CONFLICT):
        return TableConflict(said)
    return TableRefused(said) if any(word in everything for word in LASTING) else EngineFailed(said)
