"""What the demos of `holdfast up` share: folders for their files, and workers in processes of their own."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import IO

from holdfast.database.launch import die_with
from holdfast.telemetry.log import configure

Process = asyncio.subprocess.Process

# ---------------------------------------------------------------------------------------------------------------------
# Folders
# ---------------------------------------------------------------------------------------------------------------------


def folder_beside(data_dir: Path) -> Path:
    """The folder for the files of all demos: beside the database's folder, which exports may not use."""
    whole = data_dir.absolute()
    return whole.with_name(f"{whole.name}-demo")


_in_use: list[IO[str]] = []  # lock files that stay open, and so locked, until this process ends


def new_folder(root: Path) -> Path:
    """A folder for this run, below `root`. Removes the folders of earlier runs unless their process still runs."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # another `holdfast up` may start at the same time
        for earlier in root.glob("run-*"):
            ended = _lock(earlier)
            if ended is not None:
                shutil.rmtree(earlier, ignore_errors=True)
                ended.close()
        made = Path(mkdtemp(prefix="run-", dir=root))
        locked = _lock(made)
        assert locked is not None, "the folder is new"
        _in_use.append(locked)
        return made


def _lock(folder: Path) -> IO[str] | None:
    """The lock file of a run, locked; None while the run's process holds it."""
    file = (folder / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


# ---------------------------------------------------------------------------------------------------------------------
# Worker processes
# ---------------------------------------------------------------------------------------------------------------------


async def start(module: str, *arguments: str, **environment: str) -> Process:
    """Run a module with these arguments in a process of its own. Its `__main__` block calls `begin` first."""
    return await asyncio.create_subprocess_exec(
        "env", *(f"{name}={value}" for name, value in environment.items()), sys.executable, "-m", module, str(os.getpid()),
        *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches the demo alone, which ends its workers
    )  # fmt: skip


def begin() -> list[str]:
    """In a process of `start`: end with the process that started it; the arguments."""
    die_with(int(sys.argv[1]), signal.SIGKILL)
    configure(json=True)
    return sys.argv[2:]


async def stop(processes: Sequence[Process]) -> None:
    """SIGTERM to all; SIGKILL to those that are still there after 5 s."""
    running = [process for process in processes if process.returncode is None]
    for process in running:
        process.terminate()
    for process in running:
        try:
            await asyncio.wait_for(process.wait(), 5)
        except TimeoutError:
            process.kill()
            await process.wait()
