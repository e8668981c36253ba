"""A process ends with its code and its output although a thread of a handler still runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, threading, time
from holdfast.process_exit import exit_code_of, exit_process

class Global:
    def __del__(self):
        print("the interpreter shut down", flush=True)

kept = Global()
atexit.register(print, "exit handlers ran")

said = threading.Event()

def slow():
    said.wait()
    time.sleep(0.05)
    print("a thread that is waited for ended")

if "handler" in sys.argv:
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
threading.Thread(target=slow).start()
print("last words", end=" ")
said.set()
exit_process(3)
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, timeout=60, check=False)


def test_process_with_a_stuck_thread_exits_without_interpreter_shutdown():
    """A thread that comes back from C code during the shutdown would abort the process."""
    ended = run("handler")

    assert (ended.returncode, ended.stderr) == (3, "")
    assert ended.stdout == "last words a thread that is waited for ended\nexit handlers ran\n"


def test_process_without_stuck_threads_exits_normally():
    ended = run()

    assert (ended.returncode, ended.stderr) == (3, "")
    assert "the interpreter shut down" in ended.stdout


@pytest.mark.parametrize(("raised", "code"), [("sys.exit()", 0), ("sys.exit(4)", 4), ("sys.exit('why')", 1)])
def test_exit_code_is_that_of_python(raised: str, code: int):
    program = f"""
import sys
from holdfast.process_exit import exit_code_of
try:
    {raised}
except SystemExit as ending:
    print(exit_code_of(ending))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert ended.stdout == f"{code}\n"
    assert ended.stderr == ("why\n" if code == 1 else "")
