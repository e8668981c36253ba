"""Holdfast from a notebook or a script, over HTTP: `from holdfast.client import connect`.

    hf = connect()
    mapping = hf.mappings.apply("map.yaml")
    snapshot = hf.snapshots.create_and_wait(mapping)
    snapshot.node_counts

Plain blocking calls, on the same API as the command line, with what `holdfast auth login` left. Waiting shows a bar in a
terminal and a card in a notebook; into a pipe it shows nothing.
"""

from holdfast.client.api import Api
from holdfast.client.connection import Connection, connect
from holdfast.client.mappings import Mapping
from holdfast.client.problems import (
    ApiProblem,
    Conflict,
    Invalid,
    JobFailed,
    NotAllowed,
    NotThere,
    SnapshotFailed,
    TooMany,
    Unavailable,
)
from holdfast.client.snapshots import Export, Snapshot

__all__ = [
    "Api",
    "ApiProblem",
    "Conflict",
    "Connection",
    "Export",
    "Invalid",
    "JobFailed",
    "Mapping",
    "NotAllowed",
    "NotThere",
    "Snapshot",
    "SnapshotFailed",
    "TooMany",
    "Unavailable",
    "connect",
]
