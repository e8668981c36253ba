"""Convert columns of texts to their Arrow types, for the types that Trino sends as text."""

from __future__ import annotations

import binascii

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.engines.port import EngineError
from holdfast.engines.trino.signature import MAX_FRACTION_DIGITS, TrinoType

IN_UTC = frozenset({"UTC", "Z", "+00:00", "-00:00", "Etc/UTC", "GMT", "Etc/GMT", "Zulu", "Universal"})
ZONED = "timestamp with time zone"
FRACTION = rf"(\.\d{{{MAX_FRACTION_DIGITS}}})\d+"


class Unrepresentable(EngineError):
    """Its Arrow type cannot represent a value: a year out of range, or an ambiguous local time at the end of DST."""

    code = "engine_value_unrepresentable"


def from_text(texts: pa.Array, type_: TrinoType) -> pa.Array:
    """Convert a column of texts to the type. Raises ArrowInvalid if a text has another format."""
    if type_.too_fine:
        texts = pc.replace_substring_regex(texts, FRACTION, r"\1")
    if type_.raw == ZONED:
        return _instants(texts, type_.arrow)
    if type_.raw == "varbinary":
        return pa.array([None if text is None else binascii.a2b_base64(text) for text in texts.to_pylist()], pa.binary())
    if type_.raw == "time":  # Arrow parses a time of day only after a date
        dated = pc.binary_join_element_wise("1970-01-01", texts, " ")
        return dated.cast(pa.timestamp(type_.arrow.unit)).cast(type_.arrow)
    return texts if texts.type == type_.arrow else texts.cast(type_.arrow)


def _instants(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Convert local times that are followed by a zone name to instants. Most columns have only one zone, usually UTC."""
    local = pc.replace_substring_regex(texts, r" \S+$", "").cast(pa.timestamp(type_.unit))
    zones = pc.replace_substring_regex(texts, r"^.* ", "").dictionary_encode()
    names = zones.dictionary.to_pylist()
    if len(names) <= 1:
        return _in_zone(local, names[0] if names else "UTC", type_)
    instants = pa.nulls(len(texts), type_)
    for index, name in enumerate(names):
        here = pc.fill_null(pc.equal(zones.indices, index), False)
        instants = pc.replace_with_mask(instants, here, _in_zone(local.filter(here), name, type_))
    return instants


def _in_zone(local: pa.Array, zone: str, type_: pa.DataType) -> pa.Array:
    if zone in IN_UTC:
        return local.cast(type_)
    if zone[0] in "+-":
        hours, _, minutes = zone[1:].partition(":")
        seconds = (int(hours) * 3600 + int(minutes or 0) * 60) * (-1 if zone[0] == "-" else 1)
        return pc.subtract(local, pa.scalar(seconds, pa.duration("s")).cast(pa.duration(type_.unit))).cast(type_)
    try:
        return pc.assume_timezone(local, zone, ambiguous="raise", nonexistent="raise").cast(type_)
    except pa.ArrowInvalid as wrong:
        raise Unrepresentable(
            f"Trino prints times in {zone} without their offset, and one of these is ambiguous or cannot be parsed; "
            "select the column AT TIME ZONE 'UTC'"
        ) from wrong
