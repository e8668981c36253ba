"""The kinds of ingestion for workers that are killed. Imported by: forked workers only.

The handlers run in the worker, not in processes of their own, so that SIGKILL ends them too.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.services.ingestion.kinds import KINDS
from holdfast.worker import kinds
from holdfast.worker.kinds import Job

kinds._kinds.clear()
kinds._kinds.update({one.kind: Job(one.kind, one.function, replace(one.policy, run_in=None, nice=0)) for one in KINDS})
