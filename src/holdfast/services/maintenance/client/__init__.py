"""The client of maintenance: `hf.tables` of `holdfast.client.connect()`."""

from holdfast.services.maintenance.client.tables import Run, Table

__all__ = ["Run", "Table"]
