"""Decode a page of a result into a record batch: with the fast reader where it is exact, otherwise with the general one."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from holdfast.engines.port import Column, ProtocolBroken
from holdfast.engines.trino.flat import FlatReader
from holdfast.engines.trino.nested import NestedReader
from holdfast.engines.trino.signature import TrinoType

WELL_FORMED = msgspec.json.Decoder(msgspec.Raw)


class PageDecoder:
    """Decodes the pages of one result. Safe to use from several threads."""

    def __init__(self, columns: tuple[Column, ...], types: tuple[TrinoType, ...]) -> None:
        self.schema = pa.schema([pa.field(column.name, column.arrow) for column in columns])
        self._flat = None if any(type_.is_nested for type_ in types) else FlatReader(types)
        self._nested = NestedReader(types)

    def decode(self, given: bytes | msgspec.Raw, *, is_well_formed: bool = False) -> pa.RecordBatch:
        """Return the rows of one page. Raises `ProtocolBroken` if they do not match the columns."""
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
            raise ProtocolBroken(f"the rows do not match their columns: {str(wrong)[:200]}") from wrong
