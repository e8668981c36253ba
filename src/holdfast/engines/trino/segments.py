"""The spooling protocol: parts of a result that are downloaded concurrently, from Trino or from its object store."""

from __future__ import annotations

import pyarrow as pa

from holdfast.engines.port import EngineLost, EngineUnavailable, ProtocolBroken
from holdfast.engines.trino.messages import Segment, SegmentSizes
from holdfast.engines.trino.options import TrinoOptions
from holdfast.engines.trino.origin import SPOOLED, checked, checked_segment, origin_of_setting
from holdfast.engines.trino.transport import Transport

CODECS = {"json": None, "json+zstd": "zstd", "json+lz4": "lz4_raw"}
HOP_BY_HOP = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "authorization", "cookie", "accept-encoding"}
)


class Segments:
    """Downloads and acknowledges the segments of results."""

    def __init__(self, transport: Transport, options: TrinoOptions) -> None:
        self._transport = transport
        self._options = options
        self._stores = frozenset(map(origin_of_setting, options.segment_origins))

    def weight(self, segment: Segment) -> int:
        """The maximum memory that a segment needs: compressed, decompressed and as columns."""
        sizes = segment.metadata
        if sizes.segment_size < 0 or (sizes.uncompressed_size or 0) < 0:
            raise ProtocolBroken("the size of a segment is negative")
        whole = sizes.uncompressed_size or sizes.segment_size
        if max(whole, sizes.segment_size) > self._options.max_body_bytes:
            raise ProtocolBroken(f"a segment has {whole:,} bytes; the limit is {self._options.max_body_bytes:,}")
        return sizes.segment_size + 2 * whole

    async def fetch(self, segment: Segment) -> bytes:
        """Return the bytes of a segment, still compressed."""
        if segment.type == "inline":
            return segment.inline()
        if segment.type != "spooled":
            raise ProtocolBroken(f"a segment has an unknown type: {segment.type[:20]!r}")
        uri, is_ours = checked_segment(segment.uri, self._transport.origin, self._stores)
        reply = await self._transport.repeat(
            "GET", uri, headers_for(segment), retry_seconds=self._options.stream_retry_seconds, is_ours=is_ours
        )
        if reply.status != 200:
            raise EngineLost(f"a segment of the result could not be downloaded ({reply.status})")
        return reply.body

    async def acknowledge(self, segment: Segment) -> None:
        """Tell Trino that a segment is no longer needed. Errors are ignored: Trino also removes segments after some time."""
        if segment.ack_uri is not None:
            uri = checked(segment.ack_uri, self._transport.origin, SPOOLED)
            try:
                await self._transport.repeat("GET", uri, headers_for(segment), retry_seconds=0)
            except (EngineUnavailable, ProtocolBroken):
                return


def headers_for(segment: Segment) -> dict[str, str]:
    """The headers that the engine requires for the store, such as an encryption key, without those of the connection."""
    single = {name: values[0] for name, values in segment.headers.items() if len(values) == 1}
    return {
        name: value
        for name, value in single.items()
        if name.lower() not in HOP_BY_HOP and f"{name}{value}".isascii() and f"{name}{value}".isprintable()
    }


def decompress(data: bytes, encoding: str, sizes: SegmentSizes) -> bytes:
    """Decompress a segment to JSON, up to the size in its metadata."""
    if encoding not in CODECS:
        raise ProtocolBroken(f"the segments have an encoding that was not requested: {encoding[:40]!r}")
    codec, whole = CODECS[encoding], sizes.uncompressed_size
    if codec is None or whole is None:
        return data
    if len(data) != sizes.segment_size:
        raise ProtocolBroken(f"a segment has {len(data):,} bytes; its metadata says {sizes.segment_size:,}")
    try:
        decompressed: bytes = pa.decompress(data, decompressed_size=whole, codec=codec, asbytes=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as wrong:
        raise ProtocolBroken("a segment cannot be decompressed") from wrong
    return decompressed
