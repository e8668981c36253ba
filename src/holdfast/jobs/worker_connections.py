"""How many connections a worker opens to Postgres. Used by: workers, and by the doctor, which compares them with the limit."""

from __future__ import annotations

# The most connections that a worker opens to Postgres: two for claims, one each for batches, chains, and the heartbeats of
# executor and keeper, and the pool that handlers and lanes share.
OWN_CONNECTIONS = 6
MOST_SHARED_CONNECTIONS = 8


def shared_connections(concurrency: int) -> int:
    """How many connections the lanes of a worker share at most."""
    return min(concurrency + 2, MOST_SHARED_CONNECTIONS)
