"""Which roles may do what with ingestion, and the permissions of the documents that grant the same. Pure data."""

from __future__ import annotations

from typing import Final

from holdfast.api.policy import MAKERS, OPERATORS, READERS, Rule

VIEW: Final = "backoffice.data_management.view"
SYNC: Final = "backoffice.data_management.sync"
EDIT: Final = "backoffice.data_management.edit"

ACTIONS: Final[dict[str, Rule]] = {
    "ingestion.read": Rule("read ingestion jobs, bad rows, statistics and data models", READERS, permission=VIEW),
    "ingestion.upload": Rule("upload a file", MAKERS, permission=SYNC),
    "ingestion.dispatch": Rule("ingest a file or an API, and recalculate emissions", MAKERS, permission=SYNC),
    "ingestion.change_model": Rule("create or change a data model", OPERATORS, permission=EDIT),
}
