"""A page of a result as a record batch: the quick way where it is exact, the general way otherwise."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from holdfast.services.exports.engines.port import Column, ProtocolBroken
from holdfast.services.exports.engines.trino.flat import FlatReader
from holdfast.services.exports.engines.trino.nested import NestedReader
from holdfast.services.exports.engines.trino.signature import TrinoType

WELL_FORMED = msgspec.json.Decoder(msgspec.Raw)


class PageDecoder:
    """Decodes the pages of one result. Safe to use from several threads."""

    def __init__(self, columns: tuple[Column, ...], types: tuple[TrinoType, ...]) -> None:
        self.schema = pa.schema([pa.field(column.name, column.arrow) for column in columns])
        self._flat = None if any(type_.is_nested for type_ in types) else FlatReader(types)
        self._nested = NestedReader(types)

    def decode(self, given: bytes | msgspec.Raw, *, is_well_formed: bool = False) -> pa.RecordBatch:
        """The rows of one page. Raises `ProtocolBroken` when they are not what the columns say."""
        page = bytes(given)
        try:
            if not is_well_formed:
                WELL_FORMED.decode(page)
            arrays = self._flat.columns(page) if self._flat else None
            if arrays is None:
                arrays = self._nested.columns(page)
            return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        except (
            msgspec.MsgspecError,
            pa.ArrowException,
            ValueError,
            KeyError,
            TypeError,
            OverflowError,
            RecursionError,
        ) as wrong:
            raise ProtocolBroken(f"rows do not fit their columns: {str(wrong)[:200]}") from wrong
