"""What a worker registers about itself. Called by: `loop.py`."""

from __future__ import annotations

import os
import socket

from holdfast.distribution import VERSION
from holdfast.jobs.model import WorkerId
from holdfast.jobs.renew import WorkerInfo
from holdfast.worker.options import WorkerOptions
from holdfast.worker.transports.interface import Takes


def describe_worker(worker_id: WorkerId, options: WorkerOptions, takes: Takes) -> WorkerInfo:
    """Its id, name, host, process, version, kinds and queues."""
    host = socket.gethostname()
    return WorkerInfo(
        worker_id,
        options.name or host or f"worker-{os.getpid()}",
        host,
        os.getpid(),
        VERSION,
        options.git_sha,
        pod=options.pod,
        runner=options.runner,
        kinds=dict(takes.versions),
        concurrency=options.concurrency,
        queues=tuple(takes.queues),
    )
