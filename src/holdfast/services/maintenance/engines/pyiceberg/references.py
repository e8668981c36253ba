"""The files that the snapshots of a table refer to, as a set that takes 8 bytes per file.

Locations are compared by a hash of their normalised spelling. Two locations with one hash let an orphan stay; they never make a
file in use an orphan.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from holdfast.services.maintenance.engines.pyiceberg.manifests import THREADS, entries_in, in_order, manifests_of
from holdfast.services.maintenance.engines.pyiceberg.paths import normalised

Watch = Callable[[Iterable[Any]], Iterator[Any]]


class References:
    """A set of locations."""

    def __init__(self, locations: Iterable[str]) -> None:
        self._hashes = _sorted(array("Q", (hash_of(location) for location in locations)))

    @classmethod
    def none(cls) -> References:
        """The empty set."""
        return cls(())

    @classmethod
    def of(cls, table: Table, *, snapshots: list[Snapshot] | None = None, watch: Watch = iter) -> References:
        """Every file that the table refers to; with `snapshots`, only files of these and the metadata itself."""
        chosen = table.metadata.snapshots if snapshots is None else snapshots
        return cls(_locations(table, chosen, watch))

    @staticmethod
    def of_metadata(table: Table) -> set[int]:
        """The ids of the snapshots of a table."""
        return {snapshot.snapshot_id for snapshot in table.metadata.snapshots}

    def __contains__(self, location: str) -> bool:
        wanted = hash_of(location)
        at = bisect_left(self._hashes, wanted)
        return at < len(self._hashes) and self._hashes[at] == wanted

    def __len__(self) -> int:
        return len(self._hashes)


def hash_of(location: str) -> int:
    """64 bits of a location in its normalised spelling."""
    return int.from_bytes(hashlib.blake2b(normalised(location).encode(), digest_size=8).digest(), "little")


def _sorted(hashes: array[int]) -> memoryview:
    if not hashes:
        return memoryview(b"").cast("Q")
    unsorted = pa.Array.from_buffers(pa.uint64(), len(hashes), [None, pa.py_buffer(hashes)])
    return memoryview(unsorted.sort().buffers()[1]).cast("Q")


def _locations(table: Table, snapshots: list[Snapshot], watch: Watch) -> Iterator[str]:
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (one.statistics_path for one in metadata.statistics)
    yield from (one.statistics_path for one in metadata.partition_statistics)
    seen: set[str] = set()  # snapshots share most of their manifests

    def unseen(snapshot: Snapshot) -> list[ManifestFile]:
        return [one for one in manifests_of(snapshot, table.io) if one.manifest_path not in seen]

    def files(manifest: ManifestFile) -> list[str]:
        return [entry.data_file.file_path for entry in entries_in(manifest, table.io)]

    yield from (snapshot.manifest_list for snapshot in snapshots)
    with ThreadPoolExecutor(THREADS, "holdfast-references") as pool:
        for found in watch(in_order(pool, unseen, snapshots)):
            new = {one.manifest_path: one for one in found if one.manifest_path not in seen}
            seen.update(new)
            yield from new
            for paths in watch(in_order(pool, files, new.values())):
                yield from paths
