"""Start one of our own modules as a process of its own. Called by: the keeper for executors, the lanes for isolated jobs."""

from __future__ import annotations

import os
import subprocess
import sys


def start_module(module: str, *descriptors: int) -> subprocess.Popen[bytes]:
    """An interpreter that runs the module; its arguments are our process id and the descriptors, which it inherits."""
    return subprocess.Popen(
        [sys.executable, "-m", module, str(os.getpid()), *map(str, descriptors)],
        stdin=subprocess.DEVNULL,
        pass_fds=descriptors,
        start_new_session=True,  # Ctrl-C reaches us alone; and what a handler started can be ended with it
    )
