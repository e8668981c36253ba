"""The fake API server keeps the contract; `tests/real/kubernetes` holds a real one to the same tests."""

from __future__ import annotations

from kube.contract import *  # noqa: F403
