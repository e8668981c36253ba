"""Holdfast from Python, over HTTP: for notebooks and scripts.

    from holdfast.client import connect

    plane = connect("https://jobs.example.com", token="hf_…")      # or HOLDFAST_API_URL and HOLDFAST_TOKEN
    bank = plane.mappings.apply("bank.yaml")
    snapshot = plane.snapshots.create_and_wait(bank, use_case="risk_42")

In a terminal a wait shows bars, in a notebook a card that lives; anywhere else it is silent. Ctrl-C stops the waiting and not
the work.
"""

from __future__ import annotations

from holdfast.client.asking import ApiError, Asking
from holdfast.client.things import Connection, Mapping, Snapshot, SnapshotFailed
from holdfast.errors import UsageError
from holdfast.settings import Settings

__all__ = ["ApiError", "Connection", "Mapping", "Snapshot", "SnapshotFailed", "connect"]


def connect(url: str | None = None, token: str | None = None) -> Connection:
    """The control plane at this address; by default the one that HOLDFAST_API_URL and HOLDFAST_TOKEN name."""
    given = Settings()
    where = url or given.api_url
    if where is None:
        raise UsageError("where is the control plane? pass its address, or set HOLDFAST_API_URL")
    secret = token or (given.token.get_secret_value() if given.token else None)
    return Connection(Asking(where, secret))
