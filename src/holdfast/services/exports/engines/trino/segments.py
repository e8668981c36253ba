"""The spooling protocol: parts of a result that are fetched beside each other, wherever Trino put them."""

from __future__ import annotations

import pyarrow as pa

from holdfast.services.exports.engines.port import EngineLost, EngineUnavailable, ProtocolBroken
from holdfast.services.exports.engines.trino.messages import Segment, SegmentSizes
from holdfast.services.exports.engines.trino.options import TrinoOptions
from holdfast.services.exports.engines.trino.origin import SPOOLED, checked, checked_segment, origin_of_setting
from holdfast.services.exports.engines.trino.transport import Transport

CODECS = {"json": None, "json+zstd": "zstd", "json+lz4": "lz4_raw"}
HOP_BY_HOP = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "authorization", "cookie", "accept-encoding"}
)


class Segments:
    """Fetches and unpacks the segments of results."""

    def __init__(self, transport: Transport, options: TrinoOptions) -> None:
        self._transport = transport
        self._options = options
        self._stores = frozenset(map(origin_of_setting, options.segment_origins))

    def weight(self, segment: Segment) -> int:
        """How much memory it takes while it is on its way, at most: packed, unpacked, and as columns."""
        sizes = segment.metadata
        if sizes.segment_size < 0 or (sizes.uncompressed_size or 0) < 0:
            raise ProtocolBroken("a segment of less than no bytes")
        whole = sizes.uncompressed_size or sizes.segment_size
        if max(whole, sizes.segment_size) > self._options.max_body_bytes:
            raise ProtocolBroken(f"a segment of {whole:,} bytes; at most {self._options.max_body_bytes:,} are taken")
        return sizes.segment_size + 2 * whole

    async def fetch(self, segment: Segment) -> bytes:
        """The packed bytes of a segment."""
        if segment.type == "inline":
            return segment.inline()
        if segment.type != "spooled":
            raise ProtocolBroken(f"a segment of an unknown type: {segment.type[:20]!r}")
        uri, is_ours = checked_segment(segment.uri, self._transport.origin, self._stores)
        reply = await self._transport.repeat(
            "GET", uri, headers_for(segment), patience=self._options.stream_patience_seconds, is_ours=is_ours
        )
        if reply.status != 200:
            raise EngineLost(f"a segment of the result is not there ({reply.status})")
        return reply.body

    async def acknowledge(self, segment: Segment) -> None:
        """Say that a segment is no longer needed. Trino removes it in time also when it does not hear us."""
        if segment.ack_uri is not None:
            uri = checked(segment.ack_uri, self._transport.origin, SPOOLED)
            try:
                await self._transport.repeat("GET", uri, headers_for(segment), patience=0)
            except (EngineUnavailable, ProtocolBroken):
                return


def headers_for(segment: Segment) -> dict[str, str]:
    """What the engine wants to be sent along to the store, as a key of encryption; never what steers the connection."""
    single = {name: values[0] for name, values in segment.headers.items() if len(values) == 1}
    return {
        name: value
        for name, value in single.items()
        if name.lower() not in HOP_BY_HOP and f"{name}{value}".isascii() and f"{name}{value}".isprintable()
    }


def unpack(data: bytes, encoding: str, sizes: SegmentSizes) -> bytes:
    """The JSON in a segment. Not one byte more than it says is unpacked."""
    if encoding not in CODECS:
        raise ProtocolBroken(f"segments in an encoding that was not asked for: {encoding[:40]!r}")
    codec, whole = CODECS[encoding], sizes.uncompressed_size
    if codec is None or whole is None:
        return data
    if len(data) != sizes.segment_size:
        raise ProtocolBroken(f"a segment of {len(data):,} bytes that says it has {sizes.segment_size:,}")
    try:
        unpacked: bytes = pa.decompress(data, decompressed_size=whole, codec=codec, asbytes=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as wrong:
        raise ProtocolBroken("a segment that cannot be unpacked") from wrong
    return unpacked
