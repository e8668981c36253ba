"""SIGTERM to a command of `proof/` ends every process that it started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from proof.processes.fork_server import descendants, until

ROOT = Path(__file__).parents[2]
STARTS_CHILDREN = """
import multiprocessing, subprocess, tempfile
from concurrent.futures import ThreadPoolExecutor
from proof.termination import end_children_on_sigterm

def start_a_grandchild():
    subprocess.run(["sleep", "1000"], start_new_session=True)

if __name__ == "__main__":
    end_children_on_sigterm()
    with tempfile.TemporaryDirectory(), ThreadPoolExecutor(1) as threads:
        child = multiprocessing.get_context("fork").Process(target=start_a_grandchild)
        child.start()
        threads.submit(child.join)
        subprocess.run(["sleep", "1000"])
"""


def test_sigterm_ends_all_descendants_and_removes_temporary_folders(tmp_path: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", STARTS_CHILDREN], cwd=ROOT, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "TMPDIR": str(tmp_path)}
    )
    children = until(lambda: found if len(found := descendants(run.pid)) == 3 and all(map(is_sleep_or_fork, found)) else None)

    run.send_signal(signal.SIGTERM)

    assert run.wait(60) == 143
    assert until(lambda: not any(map(is_running, children)))
    assert list(tmp_path.iterdir()) == []


def is_sleep_or_fork(pid: int) -> bool:
    return stat(pid).partition("(")[2].startswith(("sleep)", "python"))


def is_running(pid: int) -> bool:
    return stat(pid).rpartition(")")[2].strip()[:1] not in ("", "Z", "X")


def stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
