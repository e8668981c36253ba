"""What a worker says of itself when it registers. Called by: the loop."""

from __future__ import annotations

import os
import socket
from importlib.metadata import version

from holdfast.jobs.model import WorkerId
from holdfast.jobs.renew import WorkerInfo
from holdfast.worker.options import WorkerOptions
from holdfast.worker.transport import Takes


def introduce(worker_id: WorkerId, options: WorkerOptions, takes: Takes) -> WorkerInfo:
    """This incarnation, on this machine, in this process."""
    host = socket.gethostname()
    return WorkerInfo(
        worker_id,
        options.name or host or f"worker-{os.getpid()}",
        host,
        os.getpid(),
        version("holdfast"),
        options.git_sha,
        pod=options.pod,
        runner=options.runner,
        kinds=dict(takes.versions),
        concurrency=options.concurrency,
        queues=tuple(takes.queues),
    )
