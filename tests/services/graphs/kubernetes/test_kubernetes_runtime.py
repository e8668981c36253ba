"""The runtime `kubernetes` on the fake API server; `tests/real/kubernetes` runs the same tests on a real one."""

from __future__ import annotations

from kube.cases import *  # noqa: F403
