"""Exit this process although threads of handlers may still run. Called by: every program, as its last step.

A thread that runs a handler cannot be stopped from outside. If it returns from C code while the interpreter shuts down, Python
ends it with `pthread_exit`, and that aborts the whole process (SIGABRT) if C++ or Cython frames are on its stack. So the
interpreter is not shut down while such a thread runs: this module does what a normal exit does, and then ends the process at
once.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn


def exit_process(code: int) -> NoReturn:
    """Exit with this code: normally if no daemon thread is left, otherwise without shutting the interpreter down."""
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    if not any(thread.daemon for thread in others):
        sys.exit(code)
    for thread in others:
        if not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def exit_code_of(ending: SystemExit) -> int:
    """The exit code that Python would use; text is printed to standard error, as Python does."""
    if ending.code is None:
        return 0
    if isinstance(ending.code, int):
        return ending.code
    sys.stderr.write(f"{ending.code}\n")
    return 1
